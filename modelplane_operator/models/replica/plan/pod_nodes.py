"""Find the nodes of a replica's pods, since a pool that is shared by device is charged node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kubeloop.objects import Manifest, labels_of, section
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica, PodsOnNode
from modelplane_operator.models.replica.plan.observed import Observed

MOST = 1024
"""Limit of entries, as in the status."""


def find_claiming_pods(observed: Observed) -> Iterator[Manifest]:
    """Yield the pods that hold devices of a node: until all containers have ended."""
    for pod in observed.pods:
        spec = section(pod, "spec")
        has_ended = section(pod, "status").get("phase") in {"Succeeded", "Failed"}
        if spec.get("nodeName") and spec.get("resourceClaims") and not has_ended:
            yield pod


def find_pod_nodes(observed: Observed) -> tuple[PodsOnNode, ...]:
    """Return the nodes of the pods that hold devices, as far as they run in the pools of the spec."""
    members = _members_by_workload(observed.replica)
    counter = Counter[tuple[str, str, str]]()
    for pod in find_claiming_pods(observed):
        spec, engine = section(pod, "spec"), members.get(labels_of(pod).get(labels.WORKLOAD, ""))
        if engine is None:
            continue
        name, pools = engine
        role = "Leader" if labels_of(pod).get(labels.GANG_ROLE) == "leader" else "Worker"
        role = role if role in pools else "Standalone"
        if section(spec, "nodeSelector").get(labels.POOL) == pools.get(role):
            counter[name, role, spec["nodeName"]] += 1
    return tuple(
        PodsOnNode.model_validate({"engine": engine, "role": role, "node": node, "pods": pods})
        for (engine, role, node), pods in sorted(counter.items())[:MOST]
    )


def _members_by_workload(replica: ModelReplica) -> dict[str, tuple[str, dict[str, str]]]:
    """Return each engine's name and the pools of its members by role, by the name of its workload."""
    return {
        names.workload(replica.metadata.name, engine.name): (
            engine.name,
            {member.role: member.node_pool_name for member in engine.members},
        )
        for engine in replica.spec.engines
    }
