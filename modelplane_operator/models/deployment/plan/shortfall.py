"""Which reason says best why replicas have no place: by the nearest miss of the scheduler's."""

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


def unplaced(decision: Decision) -> ReplicasScheduled:
    """Why some replica has no place."""
    if any(isinstance(found, LabelConflict) for found in decision.problems):
        return ReplicasScheduled.NO_MATCHING_CLUSTERS
    misses = (refusal.reason for refusal in decision.refusals if not isinstance(refusal.reason, Spare))
    held = (one.why.why for one in decision.held if one.why)
    nearest = next(misses, None) or next(held, None)
    return _reason(nearest) if nearest else ReplicasScheduled.INSUFFICIENT_CAPACITY


def _reason(miss: Reason) -> ReplicasScheduled:
    match miss:
        case Full() | Crowded() | TooSmall() | Scattered() | Spare():
            return ReplicasScheduled.INSUFFICIENT_CAPACITY
        case NotReady() | ClusterUnreachable() | NoGateway() | NoGangs() | ClusterTerminating():
            return ReplicasScheduled.CLUSTERS_NOT_READY
        case NoPools(why) if why:
            return _reason(why)
        case Tainted():
            return ReplicasScheduled.TAINTED
        case UnknownPools() | Split() | NothingToClaim() | NoMatch() | NoPools():
            return ReplicasScheduled.NO_MATCHING_DEVICES
        case LabelDiffers():
            return ReplicasScheduled.NO_MATCHING_CLUSTERS
        case _:
            assert_never(miss)
