"""The indexes of an informer: lookups of its objects by computed values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from kubeloop.naming import owner_uid
from kubeloop.objects import Key, Manifest, labels_of
from kubeloop.types import ResourceType

Index = Callable[[Manifest], Iterable[Hashable]]
"""Returns the values by which an object is found."""


def by_label(name: str) -> Index:
    """Return an index of objects by the value of a label."""
    return lambda manifest: (value,) if (value := labels_of(manifest).get(name)) is not None else ()


OWNER: Mapping[str, Index] = {"owner": lambda child: (uid,) if (uid := owner_uid(child)) is not None else ()}
"""The index by owner uid, which every informer has."""


class Indexed:
    """The keys of objects by index and value."""

    def __init__(self, kind: ResourceType, indexes: Mapping[str, Index]) -> None:
        self._kind = kind
        self._indexes = {**OWNER, **indexes} if indexes else OWNER
        self._keys: dict[str, dict[Hashable, Key | dict[Key, None]]] = {}
        """By index. For most values there is one object, which needs no dict of its own."""

    def keys(self, index: str, value: Hashable) -> AbstractSet[Key]:
        """Return the keys for a value, unordered, without copying them."""
        keys = self._get_index(index).get(value, {})
        return keys.keys() if isinstance(keys, dict) else {keys: None}.keys()

    def values(self, index: str) -> AbstractSet[Hashable]:
        """Return all values for which an index finds objects."""
        return self._get_index(index).keys()

    def add(self, key: Key, manifest: Manifest) -> Mapping[str, Exception]:
        """Add an object to all indexes. Return the errors of those indexes that failed on it and do not have it."""
        index_values, failed = self._index_values(manifest)
        for index, value in index_values:
            existing = self._keys.setdefault(index, {}).setdefault(value, key)
            if isinstance(existing, dict):
                existing[key] = None
            elif existing != key:
                self._keys[index][value] = {existing: None, key: None}
        return failed

    def remove(self, key: Key, manifest: Manifest) -> None:
        """Remove an object; the content must be that with which it was added."""
        for index, value in self._index_values(manifest)[0]:
            existing = self._keys[index][value]
            if isinstance(existing, dict):
                del existing[key]
            if existing in ({}, key):
                del self._keys[index][value]

    def _get_index(self, index: str) -> Mapping[Hashable, Key | dict[Key, None]]:
        """Return one index; raises LookupError if the type has no index of this name."""
        if index not in self._indexes:  # an undeclared index must not look like an empty one
            raise LookupError(f"{self._kind} has no index {index!r}")
        return self._keys.get(index, {})

    def _index_values(self, manifest: Manifest) -> tuple[Iterable[tuple[str, Hashable]], Mapping[str, Exception]]:
        """Return the pairs of index and value of an object, and the errors of indexes that failed."""
        index_values: dict[tuple[str, Hashable], None] = {}
        failed: dict[str, Exception] = {}
        for name, index in self._indexes.items():
            try:
                index_values.update(dict.fromkeys([(name, value) for value in index(manifest)]))
            except Exception as error:  # noqa: BLE001 - one index must not keep the object out of the others
                failed[name] = error
        return index_values, failed
