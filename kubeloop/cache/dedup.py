"""JSON values of which there are many alike, kept once: objects of a fleet differ in names, versions and times."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Final, cast

import orjson

from kubeloop.objects import Manifest

MOST: Final = 2 * 2**20  # bytes of what is remembered, about
OVERHEAD: Final = 200  # bytes of what is remembered of a value, beside its JSON
LARGEST: Final = 4096  # of a text, or bytes of JSON, that are looked for as a whole; of what is larger, only the parts
WORK: Final = 2**18  # for one object, of which a value is one and so much JSON another: some 0.2 s at the very most
JSON: Final = 128
NESTED: Final = frozenset({dict, list})

COMMON: Final = frozenset({"namespace", "labels", "annotations", "ownerReferences", "finalizers", "creationTimestamp"})
"""Of metadata, what several objects have alike."""


class Alike:
    """Makes objects of parts that others have already; so nobody may change them, whoever has them.

    What came by lately is remembered by its JSON, in two generations as in `kube.remembering`: what comes often stays.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._left = most, 0
        self.clear()

    def clear(self) -> None:
        """Remember nothing any more. What has parts in common keeps them so."""
        self._new: dict[str | bytes, Any] = {}
        self._old: dict[str | bytes, Any] = {}
        self._size = 0

    def manifest(self, manifest: Manifest, before: Manifest) -> Manifest:
        """The same object, made of what it was before and of parts of others."""
        self._left = WORK
        metadata: Manifest = manifest["metadata"]
        known: Manifest = before.get("metadata") or {}
        common = {name: self._of(value, known.get(name)) for name, value in metadata.items() if name in COMMON}
        parts = {name: self._of(value, before.get(name)) for name, value in manifest.items() if name != "metadata"}
        return {**parts, "metadata": {**metadata, **common}}

    def of(self, value: Any, like: Any = None) -> Any:
        """The same value; `like`: another that probably has much in common with it."""
        self._left = WORK
        return self._of(value, like)

    def _of(self, value: Any, like: Any) -> Any:
        key: str | bytes
        if value.__class__ is str:
            if value == like:
                return like
            key = value
        elif value.__class__ in NESTED and self._left > 0:
            key = orjson.dumps(value)  # and not ==, to which 1 is True
            self._left -= len(value) + len(key) // JSON
            if like.__class__ in NESTED:
                before = orjson.dumps(like)
                self._left -= len(before) // JSON
                if before == key:
                    return like
        else:
            return value
        if (known := self._new.get(key)) is not None:
            return known
        if (known := self._old.get(key)) is None:
            known = value if value.__class__ is str else self._parts(value, like)
        if len(key) <= LARGEST:
            self._new[key] = known
            self._size += len(key) + OVERHEAD
            if self._size > self._most // 2:
                self._old, self._new, self._size = self._new, {}, 0
        return known

    def _parts(self, value: Any, like: Any) -> Any:
        if isinstance(value, dict):
            others = cast(Manifest, like) if isinstance(like, dict) else {}
            return {name: self._of(item, others.get(name)) for name, item in cast(Manifest, value).items()}
        items, known = cast(list[Any], value), cast(list[Any], like) if isinstance(like, list) else []
        return [self._of(item, other) for item, other in zip_longest(items, known[: len(items)])]
