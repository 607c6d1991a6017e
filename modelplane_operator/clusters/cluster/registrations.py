"""Find out if a cluster is registered under another InferenceCluster, by its identity and by marks (`registration.py`).

The identity is the uid of kube-system with the root certificate; it does not depend on the address. A cluster restored
from another's backup has the same one. So the first InferenceCluster with an identity writes the uids of the others on
its cluster: one that reads its own uid there has the same cluster. A backup proves nothing false unless it was made
after the mark and a kubeconfig was then swapped to its restored cluster; in that case, create the InferenceCluster
again, which gives it a new uid.
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
IDENTITY_LASTS = timedelta(hours=1)  # a different cluster most likely has a different address, and is read at once
READ_LIFETIME = timedelta(minutes=5)
PATIENCE = timedelta(seconds=30)  # how long to wait for the other one's mark: its reconciles may be paused or fail
_SYSTEM, _ROOT = Key("", "kube-system"), Key("kube-system", "kube-root-ca.crt")  # on every cluster, created once
_WITHOUT = frozenset({ClusterReady.IDENTIFYING.reason, ClusterReady.REGISTERED_TWICE.reason})


def identity_of(cluster: Manifest) -> tuple[str, ...]:
    """Return the last identity of an InferenceCluster; empty if it has none."""
    identity = section(cluster, "status", "observed").get("identity")
    return (identity,) if identity else ()


def find_same_cluster(cluster: str, identity: str, hub: Cluster) -> tuple[Manifest, ...]:
    """Return the other InferenceClusters with this identity."""
    clusters = hub.find(CLUSTERS)
    same_identity = clusters.by("identity", identity) if clusters and identity else ()
    return tuple(other for other in same_identity if other["metadata"]["name"] != cluster)


@dataclass(slots=True)
class Registrations:
    """Results of recent checks for the same cluster."""

    _marked: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]], init=False)
    """Pairs of uids, later and earlier: the mark was there at the last check."""
    _unsure: dict[tuple[str, str], datetime] = field(default_factory=dict[tuple[str, str], datetime], init=False)
    """The time since which a pair of uids has been undecided."""

    async def of(self, cluster: InferenceCluster, remote: Cluster, clients: Clients, now: datetime) -> Registered:
        """Return the other InferenceClusters that have, or may have, the cluster."""
        hub, reads = clients.hub, clients.reads
        identity = await reads.of(
            remote, ("identity",), _read_identity, now, lasts=IDENTITY_LASTS, nothing_lasts=READ_LIFETIME
        )
        name, uid = cluster.metadata.name, cluster.metadata.uid or ""
        others = find_same_cluster(name, identity, hub)
        current = find(hub, CLUSTERS, Key("", name))
        if not others or current is None:
            return Registered(identity)
        ranked = sorted((*others, current), key=_rank)
        index = ranked.index(current)
        later = tuple(sorted(other["metadata"]["uid"] for other in ranked[index + 1 :]))
        unsure = ""
        for other in ranked[:index]:
            same = await self._is_same(uid, remote, other, clients, now)
            if same:
                return Registered(identity, first=other["metadata"]["name"])
            if same is None and not _is_registered(current):
                unsure = unsure or other["metadata"]["name"]
        return Registered(identity, unsure=unsure, later=later)

    async def _is_same(
        self, uid: str, remote: Cluster, other: Manifest, clients: Clients, now: datetime
    ) -> bool | None:
        """True if an earlier InferenceCluster has the same cluster; None while that is undecided."""
        other_uid = other["metadata"]["uid"]
        pair, key = (uid, other_uid), mark_key(other_uid)
        if is_marked(find(remote, SECRET, key), uid):
            return True
        marked = _find_mark(other, key, uid, clients.fleet)
        if marked or pair in self._marked:

            async def read_mark(kube: Kube) -> bool:
                """Read the mark from the API server, as the cache may be older."""
                return is_marked(await kube.find(SECRET, key), uid)

            with suppress(Forbidden):
                is_present = await clients.reads.of(remote, ("mark", *pair), read_mark, now, lasts=READ_LIFETIME)
                (self._marked.add if is_present else self._marked.discard)(pair)
                return is_present
        undecided_since = self._unsure.setdefault(pair, now)
        return None if marked is not None and now - undecided_since < PATIENCE else False


def _find_mark(other: Manifest, key: Key, uid: str, fleet: Callable[[str], Cluster]) -> bool | None:
    """True if another InferenceCluster has written the uid on its cluster; None if that cannot be read."""
    try:
        remote = fleet(other["metadata"]["name"])
    except Unreachable:
        # It will connect soon and write its mark, which is then visible here if it is the same cluster.
        return False if condition(other, ClusterReady.__name__).is_true else None
    if not remote.health.answers:
        return None
    return is_marked(find(remote, SECRET, key), uid)


async def _read_identity(kube: Kube) -> str:
    """Return a hash that identifies the cluster; empty while it cannot be read."""
    try:
        system = await kube.find(NAMESPACE, _SYSTEM)
    except Forbidden:
        return ""
    root: Manifest | None = {}
    with suppress(Forbidden):
        root = await kube.find(CONFIG_MAP, _ROOT)
    if system is None or root is None:
        return ""
    text = f"{system['metadata']['uid']} {section(root, 'data').get('ca.crt', '')}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _rank(cluster: Manifest) -> tuple[bool, bool, str, str]:
    """Return the sort key by which one of them keeps the cluster: registered, serving, age, name."""
    metadata = cluster["metadata"]
    serves = condition(cluster, BackendReady.__name__).is_true
    return not _is_registered(cluster), not serves, metadata.get("creationTimestamp") or "", metadata["name"]


def _is_registered(cluster: Manifest) -> bool:
    """True if an InferenceCluster was last considered the only one of its cluster."""
    without = condition(cluster, ClusterReady.__name__).reason in _WITHOUT
    return bool(identity_of(cluster)) and not without


def on_another(change: Change, hub: Cluster) -> Iterator[Key]:
    """Map a change of an InferenceCluster to the others with its old or new identity."""
    old, new = (
        manifest and (identity_of(manifest), _rank(manifest), manifest["metadata"]["uid"]) for manifest in change
    )
    if old == new:
        return
    for identity in {identity for manifest in filter(None, change) for identity in identity_of(manifest)}:
        yield from map(key_of, find_same_cluster(change.latest["metadata"]["name"], identity, hub))
