"""Review an InferenceCluster: missing InferenceClasses, and pools that are too small for their replicas."""

from __future__ import annotations

from collections.abc import Container, Iterator

from kubeloop.verdict import Verdict
from kubeloop.words import count_of, sentence
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.node_pool import NodePool
from modelplane_operator.clusters.cluster.plan.node_pools import declared_nodes
from modelplane_operator.scheduling.ledger import ClusterInfo

WAKES = frozenset({"GKE"})
"""Cluster sources whose autoscaler knows the devices of a new node in an empty pool."""


def judge(
    new: InferenceCluster, old: InferenceCluster | None, classes: Container[str], info: ClusterInfo | None
) -> Verdict:
    """Return the verdict.

    `classes` are the existing InferenceClasses; `info` is the scheduler's view of the cluster.
    """
    old_pools = {pool.name: pool for pool in old.spec.node_pools} if old else dict[str, NodePool]()
    edited = [pool for pool in new.spec.node_pools if old_pools.get(pool.name) != pool]
    messages = [
        f"pool {pool.name} takes no replica until there is an InferenceClass {pool.class_name}"
        for pool in edited
        if pool.class_name not in classes
    ]
    messages += _check_sizes(new, old_pools, info) if info else ()
    source = new.spec.cluster.source
    messages += (
        f"pool {pool.name} may shrink to no node, and the autoscaler of {source} does not know what devices "
        "another one would have: set minNodeCount to 1, or it may never grow again"
        for pool in edited
        if pool.max_node_count and pool.min_node_count == 0 and source not in WAKES
    )
    return Verdict(warnings=tuple(map(sentence, messages)))


def _check_sizes(new: InferenceCluster, old_pools: dict[str, NodePool], info: ClusterInfo) -> Iterator[str]:
    """Yield a warning for each pool that would have fewer nodes than its replicas need."""
    requested = {pool.name: declared_nodes(pool) for pool in new.spec.node_pools}
    pools = info.cluster.pools
    for name, nodes, free in zip(pools.names, pools.nodes, info.free, strict=True):
        used, old = nodes - free, declared_nodes(old_pools[name]) if name in old_pools else 0
        new_count = requested.get(name, 0)
        if new_count < used and new_count < old:
            text = f"would have {count_of(new_count, 'node')}" if name in requested else "would be gone"
            yield (
                f"pool {name} {text}, and replicas take {used}: those that find none are moved where others take them, "
                "and wait where none does"
            )
