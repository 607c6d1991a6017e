"""Where the replicas of a deployment shall run.

A decision is a function of the deployment, the fleet and the time, and of nothing else: deciding again over the result
changes nothing. It is taken in four steps.

1. **Retain.** Every replica stays where it is, unless its cluster is gone or going, or carries a NoExecute taint that
   the deployment does not tolerate. No better cluster, no failing one and no edited label selector moves what runs.
2. **Scale down.** When more stay than the deployment asks for, replicas that do not work go first, then those on the
   clusters that have most of them.
3. **Settle.** Every replica that stays takes the deployment's present shape: in the pools that it has, else in others
   of its cluster. One that finds no room for that stays as it is.
4. **Fill.** What is missing is placed one by one, each on the cluster that has fewest of the deployment's replicas,
   and of those on the one that is least used. When all are placed, replicas that could not settle, or whose cluster is
   lost, move: each new place found is for one of them, which then goes.

What the scheduler refuses to do: it never books more nodes than a pool has; it never deletes a replica because
something could not be read, or because the changed deployment fits nowhere; it never spreads an engine over two pools;
it never moves replicas to balance the fleet. A replica that goes keeps its nodes until it is gone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Protocol

from modelplane_operator.scheduling import failover
from modelplane_operator.scheduling.cluster import Standing
from modelplane_operator.scheduling.decision import Decision, Held, Refusal, Removal, tally
from modelplane_operator.scheduling.ledger import Site
from modelplane_operator.scheduling.matching import options
from modelplane_operator.scheduling.need import Ask, Need
from modelplane_operator.scheduling.placement import Placement, Replica, charges
from modelplane_operator.scheduling.reasons import (
    ClusterGone,
    Duplicate,
    Going,
    Leaving,
    Lost,
    Moving,
    NoClusters,
    Outdated,
    Reason,
    ScaledDown,
    Spare,
    Tainted,
)
from modelplane_operator.scheduling.settling import settled
from modelplane_operator.scheduling.survey import Answer, Candidate, Fit, Survey, answer, fit, placed
from modelplane_operator.scheduling.taints import NO_EXECUTE, untolerated


class Fleet(Protocol):
    """What is known of the fleet. Its answers are values, and stay the same while a decision is taken."""

    @property
    def size(self) -> int:
        """Clusters."""
        ...

    def site(self, cluster: str) -> Site | None:
        """A cluster and its free nodes."""
        ...

    def replicas(self, namespace: str, deployment: str) -> tuple[Replica, ...]:
        """Replicas under a deployment's name, by their own names; some may belong to one that had the name before."""
        ...

    def survey(self, need: Need, *, limit: int, apart: frozenset[str]) -> Survey:
        """What all clusters, but for those kept apart, answer to the need; at most so many candidates."""
        ...


def schedule(ask: Ask, fleet: Fleet, *, now: datetime) -> Decision:
    """Decide where the deployment's replicas shall be. Never raises for what users have written."""
    namesakes = fleet.replicas(ask.owner.namespace, ask.owner.name)
    ours = tuple(replica for replica in namesakes if replica.owner == ask.owner and not replica.going)
    sites = {name: site for name in {replica.cluster for replica in ours} if (site := fleet.site(name)) is not None}
    if not fleet.size:
        return _frozen(ask, ours)
    staying, leaving = retain(ask, ours, sites)
    staying, surplus = scale_down(ask.replicas, staying, sites)
    settled = settle(ask, staying, sites)
    movable = _movable(ask, settled, namesakes, now)
    wanted = ask.replicas - len(staying) + len(movable) if not ask.problems else 0
    filled = fill(ask.need, wanted, settled, namesakes, fleet)
    moved = movable[: max(len(filled.placements) - (ask.replicas - len(staying)), 0)]
    ...


@dataclass(frozen=True, slots=True)
class Settled:
    kept: tuple[tuple[Replica, Placement], ...]
    held: tuple[Held, ...]
    sites: Mapping[str, Site]
