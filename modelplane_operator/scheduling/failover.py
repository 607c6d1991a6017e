"""When a deployment gives up on a cluster that is lost, and on how many replicas at a time.

Giving a replica up means to place another elsewhere and delete it. Its cluster cannot hear that yet, so it stays,
being deleted, until the cluster is back, and its nodes stay charged. Nothing needs to be remembered between decisions.
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from modelplane_operator.scheduling.cluster import Cluster, Standing
from modelplane_operator.scheduling.placement import Replica

_TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)


def seconds(text: str) -> int | None:
    """`1h30m` as seconds; None when it cannot be read, which means never."""
    found = _TIME.fullmatch(text)
    if found is None or not text:
        return None
    hours, minutes, rest = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + rest


def share(percent: str, replicas: int) -> int:
    """So many percent of the replicas, rounded up, so that a single replica can be given up too."""
    digits = percent.removesuffix("%")
    return -(-replicas * int(digits) // 100) if digits.isascii() and digits.isdigit() else 0


def due(replica: Replica, cluster: Cluster, after: timedelta) -> datetime | None:
    """From when on the replica is to be given up; None when there is no cause.

    A cluster that answers says which replicas work: these stay, whatever else is wrong with it.
    """
    if cluster.unhealthy_since is None:
        return None
    if cluster.standing is not Standing.UNREACHABLE and replica.ready:
        return None
    return cluster.unhealthy_since + after


def given_up(replicas: Iterable[Replica], lost: Iterable[str]) -> int:
    """Replicas that are being deleted on clusters that cannot hear it."""
    clusters = frozenset(lost)
    return sum(replica.going and replica.cluster in clusters for replica in replicas)
