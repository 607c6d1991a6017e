"""Deduplication of JSON values: equal parts of cached objects are kept in memory once.

Objects of a fleet mostly differ in names, versions and times only.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Final, cast

import orjson

from kubeloop.objects import Manifest

MOST: Final = 2 * 2**20  # approximate bytes of remembered values
OVERHEAD: Final = 200  # bytes of a remembered value besides its JSON
LARGEST: Final = (
    4096  # characters or bytes of JSON up to which a value is remembered; of larger ones only the parts are
)
WORK: Final = 2**18  # units for one object: one for each value, and one for each `JSON` bytes; 0.2 s at most
JSON: Final = 128  # bytes
NESTED: Final = frozenset({dict, list})

COMMON: Final = frozenset({"namespace", "labels", "annotations", "ownerReferences", "finalizers", "creationTimestamp"})
"""Fields of metadata that several objects may have in common."""


class Interner:
    """Builds objects from parts of other objects, so no reader may modify them.

    Recent values are remembered by their JSON in two generations, as in `memo.py`, so that frequent ones stay.
    """

    def __init__(self, most: int = MOST) -> None:
        self._max_size, self._budget = most, 0
        self.clear()

    def clear(self) -> None:
        """Forget the remembered values. Objects that share parts go on sharing them."""
        self._new: dict[str | bytes, Any] = {}
        self._old: dict[str | bytes, Any] = {}
        self._size = 0

    def manifest(self, manifest: Manifest, before: Manifest) -> Manifest:
        """Return an equal object that shares parts with its old version and with other objects."""
        self._budget = WORK
        metadata: Manifest = manifest["metadata"]
        old_metadata: Manifest = before.get("metadata") or {}
        common = {
            name: self._share(value, old_metadata.get(name)) for name, value in metadata.items() if name in COMMON
        }
        fields = {name: self._share(value, before.get(name)) for name, value in manifest.items() if name != "metadata"}
        return {**fields, "metadata": {**metadata, **common}}

    def of(self, value: Any, like: Any = None) -> Any:
        """Return an equal value that shares parts with others.

        `like` is one that probably has much in common with it.
        """
        self._budget = WORK
        return self._share(value, like)

    def _share(self, value: Any, like: Any) -> Any:
        """Return an equal value from the remembered ones, or build it from shared parts and remember it."""
        key: str | bytes
        if value.__class__ is str:
            if value == like:
                return like
            key = value
        elif value.__class__ in NESTED and self._budget > 0:
            key = orjson.dumps(value)  # compares types too, unlike ==, by which 1 equals True
            self._budget -= len(value) + len(key) // JSON
            if like.__class__ in NESTED:
                like_key = orjson.dumps(like)
                self._budget -= len(like_key) // JSON
                if like_key == key:
                    return like
        else:
            return value
        if (shared := self._new.get(key)) is not None:
            return shared
        if (shared := self._old.get(key)) is None:
            shared = value if value.__class__ is str else self._share_parts(value, like)
        if len(key) <= LARGEST:
            self._new[key] = shared
            self._size += len(key) + OVERHEAD
            if self._size > self._max_size // 2:
                self._old, self._new, self._size = self._new, {}, 0
        return shared

    def _share_parts(self, value: Any, like: Any) -> Any:
        """Rebuild a dict or list from shared parts."""
        if isinstance(value, dict):
            others = cast(Manifest, like) if isinstance(like, dict) else {}
            return {name: self._share(item, others.get(name)) for name, item in cast(Manifest, value).items()}
        items, other_items = cast(list[Any], value), cast(list[Any], like) if isinstance(like, list) else []
        return [self._share(item, other) for item, other in zip_longest(items, other_items[: len(items)])]
