"""Review an InferenceCluster: missing InferenceClasses, pools too small for their replicas, and what a cloud costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeloop.verdict import Verdict
from kubeloop.words import count_of, sentence
from modelplane_operator.api.inference_class import EKSNode, GKENode, InferenceClass, Provisioning
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.node_pool import NodePool
from modelplane_operator.ask.admission.rules.maintenance import check_windows
from modelplane_operator.clouds.render import INFRASTRUCTURE
from modelplane_operator.clusters.cluster.plan.node_pools import declared_nodes
from modelplane_operator.scheduling.ledger import ClusterInfo

WAKES = frozenset({"GKE"})
"""Cluster sources whose autoscaler knows the devices of a new node in an empty pool."""


def judge(
    new: InferenceCluster,
    old: InferenceCluster | None,
    classes: Mapping[str, InferenceClass | None],
    info: ClusterInfo | None,
) -> Verdict:
    """Return the verdict.

    `classes` are the existing InferenceClasses by name, None for unreadable ones; `info` is the scheduler's view of the
    cluster.
    """
    if refusals := tuple(check_windows(new.spec.maintenance, old.spec.maintenance if old else ())):
        return Verdict(refusals)
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
    if source != "Existing":
        messages += _describe_cloud(new, old_pools if old else None, edited, classes)
    return Verdict(warnings=tuple(map(sentence, messages)))


def _describe_cloud(
    new: InferenceCluster,
    old_pools: Mapping[str, NodePool] | None,
    edited: list[NodePool],
    classes: Mapping[str, InferenceClass | None],
) -> Iterator[str]:
    """Yield what the operator creates on the cloud and that it costs money, or that it cannot create it."""
    name, source = new.metadata.name, new.spec.cluster.source
    if source not in INFRASTRUCTURE:
        if old_pools is None:
            yield (
                f"clusters on {source} are not created by this operator yet, so cluster {name} will not become Ready: "
                f"create it at {source} yourself, and add it with source Existing: modelplane register"
            )
        return
    machines = [
        _describe_machines(pool, source, classes.get(pool.class_name))
        for pool in edited
        if old_pools is None
        or pool.name not in old_pools
        or declared_nodes(pool) > declared_nodes(old_pools[pool.name])
    ]
    if old_pools is None:
        yield (
            f"cluster {name} is created on {source} now and costs money until this InferenceCluster is deleted: its "
            f"control plane, network and system nodes, and {'; '.join(machines) or 'no GPU nodes'}"
        )
    elif machines:
        yield f"more nodes are created on {source} now and cost money while they exist: {'; '.join(machines)}"


def _describe_machines(pool: NodePool, source: str, inference_class: InferenceClass | None) -> str:
    """Return the number of a pool's nodes and, as far as its class says, what each of them is."""
    nodes = count_of(pool.node_count, "node")
    if pool.max_node_count:
        least = 1 if pool.min_node_count is None else pool.min_node_count
        nodes = f"{least} to {count_of(pool.max_node_count, 'node')}"
    provisioning = inference_class.spec.provisioning if inference_class else None
    match source, provisioning:
        case "EKS", Provisioning(eks=EKSNode(instance_type=machine, accelerator=accelerator)):
            pass
        case "GKE", Provisioning(gke=GKENode(machine_type=machine, accelerator=accelerator)):
            pass
        case _:
            return f"pool {pool.name}: {nodes} of InferenceClass {pool.class_name}"
    return f"pool {pool.name}: {nodes} of {machine}, each with {accelerator.count} {accelerator.type}"


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
