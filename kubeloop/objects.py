"""Manifests of any object as API servers send them, and access to their common fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

Manifest = dict[str, Any]
"""An object as parsed from JSON."""


class Key(NamedTuple):
    """The namespace and name of an object. The namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Section: TypeAlias = Mapping[str, Any]
"""A part of an object."""


def key_of(manifest: Manifest) -> Key:
    """Return the namespace and name of an object."""
    metadata: Mapping[str, Any] = manifest["metadata"]
    return Key(metadata.get("namespace") or "", metadata["name"])


def is_terminating(manifest: Manifest) -> bool:
    """True if the object is being deleted, and exists only for finalizers or its grace period."""
    return bool(manifest["metadata"].get("deletionTimestamp"))


def labels_of(manifest: Manifest) -> Mapping[str, str]:
    """Return an object's labels; empty if it has none."""
    return manifest["metadata"].get("labels") or {}


def annotations_of(manifest: Manifest) -> Mapping[str, str]:
    """Return an object's annotations; empty if it has none."""
    return manifest["metadata"].get("annotations") or {}


def section(manifest: Section, *path: str) -> Section:
    """Return the map at a path of fields; empty if there is none."""
    current = manifest
    for name in path:
        current = cast(Section, current.get(name) or {})
    return current


def entries(manifest: Section, *path: str) -> Sequence[Section]:
    """Return the list at a path of fields; empty if there is none."""
    *parents, last = path
    return cast(Sequence[Section], section(manifest, *parents).get(last) or ())
