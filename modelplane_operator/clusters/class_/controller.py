"""InferenceClass: the clusters that name it, and who wakes it."""

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
    """The classes that a cluster's pools name."""
    return frozenset(pool.get("className", "") for pool in cluster["spec"].get("nodePools") or ())


INDEXES: Indexes = {CLUSTERS: {"class": class_names}}


async def observe(known: InferenceClass, clients: Clients) -> Observed:
    clusters = clients.hub.find(CLUSTERS)
    name = known.metadata.name
    users = {one["metadata"]["name"]: nodes(one, name) for one in clusters.by("class", name)} if clusters else {}
    return Observed(known, users, clients.now().replace(microsecond=0))


def nodes(cluster: Manifest, name: str) -> int:
    """How many nodes a cluster's pools of a class have. Read as it is: a thousand clusters take seconds to parse."""
    mine = {pool["name"] for pool in entries(cluster, "spec", "nodePools") if pool.get("className") == name}
    return sum(pool.get("nodes") or 0 for pool in entries(cluster, "status", "gpuPools") if pool["name"] in mine)


def _of_its_pools(change: Change, _: Cluster) -> Iterable[Key]:
    """The classes of a cluster's pools, when those or their nodes are not what they were."""
    if change.old and change.new and _counted(change.old) == _counted(change.new):
        return ()
    named = {name for cluster in filter(None, change) for name in class_names(cluster)}
    return (Key("", name) for name in sorted(named))


def _counted(cluster: Manifest) -> Any:
    pools = [(pool["name"], pool.get("className")) for pool in cluster["spec"].get("nodePools") or ()]
    status: Manifest = cluster.get("status") or {}
    return pools, [(pool["name"], pool.get("nodes")) for pool in status.get("gpuPools") or ()]


CONTROLLER: Controller[InferenceClass, Observed] = Controller(
    InferenceClass, observe, plan, sums_up=True, watches={CLUSTERS: _of_its_pools}, indexes=INDEXES
)
