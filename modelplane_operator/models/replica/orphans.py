"""Find objects that the operator applied on a workload cluster and whose owner is no longer on the hub.

They remain when the finalizer of a replica is removed by hand, or when the hub is restored from a backup. Objects
of another hub look the same, so orphans are only reported and never deleted.
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
from modelplane_operator.lookups import cluster_of_replica

LASTS = timedelta(minutes=5)  # orphans are only reported, so this is not urgent
"""Time between two searches of a cluster."""
OWNERS = {kind.definition.kind: of(kind) for kind in (InferenceCluster, ModelCache, ModelReplica, ServingStack)}
"""Types that own objects on workload clusters, by kind."""


def _sample_orphans(cluster: Manifest) -> Iterator[Sample]:
    """Yield the number of orphans that an InferenceCluster reports."""
    count = section(cluster, "status").get("orphans")
    if isinstance(count, int):
        yield (cluster["metadata"]["name"],), count


GAUGE = Gauge(
    "modelplane_cluster_orphans",
    "Objects of the operator on the cluster whose owner is not on the hub.",
    ("cluster",),
    _sample_orphans,
)
"""Gauge of the orphans on each cluster."""


@dataclass(slots=True)
class Sweeps:
    """Orphans of each cluster, as of the last search."""

    kinds: tuple[ResourceType, ...]
    """Types that are searched."""
    _orphans: dict[str, tuple[datetime, tuple[str, ...]]] = field(
        default_factory=dict[str, tuple[datetime, tuple[str, ...]]], init=False
    )
    """Time and result of the last search, by cluster."""

    def of(self, remote: Cluster, hub: Cluster, now: datetime, called: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the names of a cluster's orphans, searched again after LASTS.

        `called` are other names of the same cluster.
        """
        searched_at, result = self._orphans.get(remote.name, (None, ()))
        if searched_at is None or now - searched_at >= LASTS:
            result = tuple(sorted(orphans(remote, self.kinds, hub, called)))
            self._orphans[remote.name] = (now, result)
        return result


def orphans(remote: Cluster, kinds: Iterable[ResourceType], hub: Cluster, called: Iterable[str] = ()) -> Iterator[str]:
    """Yield the applied objects whose owner is not on the hub, and tenants' namespaces that are not needed."""
    in_use = frozenset[str]().union(*(namespaces_in_use(name, hub) for name in (remote.name, *called)))
    for kind in kinds:
        for manifest in own_objects(remote.find(kind)):
            is_orphan = (
                key_of(manifest).name not in in_use
                if kind == NAMESPACE and is_tenants(manifest)
                else not _has_owner(manifest, hub)
            )
            if is_orphan and not is_terminating(manifest):
                yield f"{kind.kind} {key_of(manifest)}"


def namespaces_in_use(cluster: str, hub: Cluster) -> frozenset[str]:
    """Return the tenants' namespaces on a cluster that replicas or caches need."""
    informers = (hub.find(of(kind)) for kind in (ModelReplica, ModelCache))
    keys = [key for users in informers if users for key in users.keys_by("cluster", cluster)]
    return frozenset(names.remote_namespace(key.namespace) for key in keys)


def clusters_of_cache(cache: Manifest) -> tuple[str, ...]:
    """Return the clusters that a cache has objects on; the "cluster" index of ModelCaches."""
    return tuple(str(entry.get("name")) for entry in entries(cache, "status", "clusters"))


def is_tenants(namespace: Manifest) -> bool:
    """True if a namespace on a workload cluster belongs to a namespace of the hub."""
    return labels_of(namespace).get(labels.OWNER_KIND) == NAMESPACE.kind


def elsewhere(child: Manifest, cluster: str, hub: Cluster) -> bool:
    """True if an object belongs to a replica that the hub has placed on another cluster.

    Both names may mean the same cluster; then the object is here, too.
    """
    replicas = hub.find(of(ModelReplica))
    if replicas is None or labels_of(child).get(labels.OWNER_KIND) != ModelReplica.definition.kind:
        return False
    owner = _find_owner(child, replicas)
    return owner is not None and cluster not in cluster_of_replica(owner)


def own_objects(manifests: Informer | None) -> Iterator[Manifest]:
    """Yield the objects that the operator applied. Controllers copy its labels to objects that they create."""
    for entry in map(manifests.entry, manifests.keys()) if manifests else ():
        if entry and entry.owned:  # labels alone do not prove that the operator applied it
            yield entry.manifest


def _has_owner(manifest: Manifest, hub: Cluster) -> bool:
    """True if the owner of an object is on the hub, or is of a kind that this operator does not know."""
    kind = OWNERS.get(labels_of(manifest).get(labels.OWNER_KIND, ""))
    owners = hub.find(kind) if kind else None
    return owners is None or _find_owner(manifest, owners) is not None


def _find_owner(manifest: Manifest, owners: Informer) -> Manifest | None:
    """Return the owner that the labels of an object name, if it has the same uid."""
    object_labels = labels_of(manifest)
    owner = owners.get(Key(object_labels.get(labels.OWNER_NAMESPACE, ""), object_labels.get(labels.OWNER_NAME, "")))
    return owner if owner is not None and owner["metadata"]["uid"] == labels.owner_uid(manifest) else None
