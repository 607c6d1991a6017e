"""Decide where the replicas of a deployment run.

A decision depends only on the deployment, the fleet and the time. Repeating it over its own result changes nothing. It
has four steps.

1. **Retain.** Every replica stays where it is unless its cluster is gone. No better or failing cluster and no edited
label selector moves a running replica.

2. **Settle.** Every staying replica takes the current shape of the deployment, in its own pools or in others of its
cluster. If there is no room, it stays unchanged.

3. **Scale down.** Some replicas have to move: those that could not settle, those whose cluster is lost, terminating or
has a NoExecute taint that is not tolerated, and those without nodes because their pool has shrunk. If there are more
replicas than desired, these are deleted first, then replicas that do not work, then replicas on the clusters with the
most of them; a replica that only could not settle is deleted after those on clusters that do not work.

4. **Fill.** Missing replicas are placed one by one, each on the cluster with the fewest replicas of the deployment, and
of those on the least used. With a cache, clusters with all weights come first, then clusters that will get them, then
the others. When all are placed, each further place is for a replica that has to move, which is then deleted. The rest
stay until there is a place, unless their cluster is drained by force.

A move takes several decisions: the replacement exists long before the old replica is gone, and until then there is one
replica too many. So scaling down and moving choose replicas in the same order, and the replica chosen first is the one
that goes later.

The scheduler never books more nodes than a pool has. It never deletes a replica because something could not be read, or
because the changed deployment fits nowhere. It never splits an engine over two pools, and never moves replicas to
balance the fleet. A deleted replica keeps its nodes until it is gone.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from kubeloop.objects import Key
from modelplane_operator.api.placement import Placement
from modelplane_operator.scheduling.cluster import ClusterPhase
from modelplane_operator.scheduling.decision import BlockedReplica, Decision, Removal, RetainedReplica
from modelplane_operator.scheduling.failover import find_displaced, find_lost, next_displaced, next_loss
from modelplane_operator.scheduling.filling import Filled, fill
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.problems import NoClusters
from modelplane_operator.scheduling.reasons import (
    ClusterDeleted,
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
from modelplane_operator.scheduling.settling import StableReplicas, settle
from modelplane_operator.scheduling.survey import FleetSnapshot
from modelplane_operator.scheduling.taints import NO_EXECUTE, find_untolerated

Leaver = tuple[Replica, Leaving | Moving]


def schedule(
    request: PlacementRequest, fleet: FleetSnapshot, *, now: datetime, leaving: Container[Key] = frozenset()
) -> Decision:
    """Decide where the deployment's replicas run. Never raise for anything that users have written.

    Replicas in `leaving` count as being deleted already: an earlier decision about the same fleet removes them.
    """
    namesakes = [
        replace(replica, terminating=True) if replica.key in leaving else replica
        for replica in fleet.replicas(request.owner.namespace, request.owner.name)
    ]
    own = [replica for replica in namesakes if replica.owner == request.owner and not replica.terminating]
    if not fleet.size:
        return _decide_without_clusters(request, own)
    infos = {replica.cluster: info for replica in namesakes if (info := fleet.info(replica.cluster)) is not None}

    staying, abandoned = retain(own, infos)
    settled = settle(request, staying, infos)
    order = worst_first(staying, infos)
    given_up = (*find_displaced(order, infos, now), *find_lost(request, order, namesakes, infos, now))
    movable = to_move(request, order, settled, given_up, infos)
    surplus = scale_down(request, order, movable, infos)
    deleted = {replica.key for replica, _ in surplus}
    settled = settled.without(deleted)
    blocked = [(replica, reason) for replica, reason in movable.values() if replica.key not in deleted]
    missing = max(request.replicas, 0) - len(settled.staying)
    places_needed = 0 if request.problems else missing + len(blocked)
    filled = Filled()
    if places_needed:
        filled = fill(
            request.requirement, places_needed, settled, namesakes, fleet, staged=request.staged, coming=request.coming
        )

    # Missing replicas come first. Only further places are for replicas that have to move.
    moves = max(len(filled.placements) - missing, 0)
    moving, blocked = blocked[:moves], blocked[moves:]
    forced = [(replica, Forced(reason)) for replica, reason in blocked if _is_forced(reason, infos[replica.cluster])]
    settled = settled.without({replica.key for replica, _ in (*moving, *forced)})
    return Decision(
        desired=request.replicas,
        placements=_sort_placements((*(placement for _, placement in settled.current), *filled.placements)),
        new=_sort_placements(filled.placements),
        retained=settled.retained,
        removed=tuple(Removal(replica, reason) for replica, reason in (*abandoned, *surplus, *moving, *forced)),
        blocked=tuple(
            BlockedReplica(replica, reason)
            for replica, reason in blocked
            if not isinstance(reason, Outdated) and not _is_forced(reason, infos[replica.cluster])
        ),
        checked=fleet.size,
        refusals=filled.refusals,
        problems=request.problems,
        requeue_at=min(
            filter(None, (next_loss(request, settled.staying, infos, now), next_displaced(settled.staying, now))),
            default=None,
        ),
    )


def retain(replicas: Iterable[Replica], infos: Mapping[str, ClusterInfo]) -> tuple[Sequence[Replica], Sequence[Leaver]]:
    """Return the replicas that stay on their clusters, and those that leave."""
    staying: dict[tuple[str, int], Replica] = {}
    leaving: list[Leaver] = []
    for replica in sorted(replicas, key=lambda replica: replica.key):
        twin = staying.get((replica.cluster, replica.index))
        if replica.cluster not in infos:
            leaving.append((replica, ClusterDeleted()))
        elif twin:
            leaving.append((replica, Duplicate(twin.key.name)))
        else:
            staying[replica.cluster, replica.index] = replica
    return tuple(staying.values()), leaving


def to_move(
    request: PlacementRequest,
    staying: Sequence[Replica],
    stable: StableReplicas,
    given_up: Iterable[tuple[Replica, Lost | Displaced]],
    infos: Mapping[str, ClusterInfo],
) -> Mapping[Key, tuple[Replica, Moving]]:
    """Return the replicas that should run elsewhere with the reasons, in the given order.

    Replicas that only have an outdated shape come last: a drain of a cluster does not wait for them.
    """
    overdue = {replica.key: reason_of for replica, reason_of in given_up}
    outdated = {entry.replica.key: entry.reason for entry in stable.retained if entry.reason}

    def reason_of(replica: Replica) -> Moving | None:
        """Return the reason to move a replica. A drain counts before a failure, and a failure before a new shape."""
        return _drain_reason(request, infos[replica.cluster]) or overdue.get(replica.key) or outdated.get(replica.key)

    movable = [(replica, reason) for replica in staying if (reason := reason_of(replica)) is not None]
    movable.sort(key=lambda row: isinstance(row[1], Outdated))
    return {replica.key: (replica, reason) for replica, reason in movable}


def _drain_reason(request: PlacementRequest, info: ClusterInfo) -> ClusterTerminating | Tainted | None:
    """Return why a cluster is drained of this deployment's replicas; None if it is not."""
    if info.cluster.phase is ClusterPhase.TERMINATING:
        return ClusterTerminating()
    if taint := find_untolerated(info.cluster.taints, request.requirement.tolerations, {NO_EXECUTE}):
        return Tainted(taint.key, taint.value, taint.effect)
    return None


