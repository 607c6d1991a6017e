"""Collects the watches and indexes that controllers declare. Their order does not matter.

Every type that has a mapper is watched. On the hub, our own kinds and Namespaces are watched completely, and the
Secrets of our own namespace; every other type, and all types on workload clusters, only with our owner label. On
workload clusters we assume that only we create such objects, and do not watch a type while none of it exists, unless a
controller declares otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from kubeloop.cache.indexes import Index
from kubeloop.cache.watches import Watched
from kubeloop.loop import Controller, Indexes
from kubeloop.objects import Manifest, section
from kubeloop.types import NAMESPACE, SECRET, ResourceType

K = TypeVar("K")
V = TypeVar("V")

Controllers = tuple[Controller[Any, Any], ...]


def collect_watches(
    controllers: Controllers, own_types: frozenset[ResourceType], system_namespace: str
) -> tuple[tuple[Watched, ...], tuple[Watched, ...]]:
    """Return the watches of the hub, including `own_types`, and those of workload clusters.

    Raises ValueError when two controllers declare different watches for one type.
    """
    hub = {kind: Watched(kind) for item in controllers for kind in item.watches}
    hub |= _merge_declarations(
        ((item, watch.type, watch) for item in controllers for watch in item.watched),
        lambda kind: f"how {kind.kind}s are watched on the hub",
    )
    hub |= {kind: Watched(kind, None, keeping=without_crossplane) for kind in own_types}
    hub |= {NAMESPACE: Watched(NAMESPACE, None), SECRET: Watched(SECRET, None, namespace=system_namespace)}
    remote = {kind: Watched(kind, only_ours=True) for item in controllers for kind in item.remote_watches}
    remote |= {
        watch.type: Watched(watch.type, only_ours=True) for item in controllers for watch in item.watched_remotely
    }
    remote |= _merge_declarations(
        (
            (item, watch.type, watch)
            for item in controllers
            for watch in item.watched_remotely
            if watch != remote[watch.type]
        ),
        lambda kind: f"how {kind.kind}s are watched on workload clusters",
    )
    all_indexes = indexes(controllers)
    hub_watches, remote_watches = (
        tuple(replace(item, indexes=all_indexes.get(kind, {})) for kind, item in sorted(types.items()))
        for types in (hub, remote)
    )
    return hub_watches, remote_watches


def indexes(controllers: Controllers) -> Indexes:
    """Return all declared indexes by type and name.

    Raises ValueError when two controllers declare one name differently.
    """
    agreed = _merge_declarations(
        (
            (controller, (kind, name), index)
            for controller in controllers
            for kind, by_name in controller.indexes.items()
            for name, index in by_name.items()
        ),
        lambda index_key: f"the index {index_key[1]} of {index_key[0].kind}s",
    )
    by_type: defaultdict[ResourceType, dict[str, Index]] = defaultdict(dict)
    for (kind, name), index in agreed.items():
        by_type[kind][name] = index
    return by_type


def _merge_declarations(
    declared: Iterable[tuple[Controller[Any, Any], K, V]], describe: Callable[[K], str]
) -> Mapping[K, V]:
    """Return the declared values by key.

    Raises ValueError, worded by `describe`, if two controllers declare different ones.
    """
    agreed: dict[K, tuple[str, V]] = {}
    for controller, key, value in declared:
        kind = controller.type.kind
        first_kind, first_value = agreed.setdefault(key, (kind, value))
        if first_value != value:
            raise ValueError(f"The controllers of {first_kind} and {kind} declare {describe(key)} differently")
    return {key: value for key, (_, value) in agreed.items()}


def without_crossplane(manifest: Manifest) -> Manifest:
    """Return one of our objects without `spec.crossplane`, which nothing here reads and which can have hundreds of KB.

    Kinds that are written back in full, ModelReplicas, never have that field.
    """
    spec = section(manifest, "spec")
    if "crossplane" not in spec:
        return manifest
    return {**manifest, "spec": {name: spec[name] for name in spec if name != "crossplane"}}
