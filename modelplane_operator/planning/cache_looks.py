"""What a cache is on one cluster: a volume of its own, or a neighbour's, or a claim that is there already."""

from __future__ import annotations

from modelplane_operator.api import labels, names
from modelplane_operator.api.model_cache import CachedCluster, ModelCache, Phase
from modelplane_operator.kube.objects import Manifest, annotations_of, is_terminating, key_of, section
from modelplane_operator.planning.cached_cluster import (
    REQUEUE_SOON,
    ClusterPlan,
    ClusterState,
    Neighbour,
    Observed,
    Present,
    before,
    claims,
    owner_of,
    revision_of,
    settled,
    used,
    volumes_in_use,
)
from modelplane_operator.planning.plan import Apply, Step, delete, prune
from modelplane_operator.rendering.cache_sources import claim_of, content_of
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
    if neighbour := lender(seen, cluster):
        return borrowed(seen, cluster, neighbour, last)
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


# A volume that is shared ----------------------------------------------------------------------------------------------


def lender(seen: Observed, cluster: ClusterState) -> Neighbour | None:
    """The neighbour whose volume of the same content is started from, or waited for; None when it makes its own.

    Of several, one whose volume is complete, then one that has a volume; without any, the oldest cache makes it.
    """
    if seen.cache.spec.sharing is None or not cluster.meant:
        return None
    if any(_holds(one, content_of(seen.cache)) for one in claims(cluster)):
        return None
    able = [one for one in cluster.neighbours if _lends(seen, cluster, one)]
    return min(able, key=lambda one: _rank(one, content_of(seen.cache)), default=None)


def _lends(seen: Observed, cluster: ClusterState, neighbour: Neighbour) -> bool:
    other, content, last = neighbour.cache, content_of(seen.cache), seen.cache.on(cluster.name)
    claim = lent(neighbour, content)
    staged = claim is not None and labels.STAGED in annotations_of(claim)
    if claim and staged and last and last.volume == key_of(claim).name:
        return True  # it is started from already, and stays for that
    if other.spec.sharing is None or other.metadata.deletion_timestamp:
        return False
    makes = neighbour.meant and neighbour.content == content and not _paused(other)
    return staged or (makes and (claim is not None or _age(other) < _age(seen.cache)))


def _rank(neighbour: Neighbour, content: str) -> tuple[bool, bool, tuple[str, str]]:
    claim = lent(neighbour, content)
    return claim is None or labels.STAGED not in annotations_of(claim), claim is None, _age(neighbour.cache)


def lent(neighbour: Neighbour, content: str) -> Manifest | None:
    """The volume of a neighbour with that content."""
    return next((one for one in neighbour.claims if _holds(one, content)), None)


def _holds(claim: Manifest, content: str) -> bool:
    return annotations_of(claim).get(labels.CONTENT) == content and not is_terminating(claim)


def _age(cache: ModelCache) -> tuple[str, str]:
    return str(cache.metadata.creation_timestamp or ""), cache.key.name


def _paused(cache: ModelCache) -> bool:
    return (cache.metadata.annotations or {}).get(labels.PAUSED) == "true"


def borrowed(seen: Observed, cluster: ClusterState, neighbour: Neighbour, last: CachedCluster | None) -> ClusterPlan:
    """A cluster on which a neighbour fills the volume."""
    claim, name, theirs = lent(neighbour, content_of(seen.cache)), neighbour.cache.key.name, None
    staged = claim is not None and labels.STAGED in annotations_of(claim)
    if not staged:
        theirs = neighbour.cache.on(cluster.name)
    serving = claim if staged else before(seen, cluster)
    phase: Phase = "Ready" if staged else (theirs and theirs.phase) or "Pending"
    phase = "Hydrating" if phase == "Ready" and not staged else phase  # of another content
    fences = render_fences(seen.cache.key.namespace, seen.namespace_uid, cluster.isolation)
    steps: list[Step] = [Apply(one, cluster.name) for one in fences]
    keep = [*fences, *volumes_in_use(cluster, serving)]
    steps += prune(cluster.children, keep, owner=seen.cache.metadata.uid or "", cluster=cluster.name)
    message = "" if staged else f"ModelCache {name} stages it for this one too"
    message = f"{message}: {theirs.message}" if theirs and theirs.message else message
    was = last.since if last and last.phase == phase else None
    told = CachedCluster(
        name=cluster.name,
        phase=phase,
        message=message[:1000] or None,
        since=was or seen.now,
        progress=theirs.progress if theirs else None,
        volume=key_of(serving).name if serving else None,
        revision=revision_of(serving) or None,
        volume_of=name if staged or serving is None else owner_of(serving, cluster),
        **used(cluster),
    )
    return ClusterPlan(told, tuple(steps))
