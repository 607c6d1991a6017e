"""What we made on a workload cluster and nobody on the hub owns any more. It is told, and left alone.

A replica whose finalizer somebody has taken off leaves such objects, and so does a hub that was restored from a backup.
Those of another hub look the same: nothing here deletes any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kubeloop.cache.informer import Informer
from kubeloop.gauges import Gauge, Sample
from kubeloop.objects import Key, Manifest, entries, is_terminating, key_of, labels_of, section
from kubeloop.reading import Cluster
from kubeloop.resource import of
from kubeloop.types import NAMESPACE, ResourceType
from modelplane_operator.api import InferenceCluster, ModelCache, ModelReplica, ServingStack, labels, names
from modelplane_operator.lookups import placed_on

LASTS = timedelta(minutes=5)  # nothing is deleted for it, so that nobody is in a hurry
OWNERS = {kind.definition.kind: of(kind) for kind in (InferenceCluster, ModelCache, ModelReplica, ServingStack)}


def _told(cluster: Manifest) -> Iterator[Sample]:
    count = section(cluster, "status").get("orphans")
    if isinstance(count, int):
        yield (cluster["metadata"]["name"],), count


GAUGE = Gauge("modelplane_cluster_orphans", "Objects of ours there whose owner is not on the hub.", ("cluster",), _told)


@dataclass(slots=True)
class Sweeps:
    """The orphans that were found last, by cluster."""

    kinds: tuple[ResourceType, ...]
    _found: dict[str, tuple[datetime, tuple[str, ...]]] = field(
        default_factory=dict[str, tuple[datetime, tuple[str, ...]]], init=False
    )

    def of(self, remote: Cluster, hub: Cluster, now: datetime, called: Iterable[str] = ()) -> tuple[str, ...]:
        """The names of a cluster's orphans, looked for every few minutes. `called`: its names beside its own."""
        looked, found = self._found.get(remote.name, (None, ()))
        if looked is None or now - looked >= LASTS:
            found = tuple(sorted(orphans(remote, self.kinds, hub, called)))
            self._found[remote.name] = (now, found)
        return found


def orphans(remote: Cluster, kinds: Iterable[ResourceType], hub: Cluster, called: Iterable[str] = ()) -> Iterator[str]:
    """What we applied there whose owner is not on the hub, and namespaces of tenants that nobody needs."""
    kept = frozenset[str]().union(*(namespaces_in_use(name, hub) for name in (remote.name, *called)))
    for kind in kinds:
        for one in ours(remote.find(kind)):
            lost = key_of(one).name not in kept if kind == NAMESPACE and is_tenants(one) else not _has_owner(one, hub)
            if lost and not is_terminating(one):
                yield f"{kind.kind} {key_of(one)}"


def namespaces_in_use(cluster: str, hub: Cluster) -> frozenset[str]:
    """The namespaces of tenants on a cluster that replicas or caches need."""
    found = (hub.find(of(kind)) for kind in (ModelReplica, ModelCache))
    keys = [key for users in found if users for key in users.keys_by("cluster", cluster)]
    return frozenset(names.remote_namespace(key.namespace) for key in keys)


def staged_on(cache: Manifest) -> tuple[str, ...]:
    """The clusters that a cache has something on: what caches are found by."""
    return tuple(str(one.get("name")) for one in entries(cache, "status", "clusters"))


def is_tenants(namespace: Manifest) -> bool:
    """Whether a namespace on a workload cluster stands for one of the hub."""
    return labels_of(namespace).get(labels.OWNER_KIND) == NAMESPACE.kind


def elsewhere(one: Manifest, cluster: str, hub: Cluster) -> bool:
    """Whether it is of a replica on another cluster: on this one, too, when the two are one under two names."""
    replicas = hub.find(of(ModelReplica))
    if replicas is None or labels_of(one).get(labels.OWNER_KIND) != ModelReplica.definition.kind:
        return False
    owner = _owner(one, replicas)
    return owner is not None and cluster not in placed_on(owner)


def ours(found: Informer | None) -> Iterator[Manifest]:
    """What we applied, of what is labelled as ours."""
    for entry in map(found.entry, found.keys()) if found else ():
        if entry and entry.owned:  # controllers copy our labels to what they make
            yield entry.manifest


def _has_owner(one: Manifest, hub: Cluster) -> bool:
    """Whether its owner is on the hub; of an owner of a kind that is not known here, nobody can tell."""
    kind = OWNERS.get(labels_of(one).get(labels.OWNER_KIND, ""))
    known = hub.find(kind) if kind else None
    return known is None or _owner(one, known) is not None


def _owner(one: Manifest, owners: Informer) -> Manifest | None:
    """That very owner which its labels name."""
    named = labels_of(one)
    owner = owners.get(Key(named.get(labels.OWNER_NAMESPACE, ""), named.get(labels.OWNER_NAME, "")))
    return owner if owner is not None and owner["metadata"]["uid"] == labels.owner_uid(one) else None
