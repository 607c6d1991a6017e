"""Where the replicas of a deployment shall run.

A decision is a function of the deployment, the fleet and the time, and of nothing else: deciding again over the result
changes nothing. It is taken in four steps.

1. **Retain.** Every replica stays where it is, unless its cluster is gone. No better cluster, no failing one and no
   edited label selector moves what runs.
2. **Settle.** Every replica that stays takes the deployment's present shape: in the pools that it has, else in others
   of its cluster. One that finds no room for that stays as it is.
3. **Scale down.** Some replicas are to move: those that could not settle, those whose cluster is being deleted or
   carries a NoExecute taint that the deployment does not tolerate, those whose cluster is lost, and those that find no
   nodes since their pool has lost some. When there are more replicas than the deployment asks for, these go first,
   then those that do not work, then those on the clusters that have most of them.
4. **Fill.** What is missing is placed one by one, each on the cluster that has fewest of the deployment's replicas,
   and of those on the one that is least used. Of a deployment with a cache those that hold all of its weights come
   first, then those to which they are to come, and the others when these are full. When all are placed, each further
   place is for a replica that is to move, which then goes. The others stay until there is a place, unless their cluster
   is drained by force.

A move takes many decisions: what takes a replica's place exists long before that replica goes, and until then there is
one too many. So both ways for a replica to go, scaling down and moving, choose in the same order: whoever was to move
in the first decision goes in the following ones.

What the scheduler refuses to do: it never books more nodes than a pool has; it never deletes a replica because
something could not be read, or because the changed deployment fits nowhere; it never spreads an engine over two pools;
it never moves replicas to balance the fleet. A replica that goes keeps its nodes until it is gone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from kubeloop.objects import Key
from modelplane_operator.api.placement import Placement
from modelplane_operator.scheduling.cluster import ClusterPhase
from modelplane_operator.scheduling.decision import Decision, Held, Removal, Stuck
from modelplane_operator.scheduling.failover import displaced, lost, next_displaced, next_loss
from modelplane_operator.scheduling.filling import Filled, fill
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.problems import NoClusters
from modelplane_operator.scheduling.reasons import (
    ClusterGone,
    ClusterTerminating,
    Displaced,
    Duplicate,
    Forced,
    Leaving,
    Lost,
    Moving,
    Outdated,
    ScaledDown,
    Tainted,
)
from modelplane_operator.scheduling.requirement import PlacementRequest
from modelplane_operator.scheduling.settling import Settled, settle
from modelplane_operator.scheduling.survey import FleetSnapshot
from modelplane_operator.scheduling.taints import NO_EXECUTE, untolerated

Leaver = tuple[Replica, Leaving | Moving]


def schedule(request: PlacementRequest, fleet: FleetSnapshot, *, now: datetime) -> Decision:
    """Decide where the deployment's replicas shall be. Never raises for anything that users have written."""
    namesakes = fleet.replicas(request.owner.namespace, request.owner.name)
    ours = [replica for replica in namesakes if replica.owner == request.owner and not replica.terminating]
    if not fleet.size:
        return _untouched(request, ours)
    infos = {replica.cluster: info for replica in namesakes if (info := fleet.info(replica.cluster)) is not None}

    staying, leaving = retain(ours, infos)
    settled = settle(request, staying, infos)
    order = worst_first(staying, infos)
    given_up = (*displaced(order, infos, now), *lost(request, order, namesakes, infos, now))
    movable = to_move(request, order, settled, given_up, infos)
    surplus = scale_down(request, order, movable)
    gone = {replica.key for replica, _ in surplus}
    settled = settled.without(gone)
    stuck = [(replica, why) for replica, why in movable.values() if replica.key not in gone]
    missing = max(request.replicas, 0) - len(settled.staying)
    wanted = 0 if request.problems else missing + len(stuck)
    filled = Filled()
    if wanted:
        filled = fill(
            request.requirement, wanted, settled, namesakes, fleet, staged=request.staged, coming=request.coming
        )

    found = max(len(filled.placements) - missing, 0)
    moving, stuck = stuck[:found], stuck[found:]
    forced = [(replica, Forced(why)) for replica, why in stuck if _is_forced(why, infos[replica.cluster])]
    settled = settled.without({replica.key for replica, _ in (*moving, *forced)})
    return Decision(
        desired=request.replicas,
        placements=_in_order((*(placement for _, placement in settled.kept), *filled.placements)),
        new=_in_order(filled.placements),
        held=settled.held,
        removed=tuple(Removal(replica, why) for replica, why in (*leaving, *surplus, *moving, *forced)),
        stuck=tuple(
            Stuck(replica, why)
            for replica, why in stuck
            if not isinstance(why, Outdated) and not _is_forced(why, infos[replica.cluster])
        ),
        checked=fleet.size,
        refusals=filled.refusals,
        problems=request.problems,
        requeue_at=min(
            filter(None, (next_loss(request, settled.staying, infos, now), next_displaced(settled.staying, now))),
            default=None,
        ),
    )


