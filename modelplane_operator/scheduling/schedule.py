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

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from modelplane_operator.scheduling.cluster import Standing
from modelplane_operator.scheduling.decision import Decision, Held, Removal
from modelplane_operator.scheduling.failover import lost, next_loss
from modelplane_operator.scheduling.filling import Filled, fill
from modelplane_operator.scheduling.ledger import Site
from modelplane_operator.scheduling.need import Ask
from modelplane_operator.scheduling.placement import Placement, Replica
from modelplane_operator.scheduling.reasons import (
    ClusterGone,
    Duplicate,
    Going,
    Leaving,
    Moving,
    NoClusters,
    ScaledDown,
    Tainted,
)
from modelplane_operator.scheduling.settling import Settled, settle
from modelplane_operator.scheduling.survey import Fleet
from modelplane_operator.scheduling.taints import NO_EXECUTE, untolerated

Leaver = tuple[Replica, Leaving | Moving]


def schedule(ask: Ask, fleet: Fleet, *, now: datetime) -> Decision:
    """Decide where the deployment's replicas shall be. Never raises for anything that users have written."""
    namesakes = fleet.replicas(ask.owner.namespace, ask.owner.name)
    ours = [replica for replica in namesakes if replica.owner == ask.owner and not replica.going]
    if not fleet.size:
        return _untouched(ask, ours)
    sites = {replica.cluster: site for replica in namesakes if (site := fleet.site(replica.cluster)) is not None}

    staying, leaving = retain(ask, ours, sites)
    staying, surplus = scale_down(ask, staying, sites)
    settled = settle(ask, staying, sites)
    movable = (*lost(ask, (replica for replica, _ in settled.kept), namesakes, sites, now), *_unsettled(settled))
    missing = max(ask.replicas, 0) - len(staying)
    wanted = 0 if ask.problems else missing + len(movable)
    filled = fill(ask.need, wanted, settled, namesakes, fleet) if wanted else Filled()

    moving = movable[: max(len(filled.placements) - missing, 0)]
    moved = {replica.key for replica, _ in moving}
    kept = (placement for replica, placement in settled.kept if replica.key not in moved)
    return Decision(
        desired=ask.replicas,
        placements=_in_order((*kept, *filled.placements)),
        new=_in_order(filled.placements),
        held=tuple(held for held in settled.held if held.replica.key not in moved),
        removed=tuple(Removal(replica, why) for replica, why in (*leaving, *surplus, *moving)),
        checked=fleet.size,
        refusals=filled.refusals,
        problems=ask.problems,
        again_at=next_loss(ask, settled.staying, sites, now),
    )


def retain(ask: Ask, ours: Iterable[Replica], sites: Mapping[str, Site]) -> tuple[Sequence[Replica], Sequence[Leaver]]:
    """The replicas that stay on their clusters, and those that leave."""
    staying: dict[tuple[str, int], Replica] = {}
    leaving: list[Leaver] = []
    for replica in sorted(ours, key=lambda replica: replica.key):
        twin = staying.get((replica.cluster, replica.index))
        if why := _must_leave(ask, sites.get(replica.cluster)):
            leaving.append((replica, why))
        elif twin:
            leaving.append((replica, Duplicate(twin.key.name)))
        else:
            staying[replica.cluster, replica.index] = replica
    return tuple(staying.values()), leaving


def _must_leave(ask: Ask, site: Site | None) -> Leaving | None:
    if site is None:
        return ClusterGone()
    if site.cluster.standing is Standing.GOING:
        return Going()
    if taint := untolerated(site.cluster.taints, ask.need.tolerations, {NO_EXECUTE}):
        return Tainted(taint.key, taint.value, taint.effect)
    return None


def scale_down(
    ask: Ask, staying: Sequence[Replica], sites: Mapping[str, Site]
) -> tuple[Sequence[Replica], Sequence[Leaver]]:
    """As many of the replicas as are asked for, and those that are too many.

    One at a time goes one that works least; of those, one on the cluster that has most of ours by then, and the later
    by name; of those, the one with the highest index. How many a cluster has by then is the replica's place in the
    cluster's own order, so that sorting finds them all.
    """
    places = Counter[str]()
    order: list[tuple[tuple[int, int, str, int], Replica]] = []
    for replica in sorted(staying, key=lambda replica: (_illness(replica, sites), replica.index)):
        places[replica.cluster] += 1
        place = (_illness(replica, sites), places[replica.cluster], replica.cluster, replica.index)
        order.append((place, replica))
    order.sort(key=lambda row: row[0])
    surplus = {replica.key for _, replica in order[max(ask.replicas, 0) :]}
    leaving = [(replica, ScaledDown(ask.replicas)) for replica in staying if replica.key in surplus]
    return [replica for replica in staying if replica.key not in surplus], leaving


def _illness(replica: Replica, sites: Mapping[str, Site]) -> int:
    site = sites.get(replica.cluster)
    if site is None or site.cluster.standing is not Standing.READY:
        return 2
    return 0 if replica.ready else 1


def _unsettled(settled: Settled) -> Iterable[Leaver]:
    return ((held.replica, held.why) for held in settled.held if held.why)


def _in_order(placements: Iterable[Placement]) -> tuple[Placement, ...]:
    return tuple(sorted(placements, key=lambda placement: (placement.cluster, placement.index)))


def _untouched(ask: Ask, ours: Sequence[Replica]) -> Decision:
    """No cluster at all is more likely a list not yet read than a fleet that is gone: only the count is heeded."""
    staying, surplus = scale_down(ask, ours, {})
    return Decision(
        desired=ask.replicas,
        placements=(),
        new=(),
        held=tuple(Held(replica, None) for replica in staying),
        removed=tuple(Removal(replica, why) for replica, why in surplus),
        checked=0,
        refusals=(),
        problems=(*ask.problems, NoClusters()),
    )
