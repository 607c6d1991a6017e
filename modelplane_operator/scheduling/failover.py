"""Decide when a deployment gives up replicas on lost clusters or missing nodes, and how many at a time.

To give up a replica, another is placed elsewhere and the old one is deleted. An unreachable cluster cannot delete it
yet, so the replica stays terminating, and its nodes stay charged, until the cluster is back. No state is kept between
decisions.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from modelplane_operator.scheduling.cluster import ClusterPhase, ClusterView
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.reasons import Displaced, Lost
from modelplane_operator.scheduling.requirement import PlacementRequest


def find_lost(
    request: PlacementRequest,
    staying: Iterable[Replica],
    namesakes: Iterable[Replica],
    infos: Mapping[str, ClusterInfo],
    now: datetime,
) -> tuple[tuple[Replica, Lost], ...]:
    """Return the replicas to give up, each as soon as there is another place for it."""
    if request.failover is None:
        return ()
    given_up = sum(
        replica.owner == request.owner
        and replica.terminating
        and (info := infos.get(replica.cluster)) is not None
        and info.cluster.unhealthy_since is not None
        for replica in namesakes
    )
    overdue = [
        (replica, Lost(cluster.unhealthy_since))
        for replica in staying
        if (cluster := infos[replica.cluster].cluster).unhealthy_since is not None
        and (loss_time := _loss_time(replica, cluster, request.failover.after)) is not None
        and loss_time <= now
    ]
    return tuple(overdue[: max(request.failover.most - given_up, 0)])


def next_loss(
    request: PlacementRequest, staying: Iterable[Replica], infos: Mapping[str, ClusterInfo], now: datetime
) -> datetime | None:
    """Return the time when the next replica will be given up if nothing changes; None if there is none."""
    if request.failover is None:
        return None
    times = (_loss_time(replica, infos[replica.cluster].cluster, request.failover.after) for replica in staying)
    return min((time for time in times if time is not None and time > now), default=None)


PATIENCE = timedelta(minutes=5)  # a node that restarts is back within this time


def find_displaced(
    staying: Iterable[Replica], infos: Mapping[str, ClusterInfo], now: datetime
) -> tuple[tuple[Replica, Displaced], ...]:
    """Return the replicas that wait for nodes that their pools no longer have."""
    return tuple(
        (replica, shortage)
        for replica in staying
        if replica.unschedulable_since is not None
        and replica.unschedulable_since + PATIENCE <= now
        and (shortage := _find_shortage(replica, infos[replica.cluster])) is not None
    )


def next_displaced(staying: Iterable[Replica], now: datetime) -> datetime | None:
    """Return the time when the next replica will have waited for nodes for long enough."""
    times = (replica.unschedulable_since + PATIENCE for replica in staying if replica.unschedulable_since is not None)
    return min((time for time in times if time > now), default=None)


def _find_shortage(replica: Replica, info: ClusterInfo) -> Displaced | None:
    """Return the first of the replica's pools that has fewer nodes than its replicas need; None if all have enough."""
    if info.cluster.phase is not ClusterPhase.READY:
        return None
    free = dict(zip(info.cluster.pools.names, info.free, strict=True))
    return next((Displaced(pool, -free[pool]) for pool in sorted(replica.charges) if free.get(pool, 0) < 0), None)


def _loss_time(replica: Replica, cluster: ClusterView, after: timedelta) -> datetime | None:
    """Return the time from which the replica is to be given up; None if there is no reason to.

    A reachable cluster reports which replicas work. Working ones stay, whatever else is wrong with the cluster.
    """
    if cluster.unhealthy_since is None:
        return None
    if cluster.phase is not ClusterPhase.UNREACHABLE and replica.ready:
        return None
    return cluster.unhealthy_since + after