def retain(ours: Iterable[Replica], infos: Mapping[str, ClusterInfo]) -> tuple[Sequence[Replica], Sequence[Leaver]]:
    """The replicas that stay on their clusters, and those that leave."""
    staying: dict[tuple[str, int], Replica] = {}
    leaving: list[Leaver] = []
    for replica in sorted(ours, key=lambda replica: replica.key):
        twin = staying.get((replica.cluster, replica.index))
        if replica.cluster not in infos:
            leaving.append((replica, ClusterGone()))
        elif twin:
            leaving.append((replica, Duplicate(twin.key.name)))
        else:
            staying[replica.cluster, replica.index] = replica
    return tuple(staying.values()), leaving


def to_move(
    request: PlacementRequest,
    staying: Sequence[Replica],
    settled: Settled,
    given_up: Iterable[tuple[Replica, Lost | Displaced]],
    infos: Mapping[str, ClusterInfo],
) -> Mapping[Key, tuple[Replica, Moving]]:
    """Which of the replicas are to run elsewhere, and why, in the order in which they are given.

    Those that only have another shape than they should come last: whoever drains a cluster waits for none of them.
    """
    overdue = {replica.key: why for replica, why in given_up}
    unsettled = {held.replica.key: held.why for held in settled.held if held.why}

    def why(replica: Replica) -> Moving | None:
        return _drained(request, infos[replica.cluster]) or overdue.get(replica.key) or unsettled.get(replica.key)

    found = [(replica, reason) for replica in staying if (reason := why(replica)) is not None]
    found.sort(key=lambda row: isinstance(row[1], Outdated))
    return {replica.key: (replica, reason) for replica, reason in found}


def _drained(request: PlacementRequest, info: ClusterInfo) -> ClusterTerminating | Tainted | None:
    if info.cluster.phase is ClusterPhase.TERMINATING:
        return ClusterTerminating()
    if taint := untolerated(info.cluster.taints, request.requirement.tolerations, {NO_EXECUTE}):
        return Tainted(taint.key, taint.value, taint.effect)
    return None


def scale_down(
    request: PlacementRequest, order: Sequence[Replica], movable: Mapping[Key, tuple[Replica, Moving]]
) -> Sequence[Leaver]:
    """The replicas that are too many: first those that are to move, then the others, each as in the order."""
    others = ((replica, ScaledDown(request.replicas)) for replica in order if replica.key not in movable)
    leavers: list[Leaver] = [*movable.values(), *others]
    return leavers[: max(len(order) - max(request.replicas, 0), 0)]


def worst_first(staying: Iterable[Replica], infos: Mapping[str, ClusterInfo]) -> Sequence[Replica]:
    """The order in which replicas go.

    First one that works least; of those, one on the cluster that has most of ours by then, and the later by name; of
    those, the one with the highest index. How many a cluster has by then is the replica's place in the cluster's own
    order, so that sorting finds them all.
    """
    places = Counter[str]()
    order: list[tuple[tuple[int, int, str, int], Replica]] = []
    for replica in sorted(staying, key=lambda replica: (_illness(replica, infos), replica.index)):
        places[replica.cluster] += 1
        place = (_illness(replica, infos), places[replica.cluster], replica.cluster, replica.index)
        order.append((place, replica))
    order.sort(key=lambda row: row[0], reverse=True)
    return [replica for _, replica in order]


def _illness(replica: Replica, infos: Mapping[str, ClusterInfo]) -> int:
    info = infos.get(replica.cluster)
    if info is None or info.cluster.phase is not ClusterPhase.READY:
        return 2
    return 0 if replica.ready else 1


def _is_forced(why: Moving, info: ClusterInfo) -> bool:
    """Whether a replica without another place goes all the same."""
    return isinstance(why, ClusterTerminating | Tainted) and info.cluster.drained_by_force


def _in_order(placements: Iterable[Placement]) -> tuple[Placement, ...]:
    return tuple(sorted(placements, key=lambda placement: (placement.cluster, placement.index)))


def _untouched(request: PlacementRequest, ours: Sequence[Replica]) -> Decision:
    """No cluster at all is more likely a list not yet read than a fleet that is gone: only the count is heeded."""
    surplus = scale_down(request, worst_first(ours, {}), {})
    gone = {replica.key for replica, _ in surplus}
    return Decision(
        desired=request.replicas,
        placements=(),
        new=(),
        held=tuple(Held(replica, None) for replica in ours if replica.key not in gone),
        removed=tuple(Removal(replica, why) for replica, why in surplus),
        stuck=(),
        checked=0,
        refusals=(),
        problems=(*request.problems, NoClusters()),
    )
