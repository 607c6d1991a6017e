"""Whether a cluster was brought under another name before: by what it says of itself, and by marks (`rendering`).

The uid of kube-system and the root certificate say so first, by whichever address the cluster is reached. One that was
restored from another's backup may say the same. So the first InferenceCluster of those that look alike writes the uids
of the others on its cluster: whoever sees its own there has the same. They are younger than any backup of the cluster
but one that was made since and lies behind a kubeconfig that was swapped: who is brought anew then has another uid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from modelplane_operator.api import InferenceCluster
from modelplane_operator.api.inference_cluster import BackendReady, ClusterReady
from modelplane_operator.api.types import of
from modelplane_operator.kube.errors import Forbidden, Unreachable
from modelplane_operator.kube.objects import Key, Manifest, key_of, section
from modelplane_operator.kube.resources import CONFIG_MAP, NAMESPACE, SECRET
from modelplane_operator.planning.inference_cluster import Registered
from modelplane_operator.planning.symptoms import condition
from modelplane_operator.rendering.registration import is_marked, mark_key
from modelplane_operator.runtime.loop import Change
from modelplane_operator.runtime.reading import Cluster, find

CLUSTERS = of(InferenceCluster)
IDENTITY_LASTS = timedelta(hours=1)  # another one has another address, most likely, and is asked at once
LOOK_LASTS = timedelta(minutes=5)
PATIENCE = timedelta(seconds=30)  # for the other one's mark: it may be paused, or fail
_SYSTEM, _ROOT = Key("", "kube-system"), Key("kube-system", "kube-root-ca.crt")  # on every cluster, made once
_WITHOUT = frozenset({ClusterReady.IDENTIFYING.reason, ClusterReady.REGISTERED_TWICE.reason})


def identity_of(cluster: Manifest) -> tuple[str, ...]:
    """What an InferenceCluster was recognized by last."""
    identity = section(cluster, "status", "observed").get("identity")
    return (identity,) if identity else ()


def look_alike(cluster: str, identity: str, hub: Cluster) -> tuple[Manifest, ...]:
    """The other InferenceClusters that were recognized by the same."""
    clusters = hub.find(CLUSTERS)
    found = clusters.by("identity", identity) if clusters and identity else ()
    return tuple(one for one in found if one["metadata"]["name"] != cluster)


@dataclass(slots=True)
class Registrations:
    """What clusters have told lately of which they are."""

    _told: dict[str, tuple[datetime, str, str]] = field(
        default_factory=dict[str, tuple[datetime, str, str]], init=False
    )
    """By name: when, at which server, and what."""
    _looked: dict[tuple[str, str], tuple[datetime, bool]] = field(
        default_factory=dict[tuple[str, str], tuple[datetime, bool]], init=False
    )
    """By the uids of one and of one before it: when the mark was looked for, and whether it was there."""
    _unsure: dict[tuple[str, str], datetime] = field(default_factory=dict[tuple[str, str], datetime], init=False)
    """The same: since when nothing proves either."""

    async def of(
        self, cluster: InferenceCluster, site: Cluster, hub: Cluster, fleet: Callable[[str], Cluster], now: datetime
    ) -> Registered:
        """Who else has the cluster, or may have it."""
        identity = await self._identity(site, now)
        name, mine = cluster.metadata.name, cluster.metadata.uid or ""
        others = look_alike(name, identity, hub)
        known = find(hub, CLUSTERS, Key("", name))
        if not others or known is None:
            return Registered(identity)
        ranked = sorted((*others, known), key=_rank)
        place = ranked.index(known)
        later = tuple(sorted(one["metadata"]["uid"] for one in ranked[place + 1 :]))
        unsure = ""
        for one in ranked[:place]:
            same = await self._same(mine, site, one, fleet, now)
            if same:
                return Registered(identity, first=one["metadata"]["name"])
            if same is None and not _has(known):
                unsure = unsure or one["metadata"]["name"]
        return Registered(identity, unsure=unsure, later=later)

    async def _identity(self, site: Cluster, now: datetime) -> str:
        asked, server, identity = self._told.get(site.name, (None, "", ""))
        lasts = IDENTITY_LASTS if identity else LOOK_LASTS
        if asked is None or server != site.server or now - asked > lasts:
            identity = await _read(site)
            self._told[site.name] = now, site.server, identity
        return identity

    async def _same(
        self, mine: str, site: Cluster, other: Manifest, fleet: Callable[[str], Cluster], now: datetime
    ) -> bool | None:
        """Whether another one, which is before this one, has the same cluster; None while nothing proves either."""
        theirs = other["metadata"]["uid"]
        pair, key = (mine, theirs), mark_key(theirs)
        if is_marked(find(site, SECRET, key), mine):
            return True
        marked = _has_marked(other["metadata"]["name"], key, mine, fleet)
        looked, there = self._looked.get(pair, (None, False))
        if looked is not None and now - looked < LOOK_LASTS and (there or marked):
            return there
        if marked or there:
            with suppress(Forbidden):
                there = is_marked(await site.kube.find(SECRET, key), mine)
                self._looked[pair] = now, there
                return there
        since = self._unsure.setdefault(pair, now)
        return None if marked is not None and now - since < PATIENCE else False


def _has_marked(other: str, key: Key, uid: str, fleet: Callable[[str], Cluster]) -> bool | None:
    """Whether another InferenceCluster has written the uid on its cluster; None when nobody can tell."""
    try:
        site = fleet(other)
    except Unreachable:
        return None
    if not site.health.answers:
        return None
    return is_marked(find(site, SECRET, key), uid)


async def _read(site: Cluster) -> str:
    """What it says of itself; empty while that is not known."""
    try:
        system = await site.kube.find(NAMESPACE, _SYSTEM)
    except Forbidden:
        return ""
    root: Manifest | None = {}
    with suppress(Forbidden):
        root = await site.kube.find(CONFIG_MAP, _ROOT)
    if system is None or root is None:
        return ""
    told = f"{system['metadata']['uid']} {section(root, 'data').get('ca.crt', '')}"
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def _rank(cluster: Manifest) -> tuple[bool, bool, str, str]:
    """Who comes first: who has it keeps it, and then whose gateway serves; else by age, and by name."""
    metadata = cluster["metadata"]
    return not _has(cluster), not _serves(cluster), metadata.get("creationTimestamp") or "", metadata["name"]


def _has(cluster: Manifest) -> bool:
    """Whether an InferenceCluster was last taken to be the only one that has its cluster."""
    without = condition(cluster, ClusterReady.__name__).reason in _WITHOUT
    return bool(identity_of(cluster)) and not without


def _serves(cluster: Manifest) -> bool:
    return condition(cluster, BackendReady.__name__).is_true


def on_another(change: Change, hub: Cluster) -> Iterator[Key]:
    """The InferenceClusters that look like one, when that comes, goes, or stands otherwise than before."""
    before, after = (one and (identity_of(one), _rank(one), one["metadata"]["uid"]) for one in change)
    if before == after:
        return
    for identity in {identity for one in filter(None, change) for identity in identity_of(one)}:
        yield from map(key_of, look_alike(change.latest["metadata"]["name"], identity, hub))
