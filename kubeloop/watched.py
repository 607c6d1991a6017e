"""What is watched, put together from what controllers declare; the order of the controllers changes nothing.

Every type that wakes a controller is watched. On the hub, our own kinds and Namespaces are watched whole, and the
Secrets of our own namespace; of every other type, and on workload clusters, what carries our owner label. There it is
taken to be made by us alone, and is not watched while there is none, unless a controller declares something else.
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


def watched(
    controllers: Controllers, ours: frozenset[ResourceType], system_namespace: str
) -> tuple[tuple[Watched, ...], tuple[Watched, ...]]:
    """Return what to watch on the hub, `ours` among it, and on workload clusters.

    Raises ValueError when controllers contradict each other.
    """
    hub = {kind: Watched(kind) for one in controllers for kind in one.watches}
    hub |= _agreed(
        ((one, told.type, told) for one in controllers for told in one.watched),
        lambda kind: f"how {kind.kind}s are watched on the hub",
    )
    hub |= {kind: Watched(kind, None, keeping=without_crossplane) for kind in ours}
    hub |= {NAMESPACE: Watched(NAMESPACE, None), SECRET: Watched(SECRET, None, namespace=system_namespace)}
    remote = {kind: Watched(kind, ours=True) for one in controllers for kind in one.remote_watches}
    remote |= {told.type: Watched(told.type, ours=True) for one in controllers for told in one.watched_remotely}
    remote |= _agreed(
        ((one, told.type, told) for one in controllers for told in one.watched_remotely if told != remote[told.type]),
        lambda kind: f"how {kind.kind}s are watched on workload clusters",
    )
    found = indexes(controllers)
    near, far = (
        tuple(replace(one, indexes=found.get(kind, {})) for kind, one in sorted(types.items()))
        for types in (hub, remote)
    )
    return near, far


def indexes(controllers: Controllers) -> Indexes:
    """How objects are found; raises ValueError when two controllers mean different things by one index."""
    agreed = _agreed(
        (
            (one, (kind, name), index)
            for one in controllers
            for kind, named in one.indexes.items()
            for name, index in named.items()
        ),
        lambda place: f"the index {place[1]} of {place[0].kind}s",
    )
    found: defaultdict[ResourceType, dict[str, Index]] = defaultdict(dict)
    for (kind, name), index in agreed.items():
        found[kind][name] = index
    return found


def _agreed(declared: Iterable[tuple[Controller[Any, Any], K, V]], words: Callable[[K], str]) -> Mapping[K, V]:
    """What is declared, each once."""
    agreed: dict[K, tuple[str, V]] = {}
    for controller, key, value in declared:
        kind = controller.type.kind
        first, known = agreed.setdefault(key, (kind, value))
        if known != value:
            raise ValueError(f"The controllers of {first} and {kind} declare {words(key)} differently")
    return {key: value for key, (_, value) in agreed.items()}


def without_crossplane(manifest: Manifest) -> Manifest:
    """One of our objects without what is there for Crossplane: nobody here reads it, and it may have hundreds of KB.

    Objects that are written back whole, ModelReplicas, never have it.
    """
    spec = section(manifest, "spec")
    if "crossplane" not in spec:
        return manifest
    return {**manifest, "spec": {name: spec[name] for name in spec if name != "crossplane"}}
