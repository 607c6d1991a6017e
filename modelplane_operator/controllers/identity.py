"""Which cluster answers: its version, and the uid by which one that is registered under two names is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from modelplane_operator.api import InferenceCluster
from modelplane_operator.api.base import Key
from modelplane_operator.api.inference_cluster import RegisteredOnce
from modelplane_operator.api.model import Manifest
from modelplane_operator.clients.errors import Forbidden
from modelplane_operator.clients.resources import NAMESPACE, of, section
from modelplane_operator.controllers.reading import Cluster
from modelplane_operator.planning.symptoms import condition

LASTS = timedelta(minutes=5)
CLUSTERS = of(InferenceCluster)
_SYSTEM = Key("", "kube-system")  # it is on every cluster, and nobody makes it anew
_LENGTH = 64  # of a uid, which goes into a status; the cluster may say anything


@dataclass(frozen=True, slots=True)
class Identity:
    """What a cluster says that it is."""

    version: str
    uid: str
    """Empty when we may not see it."""


@dataclass(slots=True)
class Identities:
    """What clusters have said lately."""

    _told: dict[str, tuple[datetime, Identity]] = field(
        default_factory=dict[str, tuple[datetime, Identity]], init=False
    )

    async def of(self, site: Cluster, now: datetime) -> Identity:
        asked, known = self._told.get(site.name, (None, Identity("", "")))
        if asked is None or now - asked > LASTS:
            known = Identity(await site.kube.version(), await _uid(site))
            self._told[site.name] = (now, known)
        return known


async def _uid(site: Cluster) -> str:
    try:
        found = await site.kube.find(NAMESPACE, _SYSTEM)
    except Forbidden:
        return ""
    uid = found["metadata"].get("uid") if found else None
    return uid if isinstance(uid, str) and len(uid) <= _LENGTH else ""


def uid_of(cluster: Manifest) -> tuple[str, ...]:
    """The uid that a cluster was seen to have: what clusters are found by."""
    uid = section(cluster, "status", "observed").get("uid")
    return (uid,) if uid else ()


def same(name: str, uid: str, hub: Cluster) -> Iterator[Manifest]:
    """The other InferenceClusters that lead to the same cluster."""
    clusters = hub.find(CLUSTERS)
    found = clusters.by("uid", uid) if clusters and uid else ()
    return (one for one in found if one["metadata"]["name"] != name)


def registered_before(cluster: InferenceCluster, uid: str, hub: Cluster) -> str:
    """The InferenceCluster that has the cluster already; empty when it is this one."""
    mine = _rank(cluster.to_manifest())
    return next((one["metadata"]["name"] for one in same(cluster.metadata.name, uid, hub) if _rank(one) < mine), "")


def _rank(cluster: Manifest) -> tuple[bool, str, str]:
    """Whoever has it keeps it; of several, the oldest."""
    has = condition(cluster, RegisteredOnce.__name__).get("status") == "True"
    metadata = cluster["metadata"]
    return not has, str(metadata.get("creationTimestamp") or ""), metadata["name"]
