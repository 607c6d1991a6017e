"""Whether a cluster was brought under another name before: by what it says of itself, and by marks (`registration.py`).

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

from kubeloop.client.kube import Kube
from kubeloop.errors import Forbidden, Unreachable
from kubeloop.loop import Change, Clients
from kubeloop.objects import Key, Manifest, key_of, section
from kubeloop.reading import Cluster, find
from kubeloop.resource import of
from kubeloop.types import CONFIG_MAP, NAMESPACE, SECRET
from modelplane_operator.api import InferenceCluster
from modelplane_operator.api.inference_cluster import BackendReady, ClusterReady
from modelplane_operator.clusters.cluster.plan import Registered
from modelplane_operator.clusters.cluster.registration import is_marked, mark_key
from modelplane_operator.models.replica.plan.symptoms import condition

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

    _marked: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]], init=False)
    """By the uids of one and of one before it: whether the mark was there when it was last looked for."""
    _unsure: dict[tuple[str, str], datetime] = field(default_factory=dict[tuple[str, str], datetime], init=False)
    """The same: since when nothing proves either."""

    async def of(self, cluster: InferenceCluster, remote: Cluster, clients: Clients, now: datetime) -> Registered:
        """Who else has the cluster, or may have it."""
        hub, reads = clients.hub, clients.reads
        identity = await reads.of(remote, ("identity",), _read, now, lasts=IDENTITY_LASTS, nothing_lasts=LOOK_LASTS)
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
            same = await self._same(mine, remote, one, clients, now)
            if same:
                return Registered(identity, first=one["metadata"]["name"])
            if same is None and not _has(known):
                unsure = unsure or one["metadata"]["name"]
        return Registered(identity, unsure=unsure, later=later)

    async def _same(self, mine: str, remote: Cluster, other: Manifest, clients: Clients, now: datetime) -> bool | None:
        """Whether another one, which is before this one, has the same cluster; None while nothing proves either."""
        theirs = other["metadata"]["uid"]
        pair, key = (mine, theirs), mark_key(theirs)
        if is_marked(find(remote, SECRET, key), mine):
            return True
        marked = _has_marked(other, key, mine, clients.fleet)
        if marked or pair in self._marked:

            async def ask(kube: Kube) -> bool:
                return is_marked(await kube.find(SECRET, key), mine)

            with suppress(Forbidden):
                there = await clients.reads.of(remote, ("mark", *pair), ask, now, lasts=LOOK_LASTS)
                (self._marked.add if there else self._marked.discard)(pair)
                return there
        since = self._unsure.setdefault(pair, now)
        return None if marked is not None and now - since < PATIENCE else False


def _has_marked(other: Manifest, key: Key, uid: str, fleet: Callable[[str], Cluster]) -> bool | None:
    """Whether another InferenceCluster has written the uid on its cluster; None when nobody can tell."""
    try:
        remote = fleet(other["metadata"]["name"])
    except Unreachable:
        # Its connection is about to come: then it is marked, and we see that if it is our own cluster, too.
        return False if condition(other, ClusterReady.__name__).is_true else None
    if not remote.health.answers:
        return None
    return is_marked(find(remote, SECRET, key), uid)


async def _read(kube: Kube) -> str:
    """What it says of itself; empty while that is not known."""
    try:
        system = await kube.find(NAMESPACE, _SYSTEM)
    except Forbidden:
        return ""
    root: Manifest | None = {}
    with suppress(Forbidden):
        root = await kube.find(CONFIG_MAP, _ROOT)
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
