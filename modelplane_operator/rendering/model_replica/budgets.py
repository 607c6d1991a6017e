"""How many pods of an engine whoever empties nodes may take at once: PodDisruptionBudgets."""

from __future__ import annotations

from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine
from modelplane_operator.kube.objects import Manifest
from modelplane_operator.rendering.owned import on_cluster


def render_budgets(replica: ModelReplica) -> tuple[Manifest, ...]:
    """One pod at a time, of engines that have several.

    For a single pod there is nothing between forbidding every eviction, which stops the upgrade of its node for ever,
    and allowing each.
    """
    return tuple(_budget(replica, engine) for engine in replica.spec.engines if _pods(engine) > 1)


def _pods(engine: PlacedEngine) -> int:
    sizes = (member.worker.nodes if member.worker else 1 for member in engine.members)
    return engine.copies * sum(sizes)


def _budget(replica: ModelReplica, engine: PlacedEngine) -> Manifest:
    name = names.workload(replica.metadata.name, engine.name)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": on_cluster(replica, name),
        "spec": {
            "selector": {"matchLabels": {labels.WORKLOAD: name}},
            "maxUnavailable": 1,
            # What does not answer protects nothing, and would stop the upgrade of its node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
