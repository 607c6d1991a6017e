"""Render PodDisruptionBudgets, which limit the pods of an engine that evictions may take at once."""

from __future__ import annotations

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.owned import on_cluster


def render_budgets(replica: ModelReplica, *, picked: bool) -> tuple[Manifest, ...]:
    """Render a budget of one pod at a time, for engines with several pods and for the endpoint picker.

    A single pod gets none: a budget could only forbid every eviction, which blocks node upgrades, or allow all.
    """
    workloads = (
        names.workload(replica.metadata.name, engine.name)
        for engine in replica.spec.engines
        if engine.copies * sum(member.worker.nodes if member.worker else 1 for member in engine.members) > 1
    )
    picker = names.picker(replica.metadata.name)
    return (
        *(_render_budget(replica, name, {labels.WORKLOAD: name}) for name in workloads),
        *([_render_budget(replica, picker, {labels.PICKER_APP: picker})] if picked else []),
    )


def _render_budget(replica: ModelReplica, name: str, match_labels: dict[str, str]) -> Manifest:
    """Render a budget that allows one pod with these labels to be missing."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": on_cluster(replica, name),
        "spec": {
            "selector": {"matchLabels": match_labels},
            "maxUnavailable": 1,
            # A pod that is not ready serves nobody, and would block the upgrade of its node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
