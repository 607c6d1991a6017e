"""Find changes that would give waiting replicas a cluster. Each is tried with the scheduler before it is suggested.

The order is from small to large changes: first edits of the deployment, then more nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kubeloop.words import count_of
from modelplane_operator.api import InferenceCluster, labels
from modelplane_operator.ask.answers.snapshot import Snapshot, observe
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.reasons import Full, LabelDiffers, Reason, Tainted, TooSmall
from modelplane_operator.scheduling.requirement import PlacementRequest
from modelplane_operator.scheduling.schedule import schedule
from modelplane_operator.scheduling.taints import Toleration

MOST = 5
"""Number of changes that are suggested."""
TRIED = 12
"""Number of changes that are tried."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A change, and the number of waiting replicas that it would place."""

    change: str
    """The change, as an instruction."""
    places: int
    """Number of replicas that would get a cluster."""
    missing: int
    """Number of replicas that wait now."""

    def __str__(self) -> str:
        if self.places == self.missing:
            return self.change
        return f"{self.change} ({self.places} of the {self.missing} that wait)"


def fixes(request: PlacementRequest, decision: Decision, fleet: FleetModel, snapshot: Snapshot) -> tuple[Fix, ...]:
    """Return changes that help; none if no replica waits, or if the decision has problems."""
    if not decision.missing or decision.problems:
        return ()
    helpful: list[Fix] = []
    for change, after_change in [*_try_changes(request, decision, fleet, snapshot)][:TRIED]:
        if (places := decision.missing - after_change.missing) > 0:
            helpful.append(Fix(change, places, decision.missing))
    helpful.sort(key=lambda fix: -fix.places)  # the sort is stable, so equal ones stay in the order of the tries
    fitting = decision.desired - decision.missing
    if fitting <= 0:
        return tuple(helpful[:MOST])
    change = f"ask for {count_of(fitting, 'replica')} and not {decision.desired}"
    return (*helpful[:MOST], Fix(change, decision.missing, decision.missing))


def _try_changes(
    request: PlacementRequest, decision: Decision, fleet: FleetModel, snapshot: Snapshot
) -> Iterator[tuple[str, Decision]]:
    """Yield each change with the decision that it leads to."""
    now = snapshot.now
    reasons = [(refusal.nearest, refusal.reason) for refusal in decision.refusals]
    for change, edited in _edit_request(request, reasons):
        yield change, schedule(edited, fleet, now=now)
    for name, cause in reasons:
        grown = _grow_pool(snapshot.cluster.get(name), cause, decision.missing)
        if grown is None:
            continue
        fleet.observe_cluster(grown[1])
        yield grown[0], schedule(request, fleet, now=now)
        observe(fleet, snapshot.cluster[name])  # restore the original


def _edit_request(
    request: PlacementRequest, reasons: list[tuple[str, Reason]]
) -> Iterator[tuple[str, PlacementRequest]]:
    """Yield edits of the deployment that remove an obstacle: a toleration, or one cluster label less."""
    requirement = request.requirement
    for name, cause in reasons:
        match cause:
            # A drain is to empty the cluster: nobody should tolerate it.
            case Tainted(key, value, effect) if key != labels.DRAIN:
                toleration = Toleration(key, not value, value, effect)
                edited = replace(requirement, tolerations=(*requirement.tolerations, toleration))
                yield f"tolerate the taint {key}:{effect}, which {name} carries", replace(request, requirement=edited)
            case LabelDiffers(key, value, cache=""):
                edited = replace(requirement, labels=tuple(pair for pair in requirement.labels if pair[0] != key))
                yield f"do not ask for clusters with {key}={value}", replace(request, requirement=edited)
            case _:
                pass


def _grow_pool(cluster: InferenceCluster | None, cause: Reason, missing: int) -> tuple[str, InferenceCluster] | None:
    """Return the cluster with enough nodes in the pool that lacks some, and the suggestion to do that."""
    if cluster is None or cluster.status is None or not isinstance(cause, Full | TooSmall):
        return None
    shortage = (
        cause.needs * missing - max(cause.free, 0) if isinstance(cause, Full) else cause.needs * missing - cause.nodes
    )
    pool = next((item for item in cluster.status.gpu_pools if item.name == cause.pool), None)
    declared = next((item for item in cluster.spec.node_pools if item.name == cause.pool), None)
    if pool is None or shortage <= 0:
        return None
    nodes = (pool.nodes or 0) + shortage
    pools = tuple(
        item.model_copy(update={"nodes": nodes}) if item is pool else item for item in cluster.status.gpu_pools
    )
    status = cluster.status.model_copy(update={"gpu_pools": pools})
    field = "maxNodeCount" if declared and declared.max_node_count else "nodeCount"
    suggestion = f"raise {field} of pool {cause.pool} of {cluster.metadata.name} by {shortage}"
    return suggestion, cluster.model_copy(update={"status": status})
