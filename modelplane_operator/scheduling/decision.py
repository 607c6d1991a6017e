"""What the scheduler decides for one deployment, with all its reasons."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from modelplane_operator.api.placement import Placement
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.problems import Problem
from modelplane_operator.scheduling.reasons import Leaving, Moving, Outdated, Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """So many clusters take no replica for the same kind of reason; one of them, and the reason in its case."""

    clusters: int
    nearest: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Held:
    """A replica that stays exactly as it is, because what the deployment asks for now cannot be had anywhere."""

    replica: Replica
    why: Outdated | None
    """None while it is not known what the deployment asks for: the decision's problems say why."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A replica that is not to stay where it is. Its nodes stay taken until it is gone."""

    replica: Replica
    why: Leaving | Moving


@dataclass(frozen=True, slots=True)
class Stuck:
    """A replica that is to leave its cluster, and stays for want of another place."""

    replica: Replica
    why: Moving


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a deployment's replicas shall be. Every replica observed is in exactly one of `placements`, `held` and
    `removed`, unless it is being deleted already."""

    desired: int
    placements: tuple[Placement, ...]
    """The replicas in their present shape, kept and new, by cluster and index."""
    new: tuple[Placement, ...]
    """Those of the placements that did not exist before."""
    held: tuple[Held, ...]
    removed: tuple[Removal, ...]
    """Replicas that are to be deleted."""
    stuck: tuple[Stuck, ...]
    """Those of the replicas that stay which are to leave their clusters."""
    checked: int
    """Clusters that were asked for room."""
    refusals: tuple[Refusal, ...]
    """Why no more replicas were placed: nearest misses first. While replicas are missing these cover all clusters that
    were checked, otherwise those that got no new replica. Empty when no place was looked for."""
    problems: tuple[Problem, ...]
    requeue_at: datetime | None = None
    """When to decide again even if nothing happens."""

    @property
    def missing(self) -> int:
        """Replicas that are asked for and neither placed nor held."""
        return max(self.desired - len(self.placements) - len(self.held), 0)

    @property
    def settled(self) -> bool:
        """Whether every replica that is asked for has a place, and may stay there."""
        return not (self.missing or self.problems or self.stuck or any(held.why for held in self.held))


def tally(counted: Iterable[Refusal], others: Iterable[tuple[str, Reason]]) -> tuple[Refusal, ...]:
    """The refusals with further (cluster, reason) counted in, nearest misses first."""
    groups = {refusal.reason.group: refusal for refusal in counted}
    for cluster, reason in others:
        known = groups.get(reason.group)
        mine = Refusal(1, cluster, reason)
        groups[reason.group] = mine if known is None else _together(known, mine)
    return tuple(groups[group] for group in sorted(groups))


def _together(one: Refusal, other: Refusal) -> Refusal:
    nearest = min(one, other, key=lambda refusal: (refusal.reason.nearness, refusal.nearest))
    return replace(nearest, clusters=one.clusters + other.clusters)
