"""Any object of any cluster, as a server tells it, and the parts of one that everybody reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

Manifest = dict[str, Any]


class Key(NamedTuple):
    """Which object: an empty namespace means a cluster-scoped one."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Section: TypeAlias = Mapping[str, Any]
"""Some part of an object."""


def key_of(manifest: Manifest) -> Key:
    """Which object this is."""
    metadata: Mapping[str, Any] = manifest["metadata"]
    return Key(metadata.get("namespace") or "", metadata["name"])


def is_terminating(manifest: Manifest) -> bool:
    """Whether the object is being deleted, and is there only for its finalizers or its grace."""
    return bool(manifest["metadata"].get("deletionTimestamp"))


def labels_of(manifest: Manifest) -> Mapping[str, str]:
    """An object's labels; often none."""
    return manifest["metadata"].get("labels") or {}


def annotations_of(manifest: Manifest) -> Mapping[str, str]:
    """An object's annotations; often none."""
    return manifest["metadata"].get("annotations") or {}


def section(manifest: Section, *path: str) -> Section:
    """What an object says at a path of fields; nothing where it is silent."""
    found = manifest
    for name in path:
        found = cast(Section, found.get(name) or {})
    return found


def entries(manifest: Section, *path: str) -> Sequence[Section]:
    """The items of a list at a path of fields; none where there is no list."""
    *parents, last = path
    return cast(Sequence[Section], section(manifest, *parents).get(last) or ())
