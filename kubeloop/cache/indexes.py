"""The indexes of an informer: by which values its objects are found."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from kubeloop.naming import owner_uid
from kubeloop.objects import Key, Manifest, labels_of
from kubeloop.types import ResourceType

Index = Callable[[Manifest], Iterable[Hashable]]


def by_label(name: str) -> Index:
    """Finds objects by the value of a label."""
    return lambda manifest: (value,) if (value := labels_of(manifest).get(name)) is not None else ()


OWNER: Mapping[str, Index] = {"owner": lambda child: (uid,) if (uid := owner_uid(child)) is not None else ()}
"""The index that every informer has: the uid of the owner."""


class Indexed:
    """The keys of objects, by the values that indexes find them for."""

    def __init__(self, kind: ResourceType, indexes: Mapping[str, Index]) -> None:
        self._kind = kind
        self._indexes = {**OWNER, **indexes} if indexes else OWNER
        self._keys: dict[str, dict[Hashable, Key | dict[Key, None]]] = {}
        """By index. For most values there is one object, which needs no dict of its own."""

    def keys(self, index: str, value: Hashable) -> AbstractSet[Key]:
        """In no order, which costs nothing however many they are."""
        found = self._of(index).get(value, {})
        return found.keys() if isinstance(found, dict) else {found: None}.keys()

    def values(self, index: str) -> AbstractSet[Hashable]:
        """All values for which an index finds something."""
        return self._of(index).keys()

    def add(self, key: Key, manifest: Manifest) -> Mapping[str, Exception]:
        """Have an object found; answers the indexes that failed on it: there it is not."""
        places, failed = self._places(manifest)
        for index, value in places:
            known = self._keys.setdefault(index, {}).setdefault(value, key)
            if isinstance(known, dict):
                known[key] = None
            elif known != key:
                self._keys[index][value] = {known: None, key: None}
        return failed

    def remove(self, key: Key, manifest: Manifest) -> None:
        """Have it found no more, by the content that it was added with."""
        for index, value in self._places(manifest)[0]:
            known = self._keys[index][value]
            if isinstance(known, dict):
                del known[key]
            if known in ({}, key):
                del self._keys[index][value]

    def _of(self, index: str) -> Mapping[Hashable, Key | dict[Key, None]]:
        if index not in self._indexes:  # else what was never indexed would look like what is not there
            raise LookupError(f"{self._kind} has no index {index!r}")
        return self._keys.get(index, {})

    def _places(self, manifest: Manifest) -> tuple[Iterable[tuple[str, Hashable]], Mapping[str, Exception]]:
        places: dict[tuple[str, Hashable], None] = {}
        failed: dict[str, Exception] = {}
        for name, index in self._indexes.items():
            try:
                places.update(dict.fromkeys([(name, value) for value in index(manifest)]))
            except Exception as error:  # noqa: BLE001 - one index must not keep the object out of the others
                failed[name] = error
        return places, failed
