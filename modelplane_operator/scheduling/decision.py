"""The scheduler's decision about a deployment, with all reasons."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from modelplane_operator.api.placement import Placement
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.problems import Problem
from modelplane_operator.scheduling.reasons import Distance, Leaving, Moving, Outdated, Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """A number of clusters that take no replica for the same kind of reason, with one example."""

    clusters: int
    """Number of clusters."""
    nearest: str
    """Name of the cluster that is nearest to taking a replica."""
    reason: Reason
    """Reason of that cluster."""
    distance: Distance = field(default=(), compare=False)
    """Distance of that cluster from taking a replica."""


@dataclass(frozen=True, slots=True)
class RetainedReplica:
    """A replica that stays unchanged, because the deployment's new shape fits nowhere."""

    replica: Replica
    reason: Outdated | None
    """Reason; None while the deployment's requirements are unknown, as the decision's problems explain."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A replica that is to be deleted. Its nodes stay charged until it is gone."""

    replica: Replica
    reason: Leaving | Moving
    """Reason of the deletion. A replica that moves has a new place already."""


@dataclass(frozen=True, slots=True)
class BlockedReplica:
    """A replica that is to leave its cluster but stays, because there is no other place for it."""

    replica: Replica
    reason: Moving


@dataclass(frozen=True, slots=True)
class Decision:
    """The placement of a deployment's replicas.

    Every observed replica is in exactly one of `placements`, `retained` and `removed`, unless it is being deleted.
    """

    desired: int
    """Number of desired replicas."""
    placements: tuple[Placement, ...]
    """Replicas in the current shape, existing and new, by cluster and index."""
    new: tuple[Placement, ...]
    """Placements of replicas that do not exist yet."""
    retained: tuple[RetainedReplica, ...]
    """Replicas that stay unchanged in an outdated shape."""
    removed: tuple[Removal, ...]
    """Replicas to delete."""
    blocked: tuple[BlockedReplica, ...]
    """Replicas among the staying ones that are to leave their clusters."""
    checked: int
    """Number of clusters that were considered."""
    refusals: tuple[Refusal, ...]
    """Reasons why no more replicas were placed, nearest misses first.

    While replicas are missing, they cover all clusters that were checked, otherwise the ones without a new replica.
    Empty when no place was needed.
    """
    problems: tuple[Problem, ...]
    """Problems that prevent the placement of new replicas."""
    requeue_at: datetime | None = None
    """Time of the next decision if nothing happens before."""

    @property
    def missing(self) -> int:
        """Return the number of desired replicas that are neither placed nor retained."""
        return max(self.desired - len(self.placements) - len(self.retained), 0)

    @property
    def is_complete(self) -> bool:
        """True if every desired replica has a place and may stay there."""
        return not (self.missing or self.problems or self.blocked or any(entry.reason for entry in self.retained))


def tally(refusals: Iterable[Refusal], others: Iterable[Refusal]) -> tuple[Refusal, ...]:
    """Add further refusals. Return one for each group, the nearest misses first."""
    groups = {refusal.reason.group: refusal for refusal in refusals}
    for refusal in others:
        entry, existing = refusal, groups.get(refusal.reason.group)
        if existing is not None:
            nearest = min(existing, refusal, key=lambda item: (item.distance, item.nearest))
            entry = replace(nearest, clusters=existing.clusters + refusal.clusters)
        groups[entry.reason.group] = entry
    return tuple(groups[group] for group in sorted(groups))
