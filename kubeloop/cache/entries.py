"""The values that an informer keeps of an object, and the checks when it is taken in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import orjson

from kubeloop.objects import Key, Manifest

SIZE_OF_A_TOMBSTONE = 300  # bytes, about
LONGEST_NAME = 253  # characters
Stage = Literal["read", "index", "listener"]
"""A stage of taking an object in, at which it can fail."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached object, and the fields of it that we own."""

    manifest: Manifest
    version: int
    owned: str
    size: int = 0
    """The size of the manifest as JSON, in bytes."""

    @property
    def uid(self) -> str:
        return self.manifest["metadata"]["uid"]


@dataclass(slots=True)
class Weight:
    """The total size of entries as JSON, in bytes. A set of owned fields that several entries share counts once."""

    size: int = 0
    _owned: Counter[str] = field(default_factory=Counter[str], init=False)

    def add(self, entry: Entry) -> None:
        self.size += entry.size + (0 if self._owned[entry.owned] else len(entry.owned))
        self._owned[entry.owned] += 1

    def remove(self, entry: Entry) -> None:
        self._owned[entry.owned] -= 1
        self.size -= entry.size + (0 if self._owned[entry.owned] else len(entry.owned))
        if not self._owned[entry.owned]:
            del self._owned[entry.owned]


@dataclass(frozen=True, slots=True)
class ObjectError:
    """A problem of an object, described without quoting the object."""

    reason: str
    """The description of the problem."""
    remainder: Manifest | None = None
    """The usable part of an object that cannot be parsed: its metadata and mostly its status."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The memory of a deletion: the version, the uid if known, and the time."""

    version: int
    uid: str | None
    dug: float

    def holds(self, entry: Entry) -> bool:
        """True if the entry is no newer than the deletion, or has the deleted uid."""
        return entry.version <= self.version or entry.uid == self.uid


def name_of(manifest: Any) -> Key | None:
    """Return the key of an object that may be malformed; None if it has no valid name, uid and version."""
    try:
        metadata = manifest["metadata"]
        identity = metadata.get("namespace") or "", metadata["name"], metadata["uid"]
        int(metadata["resourceVersion"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return Key(identity[0], identity[1]) if all(map(_is_name, identity)) else None


def _is_name(value: object) -> bool:
    """True if the value is a string of at most 253 characters."""
    return isinstance(value, str) and len(value) <= LONGEST_NAME  # a limit, because tombstones keep names


def version_of(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])


def shallow(value: Any) -> Manifest:
    """Return metadata or a status without managedFields; empty if it is still nested too deep to serialize."""
    fields = cast(Manifest, value) if isinstance(value, dict) else {}
    retained = {name: item for name, item in fields.items() if name != "managedFields"}
    try:
        orjson.dumps(retained)
    except orjson.JSONEncodeError:
        return {}
    return retained


def kind_of_error(error: Exception) -> str:
    return type(error).__name__  # the text may quote secrets


def check_metadata(metadata: Manifest) -> None:
    """Raise ValueError if uid, name, namespace, labels or annotations are not what Kubernetes allows."""
    if not all(metadata.get(name) and _is_name(metadata[name]) for name in ("uid", "name")):
        raise ValueError("no uid or no name")
    if not _is_name(metadata.get("namespace") or ""):
        raise ValueError("its namespace is no name")
    for name in ("labels", "annotations"):
        values: Any = metadata.get(name) or {}
        if not (isinstance(values, dict) and all(isinstance(value, str) for value in cast(Manifest, values).values())):
            raise ValueError(f"its {name} are no strings by name")
