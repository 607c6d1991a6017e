"""A cache on its clusters: on each, a volume that is filled once and kept for as long as anybody starts from it.

Each cluster's steps are a strand; what is done on one is in `cached_cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kubeloop.condition_types import Ready
from kubeloop.errors import Defect
from kubeloop.objects import is_terminating, key_of
from kubeloop.plan import LET_GO, Plan, delete
from kubeloop.words import listed
from modelplane_operator.api import labels
from modelplane_operator.api.model_cache import ArtifactReady, CachedCluster, CacheSummary, ModelCache, ModelCacheStatus
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.models.cache.cache_pace import paced
from modelplane_operator.models.cache.cache_sources import claim_of, credentials, fetched_by, shown, source_of
from modelplane_operator.models.cache.cache_status import TOLD, judged, progress_of, ready_of
from modelplane_operator.models.cache.cached_cluster import (
    PAUSE,
    REQUEUE_SOON,
    ClusterPlan,
    ClusterState,
    Observed,
    claims,
    plan_cluster,
    settled,
    used,
)

KIND = ModelCache.definition.kind
MOST: Final = 100  # caches of a namespace: each is seven objects on each of its clusters, of which one may have 20,000
CROWDED: Final = f"the {MOST} oldest caches of a namespace are staged, and it is none of them: delete some of those"


def plan(seen: Observed) -> Plan:
    if seen.cache.metadata.deletion_timestamp is not None:
        return _teardown(seen)
    if not seen.namespace_uid:
        return Plan(requeue_after=REQUEUE_SOON)
    if seen.crowded and not _holds_anything(seen):
        return Plan(status=_crowded(seen), requeue_after=PAUSE.total_seconds())
    looks = _each(seen, plan_cluster)
    waits = [one.requeue_after for one in looks if one.requeue_after is not None]
    if credentials(source_of(seen.cache)) and any(one.told.phase != "Ready" for one in looks):
        waits.append(seen.recheck)
    steps = tuple(step for one in looks for step in one.steps)
    return Plan(
        steps,
        _status(seen, looks),
        requeue_after=min(waits, default=None),
        refused=_refused(looks),
        defects=_defects(looks),
    )


def _each(seen: Observed, judge: Callable[[Observed, ClusterState], ClusterPlan | None]) -> Sequence[ClusterPlan]:
    """What is said and done of each cluster. What one of them says, whatever it is, holds up no other."""

    def alone(cluster: ClusterState) -> ClusterPlan | None:
        try:
            one = judge(seen, cluster)
            return one and paced(seen, one)
        except Exception as error:  # noqa: BLE001 - a hostile one may say anything
            why = f"what cluster {cluster.name} says cannot be read: {Defect.by(error)}"
            told = settled(
                seen.cache.on(cluster.name) or CachedCluster(name=cluster.name, phase="Pending", since=seen.now)
            )
            told = told.model_copy(update={"message": why[:1000]})
            return ClusterPlan(told, requeue_after=PAUSE.total_seconds(), counts=cluster.meant, why=why, defect=error)

    return [one for cluster in seen.clusters if (one := alone(cluster))]


def _defects(looks: Iterable[ClusterPlan]) -> Mapping[str, Exception]:
    return {one.told.name: one.defect for one in looks if one.defect}


def _status(seen: Observed, looks: Sequence[ClusterPlan]) -> ModelCacheStatus:
    meant = [one.told for one in looks if one.counts]
    matched, artifact = judged(seen.cache, meant, seen.now, left_out=seen.left_out, secret_missing=seen.secret_missing)
    whole = Ready.AVAILABLE.condition(seen.now, message=artifact.message or "")
    return ModelCacheStatus(
        conditions=(matched, artifact, whole if artifact.status == "True" else not_ready(KIND, artifact)),
        summary=CacheSummary(
            source=shown(source_of(seen.cache))[:2048],
            ready=ready_of(meant),
            size=None if claim_of(seen.cache) else f"{fetched_by(seen.cache).size_gib}Gi",
            progress=progress_of(meant),
        ),
        clusters=tuple(one.told for one in looks),
    )


def _refused(looks: Iterable[ClusterPlan]) -> str:
    return "; ".join(filter(None, (one.told.message for one in looks if one.told.refusals)))


def _holds_anything(seen: Observed) -> bool:
    known = seen.cache.status.clusters if seen.cache.status else ()
    return bool(known) or any(cluster.children or cluster.users for cluster in seen.clusters)


def _crowded(seen: Observed) -> ModelCacheStatus:
    told = ArtifactReady.TOO_MANY.condition(seen.now, message=CROWDED)
    return ModelCacheStatus(conditions=(told, not_ready(KIND, told)))


# How it goes ----------------------------------------------------------------------------------------------------------


def _teardown(seen: Observed) -> Plan:
    """Nothing is fetched any more at once; volumes go when nobody starts from them."""
    if labels.FINALIZER not in seen.cache.metadata.finalizers:
        return Plan()
    looks = _each(seen, _leaving)
    steps = tuple(step for one in looks for step in one.steps)
    why = [why for one in looks if (why := one.told.message if one.told.refusals else one.why)]
    if not why:
        return Plan((*steps, LET_GO))
    known = {one.name for one in seen.cache.status.clusters} if seen.cache.status else set[str]()
    rows = tuple(one.told for one in looks if one.told.name in known or one.told.refusals)
    told = Ready.DELETING.condition(seen.now, message="; ".join(why[:TOLD]))
    status = (seen.cache.status or ModelCacheStatus()).model_copy(update={"conditions": (told,), "clusters": rows})
    requeue_after = min((one.requeue_after for one in looks if one.requeue_after is not None), default=None)
    return Plan(steps, status, requeue_after=requeue_after, refused=_refused(looks), defects=_defects(looks))


def _leaving(seen: Observed, cluster: ClusterState) -> ClusterPlan:
    """What is deleted on one cluster, and what that waits for."""
    told = seen.cache.on(cluster.name) or CachedCluster(name=cluster.name)
    if not cluster.connected:
        why = f"cluster {cluster.name} does not answer; what is there is deleted when it does"
        return ClusterPlan(
            settled(told) if cluster.error else told, requeue_after=None if cluster.error else REQUEUE_SOON, why=why
        )
    volumes = claims(cluster)
    rest = [one for one in cluster.children if one not in volumes]
    leaving = rest if cluster.users else [*rest, *volumes]
    steps = tuple(delete(one, cluster=cluster.name) for one in leaving if not is_terminating(one))
    why = ""
    if cluster.users and (volumes or claim_of(seen.cache)):
        users = listed((user.name for user in cluster.users), TOLD)
        why = f"replicas on cluster {cluster.name} start from the cache: {users}"
    elif cluster.children:
        left = listed((f"{one['kind']} {key_of(one).name}" for one in cluster.children), TOLD)
        why = f"waiting for what is on cluster {cluster.name} to go: {left}"
    elif cluster.namespace is not None and not is_terminating(cluster.namespace):
        steps = (*steps, delete(cluster.namespace, cluster=cluster.name))
    return ClusterPlan(settled(told).model_copy(update=used(cluster)), steps, why=why)
