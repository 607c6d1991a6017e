"""What would give a replica a place: each change is tried, and told only if the scheduler then finds one.

They come in the order of how little they change: first what the deployment's author can edit, then what takes nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kubeloop.words import counted
from modelplane_operator.api import InferenceCluster
from modelplane_operator.ask.answers.snapshot import Snapshot, observe
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.reasons import Full, LabelDiffers, Reason, Tainted, TooSmall
from modelplane_operator.scheduling.requirement import PlacementRequest
from modelplane_operator.scheduling.schedule import schedule
from modelplane_operator.scheduling.taints import Toleration

MOST = 5
TRIED = 12


@dataclass(frozen=True, slots=True)
class Fix:
    """A change, and how many more of the replicas would have a place with it."""

    change: str
    places: int
    missing: int
    """Of so many."""

    def __str__(self) -> str:
        if self.places == self.missing:
            return self.change
        return f"{self.change} ({self.places} of the {self.missing} that wait)"


def fixes(asked: PlacementRequest, decision: Decision, fleet: FleetModel, snapshot: Snapshot) -> tuple[Fix, ...]:
    """None when no replica waits, or when it is not known what is asked for."""
    if not decision.missing or decision.problems:
        return ()
    found: list[Fix] = []
    for change, more in [*_tries(asked, decision, fleet, snapshot)][:TRIED]:
        if (places := decision.missing - more.missing) > 0:
            found.append(Fix(change, places, decision.missing))
    found.sort(key=lambda fix: -fix.places)  # of equals, the order of the tries stays
    return (*found[:MOST], *_fewer(decision))


def _fewer(decision: Decision) -> Iterator[Fix]:
    if (placed := decision.desired - decision.missing) > 0:
        copies = counted(placed, "replica")
        yield Fix(f"ask for {copies} and not {decision.desired}", decision.missing, decision.missing)


def _tries(
    asked: PlacementRequest, decision: Decision, fleet: FleetModel, snapshot: Snapshot
) -> Iterator[tuple[str, Decision]]:
    now = snapshot.now
    reasons = [(refusal.nearest, refusal.reason) for refusal in decision.refusals]
    for change, edited in _edits(asked, reasons):
        yield change, schedule(edited, fleet, now=now)
    for name, why in reasons:
        grown = _grown(snapshot.cluster.get(name), why, decision.missing)
        if grown is None:
            continue
        fleet.observe_cluster(grown[1])
        yield grown[0], schedule(asked, fleet, now=now)
        observe(fleet, snapshot.cluster[name])  # as it was


def _edits(asked: PlacementRequest, reasons: list[tuple[str, Reason]]) -> Iterator[tuple[str, PlacementRequest]]:
    wanted = asked.requirement
    for name, why in reasons:
        match why:
            case Tainted(key, value, effect):
                toleration = Toleration(key, not value, value, effect)
                edited = replace(wanted, tolerations=(*wanted.tolerations, toleration))
                yield f"tolerate the taint {key}:{effect}, which {name} carries", replace(asked, requirement=edited)
            case LabelDiffers(key, value):
                edited = replace(wanted, labels=tuple(pair for pair in wanted.labels if pair[0] != key))
                yield f"do not ask for clusters with {key}={value}", replace(asked, requirement=edited)
            case _:
                pass


def _grown(cluster: InferenceCluster | None, why: Reason, missing: int) -> tuple[str, InferenceCluster] | None:
    """The cluster with enough nodes in the pool that is short of some."""
    if cluster is None or cluster.status is None or not isinstance(why, Full | TooSmall):
        return None
    short = why.needs * missing - max(why.free, 0) if isinstance(why, Full) else why.needs * missing - why.nodes
    pool = next((one for one in cluster.status.gpu_pools if one.name == why.pool), None)
    declared = next((one for one in cluster.spec.node_pools if one.name == why.pool), None)
    if pool is None or short <= 0:
        return None
    nodes = (pool.nodes or 0) + short
    pools = tuple(one.model_copy(update={"nodes": nodes}) if one is pool else one for one in cluster.status.gpu_pools)
    status = cluster.status.model_copy(update={"gpu_pools": pools})
    field = "maxNodeCount" if declared and declared.max_node_count else "nodeCount"
    words = f"raise {field} of pool {why.pool} of {cluster.metadata.name} by {short}"
    return words, cluster.model_copy(update={"status": status})
