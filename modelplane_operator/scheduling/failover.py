"""When a deployment gives up on a cluster that is lost, and on how many replicas at a time; and on nodes that are.

Giving a replica up means to place another elsewhere and delete it. Its cluster cannot hear that yet, so it stays,
being deleted, until the cluster is back, and its nodes stay charged. Nothing needs to be remembered between decisions.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from modelplane_operator.scheduling.cluster import ClusterPhase, ClusterView
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.reasons import Displaced, Lost
from modelplane_operator.scheduling.requirement import PlacementRequest


def lost(
    request: PlacementRequest,
    staying: Iterable[Replica],
    namesakes: Iterable[Replica],
    infos: Mapping[str, ClusterInfo],
    now: datetime,
) -> tuple[tuple[Replica, Lost], ...]:
    """The replicas to give up, each as soon as there is a place for another."""
    if request.failover is None:
        return ()
    given_up = sum(
        replica.owner == request.owner and replica.terminating and _is_unwell(infos.get(replica.cluster))
        for replica in namesakes
    )
    overdue = [
        (replica, Lost(cluster.unhealthy_since))
        for replica in staying
        if (cluster := infos[replica.cluster].cluster).unhealthy_since is not None
        and (due := _due(replica, cluster, request.failover.after)) is not None
        and due <= now
    ]
    return tuple(overdue[: max(request.failover.most - given_up, 0)])


def next_loss(
    request: PlacementRequest, staying: Iterable[Replica], infos: Mapping[str, ClusterInfo], now: datetime
) -> datetime | None:
    """When the next replica will be overdue, if nothing changes until then."""
    if request.failover is None:
        return None
    dues = (_due(replica, infos[replica.cluster].cluster, request.failover.after) for replica in staying)
    return min((due for due in dues if due is not None and due > now), default=None)


PATIENCE = timedelta(minutes=5)  # a node that restarts is back by then


def displaced(
    staying: Iterable[Replica], infos: Mapping[str, ClusterInfo], now: datetime
) -> tuple[tuple[Replica, Displaced], ...]:
    """The replicas that wait for nodes which their pools do not have any more."""
    return tuple(
        (replica, why)
        for replica in staying
        if replica.unschedulable_since is not None
        and replica.unschedulable_since + PATIENCE <= now
        and (why := _short(replica, infos[replica.cluster])) is not None
    )


def next_displaced(staying: Iterable[Replica], now: datetime) -> datetime | None:
    """When the next replica will have waited for nodes for long enough."""
    dues = (one.unschedulable_since + PATIENCE for one in staying if one.unschedulable_since is not None)
    return min((due for due in dues if due > now), default=None)


def _short(replica: Replica, info: ClusterInfo) -> Displaced | None:
    """The first of its pools that is known to have fewer nodes than its replicas take."""
    if info.cluster.phase is not ClusterPhase.READY:
        return None
    free = dict(zip(info.cluster.pools.names, info.free, strict=True))
    return next((Displaced(pool, -free[pool]) for pool in sorted(replica.charges) if free.get(pool, 0) < 0), None)


def _due(replica: Replica, cluster: ClusterView, after: timedelta) -> datetime | None:
    """From when on the replica is to be given up; None when there is no cause.

    A cluster that answers says which replicas work: these stay, whatever else is wrong with it.
    """
    if cluster.unhealthy_since is None:
        return None
    if cluster.phase is not ClusterPhase.UNREACHABLE and replica.ready:
        return None
    return cluster.unhealthy_since + after


def _is_unwell(info: ClusterInfo | None) -> bool:
    return info is not None and info.cluster.unhealthy_since is not None
