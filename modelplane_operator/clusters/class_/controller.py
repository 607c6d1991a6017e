"""The controller of InferenceClass: observes the clusters that reference it, and maps their changes to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kubeloop.loop import Change, Clients, Controller, Indexes
from kubeloop.objects import Key, Manifest, entries
from kubeloop.reading import Cluster
from kubeloop.resource import of
from modelplane_operator.api import InferenceClass, InferenceCluster
from modelplane_operator.clusters.class_.plan import Observed, plan

CLUSTERS = of(InferenceCluster)


def class_names(cluster: Manifest) -> frozenset[str]:
    """Return the names of the classes that a cluster's pools reference."""
    return frozenset(pool.get("className", "") for pool in cluster["spec"].get("nodePools") or ())


INDEXES: Indexes = {CLUSTERS: {"class": class_names}}


async def observe(inference_class: InferenceClass, clients: Clients) -> Observed:
    """Return the class with the node count of each cluster that references it."""
    clusters = clients.hub.find(CLUSTERS)
    name = inference_class.metadata.name
    users = (
        {cluster["metadata"]["name"]: nodes(cluster, name) for cluster in clusters.by("class", name)}
        if clusters
        else {}
    )
    return Observed(inference_class, users, clients.now().replace(microsecond=0))


def nodes(cluster: Manifest, name: str) -> int:
    """Return how many nodes a cluster has in pools of a class.

    It reads the manifest: parsing a thousand clusters would take seconds.
    """
    pool_names = {pool["name"] for pool in entries(cluster, "spec", "nodePools") if pool.get("className") == name}
    return sum(pool.get("nodes") or 0 for pool in entries(cluster, "status", "gpuPools") if pool["name"] in pool_names)


def _map_to_classes(change: Change, _: Cluster) -> Iterable[Key]:
    """Return the classes of a cluster's pools, old and new, if the pools or their nodes have changed."""
    if change.old and change.new and _get_pool_nodes(change.old) == _get_pool_nodes(change.new):
        return ()
    changed_names = {name for cluster in filter(None, change) for name in class_names(cluster)}
    return (Key("", name) for name in sorted(changed_names))


def _get_pool_nodes(cluster: Manifest) -> Any:
    """Return the parts of a cluster that matter to its classes: the class and node count of each pool."""
    pools = [(pool["name"], pool.get("className")) for pool in cluster["spec"].get("nodePools") or ()]
    status: Manifest = cluster.get("status") or {}
    return pools, [(pool["name"], pool.get("nodes")) for pool in status.get("gpuPools") or ()]


CONTROLLER: Controller[InferenceClass, Observed] = Controller(
    InferenceClass, observe, plan, sums_up=True, watches={CLUSTERS: _map_to_classes}, indexes=INDEXES
)
