"""Choose the reason of ReplicasScheduled for replicas without a cluster, from the scheduler's nearest miss."""

from __future__ import annotations

from typing import assert_never

from modelplane_operator.api.model_deployment import ReplicasScheduled
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.problems import LabelConflict
from modelplane_operator.scheduling.reasons import (
    ClusterTerminating,
    ClusterUnreachable,
    Crowded,
    Full,
    LabelDiffers,
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


def _reason(miss: Reason) -> ReplicasScheduled:
    """Return the reason of ReplicasScheduled that stands for a scheduler's reason."""
    match miss:
        case Full() | Crowded() | TooSmall() | Scattered() | Spare():
            return ReplicasScheduled.INSUFFICIENT_CAPACITY
        case NotReady() | ClusterUnreachable() | NoGateway() | NoGangs() | ClusterTerminating():
            return ReplicasScheduled.CLUSTERS_NOT_READY
        case NoPools(cause) if cause:
            return _reason(cause)
        case Tainted():
            return ReplicasScheduled.TAINTED
        case UnknownPools() | Split() | NothingToClaim() | NoMatch() | NoPools():
            return ReplicasScheduled.NO_MATCHING_DEVICES
        case LabelDiffers():
            return ReplicasScheduled.NO_MATCHING_CLUSTERS
        case _:
            assert_never(miss)
