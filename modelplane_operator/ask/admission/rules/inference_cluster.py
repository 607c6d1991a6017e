"""An InferenceCluster as it is written: classes that do not exist, and pools too small for what runs there."""

from __future__ import annotations

from collections.abc import Container, Iterator

from kubeloop.verdict import Verdict
from kubeloop.words import counted, sentence
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.node_pool import NodePool
from modelplane_operator.clusters.cluster.plan.node_pools import declared
from modelplane_operator.scheduling.ledger import ClusterInfo

WAKES = frozenset({"GKE"})
"""Sources whose autoscaler knows what devices the node of a pool without nodes would have."""


def judge(
    new: InferenceCluster, old: InferenceCluster | None, classes: Container[str], info: ClusterInfo | None
) -> Verdict:
    """`classes`: those that exist; `info`: the cluster as the scheduler counts its nodes, when it knows it."""
    known = {pool.name: pool for pool in old.spec.node_pools} if old else dict[str, NodePool]()
    edited = [pool for pool in new.spec.node_pools if known.get(pool.name) != pool]
    told = (
        *_classes(edited, classes),
        *(_shrinks(new, known, info) if info else ()),
        *_asleep(edited, new.spec.cluster.source),
    )
    return Verdict(warnings=tuple(map(sentence, told)))


def _classes(pools: list[NodePool], classes: Container[str]) -> Iterator[str]:
    for pool in pools:
        if pool.class_name not in classes:
            yield f"pool {pool.name} takes no replica until there is an InferenceClass {pool.class_name}"


def _shrinks(new: InferenceCluster, known: dict[str, NodePool], info: ClusterInfo) -> Iterator[str]:
    asked = {pool.name: declared(pool) for pool in new.spec.node_pools}
    pools = info.cluster.pools
    for name, nodes, free in zip(pools.names, pools.nodes, info.free, strict=True):
        used, before = nodes - free, declared(known[name]) if name in known else 0
        after = asked.get(name, 0)
        if after < used and after < before:
            has = f"would have {counted(after, 'node')}" if name in asked else "would be gone"
            yield (
                f"pool {name} {has}, and replicas take {used}: those that find none are moved where others take them, "
                "and wait where none does"
            )


def _asleep(pools: list[NodePool], source: str) -> Iterator[str]:
    for pool in pools:
        if pool.max_node_count and pool.min_node_count == 0 and source not in WAKES:
            yield (
                f"pool {pool.name} may shrink to no node, and the autoscaler of {source} does not know what devices "
                "another one would have: set minNodeCount to 1, or it may never grow again"
            )
