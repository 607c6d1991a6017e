"""One object as an informer keeps it: read and checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import orjson

from kubeloop.objects import Key, Manifest

SIZE_OF_A_TOMBSTONE = 300
LONGEST_NAME = 253
Stage = Literal["read", "index", "listener"]
"""Where an object can fail on its way in."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object as last seen, and which of its fields we own."""

    manifest: Manifest
    version: int
    owned: str
    size: int = 0
    """Of the manifest, as JSON."""

    @property
    def uid(self) -> str:
        return self.manifest["metadata"]["uid"]


@dataclass(slots=True)
class Weight:
    """The bytes that are kept of entries, as JSON: what they say of our fields counts once where it is the same."""

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
class Trouble:
    """What an object has failed in, in words that quote nothing of it."""

    why: str
    rest: Manifest | None = None
    """What can be used of the object all the same, when it cannot be read: its metadata and, mostly, its status."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    version: int
    uid: str | None
    dug: float

    def holds(self, entry: Entry) -> bool:
        return entry.version <= self.version or entry.uid == self.uid


def name_of(manifest: Any) -> Key | None:
    """Which object it is; None when it does not say so."""
    try:
        metadata = manifest["metadata"]
        named = metadata.get("namespace") or "", metadata["name"], metadata["uid"]
        int(metadata["resourceVersion"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return Key(named[0], named[1]) if all(map(_is_name, named)) else None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME  # tombstones keep it


def version_of(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])


def shallow(value: Any) -> Manifest:
    """Metadata or a status without what cannot be kept: managedFields are nested as deep as what they are about."""
    fields = cast(Manifest, value) if isinstance(value, dict) else {}
    kept = {name: one for name, one in fields.items() if name != "managedFields"}
    try:
        orjson.dumps(kept)
    except orjson.JSONEncodeError:
        return {}
    return kept


def kind_of_error(error: Exception) -> str:
    return type(error).__name__  # its text may quote what nobody should read


def check_metadata(metadata: Manifest) -> None:
    """Raise ValueError when what objects are found and told apart by is not what it is in Kubernetes."""
    if not all(metadata.get(name) and _is_name(metadata[name]) for name in ("uid", "name")):
        raise ValueError("no uid or no name")
    if not _is_name(metadata.get("namespace") or ""):
        raise ValueError("its namespace is no name")
    for name in ("labels", "annotations"):
        known: Any = metadata.get(name) or {}
        if not (isinstance(known, dict) and all(isinstance(value, str) for value in cast(Manifest, known).values())):
            raise ValueError(f"its {name} are no strings by name")
