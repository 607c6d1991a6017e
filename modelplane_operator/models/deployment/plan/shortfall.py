"""Choose the reason of ReplicasScheduled for replicas without a cluster, and the cause that Ready repeats of it."""

from __future__ import annotations

from typing import assert_never

from kubeloop.words import count_of
from modelplane_operator.api.model_deployment import ReplicasScheduled
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.problems import LabelConflict
from modelplane_operator.scheduling.prose import describe_blocked, problem, reason, remedy
from modelplane_operator.scheduling.reasons import (
    ClusterTerminating,
    ClusterUnreachable,
    Crowded,
    Fragmented,
    Full,
    LabelDiffers,
    NoCacheStorage,
    NoGangs,
    NoGateway,
    NoMatch,
    NoPools,
    NothingToClaim,
    NotReady,
    Reason,
    Scattered,
    Spare,
    Split,
    Tainted,
    TooSmall,
    TooSmallNode,
    UnknownPools,
)


def explain_unplaced(decision: Decision) -> ReplicasScheduled:
    """Return the reason of ReplicasScheduled when some replica has no cluster.

    A label conflict decides alone. Otherwise the nearest miss of a cluster decides, then the first replica that
    keeps an outdated spec because the new one fits nowhere. Without either, the fleet lacks capacity.
    """
    if any(isinstance(conflict, LabelConflict) for conflict in decision.problems):
        return ReplicasScheduled.NO_MATCHING_CLUSTERS
    misses = (refusal.reason for refusal in decision.refusals if not isinstance(refusal.reason, Spare))
    blocked = (outdated.reason.reason for outdated in decision.retained if outdated.reason)
    nearest = next(misses, None) or next(blocked, None)
    return _reason(nearest) if nearest else ReplicasScheduled.INSUFFICIENT_CAPACITY


def headline(decision: Decision) -> str:
    """Return the obstacle that matters most, with what mends it: for Ready, beside the whole decision in
    ReplicasScheduled.
    """
    if decision.problems:
        return problem(decision.problems[0])
    figures = f"{len(decision.placements)} of {count_of(decision.desired, 'replica')} placed"
    nearest = next((refusal for refusal in decision.refusals if not isinstance(refusal.reason, Spare)), None)
    if decision.missing:
        return f"{figures}; cluster {_with_remedy(nearest.nearest, nearest.reason)}" if nearest else figures
    outdated = [retained.reason for retained in decision.retained if retained.reason]
    if outdated:
        keep = f"{count_of(len(outdated), 'replica')} keep{'s' if len(outdated) == 1 else ''} running the previous spec"
        missed = _with_remedy(nearest.nearest, nearest.reason) if nearest else reason(outdated[0].reason)
        return f"{keep}; the new one fits no cluster: {missed}"
    return describe_blocked(decision) if decision.blocked else figures


def _with_remedy(cluster: str, miss: Reason) -> str:
    """Return why a cluster takes no replica, and what would help."""
    help_text = remedy(miss)
    return f"{cluster}: {reason(miss)}{f' ({help_text})' if help_text else ''}"


def _reason(miss: Reason) -> ReplicasScheduled:
    """Return the reason of ReplicasScheduled that stands for a scheduler's reason."""
    match miss:
        case Full() | Fragmented() | Crowded() | TooSmall() | TooSmallNode() | Scattered() | Spare():
            return ReplicasScheduled.INSUFFICIENT_CAPACITY
        case NotReady() | ClusterUnreachable() | NoGateway() | NoGangs() | ClusterTerminating():
            return ReplicasScheduled.CLUSTERS_NOT_READY
        case NoPools(cause) if cause:
            return _reason(cause)
        case NoCacheStorage():
            return ReplicasScheduled.NO_CACHE_STORAGE
        case Tainted():
            return ReplicasScheduled.TAINTED
        case UnknownPools() | Split() | NothingToClaim() | NoMatch() | NoPools():
            return ReplicasScheduled.NO_MATCHING_DEVICES
        case LabelDiffers():
            return ReplicasScheduled.NO_MATCHING_CLUSTERS
        case _:
            assert_never(miss)