def scale_down(
    request: PlacementRequest,
    order: Sequence[Replica],
    movable: Mapping[Key, tuple[Replica, Moving]],
    infos: Mapping[str, ClusterInfo],
) -> Sequence[Leaver]:
    """Return the surplus replicas: first the ones that have to move, then the others in the given order.

    One that only has an outdated shape may be needed until another answers. So replicas on clusters that do not work,
    which will not answer, are deleted before it.
    """
    others = [(replica, ScaledDown(request.replicas)) for replica in order if replica.key not in movable]

    def rank(leaver: Leaver) -> int:
        replica, reason = leaver
        if not isinstance(reason, Outdated | ScaledDown):
            return 0
        if _illness(replica, infos) == DARK:
            return 1
        return 2 if isinstance(reason, Outdated) else 3

    leavers: list[Leaver] = sorted([*movable.values(), *others], key=rank)
    return leavers[: max(len(order) - max(request.replicas, 0), 0)]


def worst_first(staying: Iterable[Replica], infos: Mapping[str, ClusterInfo]) -> Sequence[Replica]:
    """Return the replicas in the order in which they are deleted.

    First the ones that work least; of those, the ones on the cluster that has the most at that point, the later by
    name; of those, the highest index. The number on a cluster at that point is the replica's rank within its cluster,
    so sorting is enough.
    """
    places = Counter[str]()
    order: list[tuple[tuple[int, int, str, int], Replica]] = []
    for replica in sorted(staying, key=lambda replica: (_illness(replica, infos), replica.index)):
        places[replica.cluster] += 1
        rank = (_illness(replica, infos), places[replica.cluster], replica.cluster, replica.index)
        order.append((rank, replica))
    order.sort(key=lambda row: row[0], reverse=True)
    return [replica for _, replica in order]


DARK = 2
"""Illness of a replica whose cluster does not work."""


def _illness(replica: Replica, infos: Mapping[str, ClusterInfo]) -> int:
    """Return DARK if the replica's cluster does not work, 1 if the replica is not ready, otherwise 0."""
    info = infos.get(replica.cluster)
    if info is None or info.cluster.phase is not ClusterPhase.READY:
        return DARK
    return 0 if replica.ready else 1


def _is_forced(reason: Moving, info: ClusterInfo) -> bool:
    """True if a replica is deleted even without another place."""
    return isinstance(reason, ClusterTerminating | Tainted) and info.cluster.drained_by_force


def _sort_placements(placements: Iterable[Placement]) -> tuple[Placement, ...]:
    """Return the placements by cluster and index, so that equal decisions are equal values."""
    return tuple(sorted(placements, key=lambda placement: (placement.cluster, placement.index)))


def _decide_without_clusters(request: PlacementRequest, own: Sequence[Replica]) -> Decision:
    """Return a decision for an empty fleet: more likely a list not read yet than a deleted fleet.

    Only surplus is deleted.
    """
    surplus = scale_down(request, worst_first(own, {}), {}, {})
    deleted = {replica.key for replica, _ in surplus}
    return Decision(
        desired=request.replicas,
        placements=(),
        new=(),
        retained=tuple(RetainedReplica(replica, None) for replica in own if replica.key not in deleted),
        removed=tuple(Removal(replica, reason) for replica, reason in surplus),
        blocked=(),
        checked=0,
        refusals=(),
        problems=(*request.problems, NoClusters()),
    )
