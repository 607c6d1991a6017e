"""What a cache is on one cluster: a volume of its own, or a claim that is there already."""

from __future__ import annotations

from modelplane_operator.api import names
from modelplane_operator.api.model_cache import CachedCluster, Phase
from modelplane_operator.kube.objects import is_terminating, section
from modelplane_operator.planning.cached_cluster import (
    REQUEUE_SOON,
    ClusterPlan,
    ClusterState,
    Observed,
    Present,
    settled,
    used,
    volumes_in_use,
)
from modelplane_operator.planning.plan import Apply, Step, delete, prune
from modelplane_operator.rendering.cache_sources import claim_of
from modelplane_operator.rendering.model_replica.fences import render_fences


def look(seen: Observed, cluster: ClusterState) -> ClusterPlan | None:
    last = seen.cache.on(cluster.name)
    if not cluster.connected:
        why = (
            f"cluster {cluster.name} does not answer: see ClusterReady of that InferenceCluster"
            if cluster.error
            else "cluster has not been listed yet"
        )
        told = last or CachedCluster(name=cluster.name, phase="Pending", since=seen.now)
        told = settled(told).model_copy(update={"message": why[:1000]}) if cluster.error else told
        return ClusterPlan(told, requeue_after=None if cluster.error else REQUEUE_SOON, counts=cluster.meant)
    if not cluster.meant and not cluster.users:
        return _leaving(cluster, last)
    if claim_of(seen.cache):
        return existing(seen, cluster, last)
    present = Present(seen, cluster)
    if present.claim is None and not cluster.meant:  # it keeps what replicas start from, and gets nothing new
        return ClusterPlan(settled(last).model_copy(update=used(cluster)), counts=False) if last else None
    return present.look(last)


def existing(seen: Observed, cluster: ClusterState, last: CachedCluster | None) -> ClusterPlan:
    """A cluster on which the cache is a claim that somebody else has made."""
    name, home = claim_of(seen.cache), names.remote_namespace(seen.cache.key.namespace)
    fences = render_fences(seen.cache.key.namespace, seen.namespace_uid, cluster.isolation)
    keep = [*fences, *volumes_in_use(cluster)]
    steps: list[Step] = [Apply(one, cluster.name) for one in fences] if cluster.meant else []
    steps += prune(cluster.children, keep, owner=seen.cache.metadata.uid or "", cluster=cluster.name)
    bound = section(cluster.existing or {}, "status").get("phase")
    phase: Phase = "Ready" if bound == "Bound" else "Pending"
    unbound = f"is not bound: `kubectl describe pvc -n {home} {name}` on the cluster says why"
    missing = "does not exist: make it on the cluster, with the weights in it" if cluster.existing is None else unbound
    why = f"PersistentVolumeClaim {home}/{name} {missing}"
    was = last.since if last and last.phase == phase else None
    told = CachedCluster(
        name=cluster.name,
        phase=phase,
        message=None if phase == "Ready" else why,
        since=was or seen.now,
        volume=name if phase == "Ready" else None,
        **used(cluster),
    )
    return ClusterPlan(told, tuple(steps), None if phase == "Ready" else seen.recheck, counts=cluster.meant)


def _leaving(cluster: ClusterState, last: CachedCluster | None) -> ClusterPlan | None:
    """The cache has nothing to do on a cluster any more."""
    steps = tuple(delete(one, cluster=cluster.name) for one in cluster.children if not is_terminating(one))
    if cluster.children:
        told = settled(last or CachedCluster(name=cluster.name))
        return ClusterPlan(told.model_copy(update={"message": "what is there is being deleted"}), steps, counts=False)
    if last is None or cluster.namespace is None:
        return None
    return ClusterPlan(settled(last), (delete(cluster.namespace, cluster=cluster.name),), counts=False)
