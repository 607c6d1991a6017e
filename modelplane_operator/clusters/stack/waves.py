"""Decide which clusters of the fleet may change installed charts now: the canaries, one cluster, then one in twenty.

A cluster takes its turn by writing it into the status of its ServingStack, and begins only if a list of all stacks,
read after that write, does not have too many turns. Of two operators that give a turn at the same time, the one that
writes last reads both, so together they never exceed the limit (`keeps_turn`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from modelplane_operator.api.serving_stack import RolloutPhase

CHANGED_OF: Final = 20
"""Of so many clusters of the fleet, one may change its charts at a time; of fewer, one."""
TURNS: Final[frozenset[RolloutPhase]] = frozenset({"Upgrading", "Watching"})
"""The phases of a cluster that has its turn."""


@dataclass(frozen=True, slots=True)
class FleetMember:
    """A cluster of the fleet with installed charts, as its ServingStack describes it."""

    cluster: str
    """The name of its connection."""
    phase: RolloutPhase
    """The phase of its rollout; Waiting if the last one was to other versions or values."""
    canary: bool = field(default=False)
    """True if it is to be changed before clusters without that label."""
    ready: bool = field(default=True)
    """True if it is Ready. Others are changed last."""
    available: bool = field(default=True)
    """True if it may be disturbed now: it answers, and is not paused."""
    window: str = ""
    """The maintenance windows that it waits for, as a message; empty while one is open, and without any."""
    changes: frozenset[tuple[str, str]] = frozenset()
    """The charts that its rollout changes, with their new versions."""

    @property
    def waits(self) -> bool:
        """True if it waits for its turn, and could take it now."""
        return self.phase == "Waiting" and self.available and not self.window

    @property
    def order(self) -> tuple[bool, bool, str]:
        """The order of turns: canaries first, clusters that are not Ready last."""
        return not self.canary, not self.ready, self.cluster


def find_obstacle(cluster: str, fleet: Sequence[FleetMember]) -> str:
    """Return what a waiting cluster waits for before it may change its charts, as a message; empty if it may begin."""
    own = next(member for member in fleet if member.cluster == cluster)
    if not own.available:
        return "the cluster may not be disturbed now: it does not answer, or is paused"
    if own.window:
        return f"its maintenance window opens: {own.window}"
    ahead = sum(
        member.waits and member.canary == own.canary and member.order < own.order
        for member in fleet
        if member.cluster != cluster
    )
    return _find_obstacle(own, fleet, ahead)


def keeps_turn(cluster: str, fleet: Sequence[FleetMember]) -> bool | None:
    """Return True if a cluster that has its turn and changed nothing yet may begin, False if it must give the turn
    back, and None if it must wait until another one has.

    `fleet` must have been read after the turn was written.
    """
    own = next(member for member in fleet if member.cluster == cluster)
    if not _find_obstacle(own, fleet, 0):
        return True
    rivals = [member for member in fleet if member.phase in TURNS and member.cluster != cluster]
    stopped = any(member.phase == "Failed" for member in fleet)
    return None if not stopped and rivals and all(own.order < rival.order for rival in rivals) else False


def _find_obstacle(own: FleetMember, fleet: Sequence[FleetMember], ahead: int) -> str:
    """Return what a cluster waits for, behind so many others that take their turn before it."""
    if failed := sorted(member.cluster for member in fleet if member.phase == "Failed"):
        return f"the rollout stopped on {', '.join(failed[:3])}{', ...' if len(failed) > 3 else ''}"
    canaries = [member for member in fleet if member.canary]
    # A canary that waits for its window is not passed over.
    if not own.canary and any((one.phase == "Waiting" and one.available) or one.phase in TURNS for one in canaries):
        return "the canaries of the fleet change first"
    turns = sum(member.phase in TURNS for member in fleet if member.cluster != own.cluster)
    if turns + ahead < _compute_limit(own, fleet, canaries):
        return ""
    if own.canary:
        return "other clusters have their turn, and the canaries follow"
    if not _is_proven(own, fleet):
        return "another cluster changes first, alone"
    return f"the fleet changes one of {CHANGED_OF} clusters at a time"


def _compute_limit(own: FleetMember, fleet: Sequence[FleetMember], canaries: Sequence[FleetMember]) -> int:
    """Return how many clusters may have their turn at the same time, this one included."""
    if own.canary:
        return len(canaries)
    return max(1, len(fleet) // CHANGED_OF) if _is_proven(own, fleet) else 1


def _is_proven(own: FleetMember, fleet: Sequence[FleetMember]) -> bool:
    """True if every chart that the cluster is to get already passed on another cluster."""
    passed = {change for member in fleet if member.phase == "Done" for change in member.changes}
    return own.changes <= passed
