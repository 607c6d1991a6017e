"""How many pods of an engine whoever empties nodes may take at once: PodDisruptionBudgets."""

from __future__ import annotations

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine
from modelplane_operator.owned import on_cluster


def render_budgets(replica: ModelReplica, *, picked: bool) -> tuple[Manifest, ...]:
    """One pod at a time, of engines that have several, and of the endpoint picker.

    For a single pod there is nothing between forbidding every eviction, which stops the upgrade of its node for ever,
    and allowing each.
    """
    workloads = (
        names.workload(replica.metadata.name, engine.name) for engine in replica.spec.engines if _pods(engine) > 1
    )
    picker = names.picker(replica.metadata.name)
    return (
        *(_budget(replica, name, {labels.WORKLOAD: name}) for name in workloads),
        *([_budget(replica, picker, {labels.PICKER_APP: picker})] if picked else []),
    )


def _pods(engine: PlacedEngine) -> int:
    sizes = (member.worker.nodes if member.worker else 1 for member in engine.members)
    return engine.copies * sum(sizes)


def _budget(replica: ModelReplica, name: str, selected: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": on_cluster(replica, name),
        "spec": {
            "selector": {"matchLabels": selected},
            "maxUnavailable": 1,
            # What does not answer protects nothing, and would stop the upgrade of its node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
