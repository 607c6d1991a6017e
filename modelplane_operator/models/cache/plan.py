"""Plan a ModelCache: on each cluster, a volume that is filled once and retained while replicas start from it.

The steps of each cluster are a strand. `cached_cluster` plans one cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kubeloop.condition_types import Ready
from kubeloop.errors import Defect
from kubeloop.objects import is_terminating, key_of
from kubeloop.plan import LET_GO, Plan, delete
from kubeloop.words import list_names
from modelplane_operator.api import labels
from modelplane_operator.api.model_cache import ArtifactReady, CachedCluster, CacheSummary, ModelCache, ModelCacheStatus
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.models.cache.cache_pace import apply_backoff
from modelplane_operator.models.cache.cache_sources import (
    claim_of,
    credentials,
    format_for_column,
    remote_source,
    source_of,
)
from modelplane_operator.models.cache.cache_status import MAX_NAMES, compute_conditions, progress_of, ready_of
from modelplane_operator.models.cache.cached_cluster import (
    PAUSE,
    REQUEUE_SOON,
    ClusterPlan,
    ClusterState,
    Observed,
    claims,
    clear_rejection,
    plan_cluster,
    used,
)

KIND = ModelCache.definition.kind
MOST: Final = 100  # each has seven objects on each of its clusters
"""Number of caches that a namespace may have."""
CROWDED: Final = f"a namespace may have {MOST} caches, and older ones take all of these: delete some of them"
"""Message for a cache beyond the limit."""


def plan(observed: Observed) -> Plan:
    """Return the steps and the status for a cache on all of its clusters.

    A cache beyond the namespace's limit gets only a status, unless it already has objects on a cluster.
    """
    if observed.cache.metadata.deletion_timestamp is not None:
        return _teardown(observed)
    if not observed.namespace_uid:
        return Plan(requeue_after=REQUEUE_SOON)
    if observed.crowded:
        reported = observed.cache.status.clusters if observed.cache.status else ()
        if not reported and not any(cluster.children or cluster.users for cluster in observed.clusters):
            too_many = ArtifactReady.TOO_MANY.condition(observed.now, message=CROWDED)
            crowded_status = ModelCacheStatus(conditions=(too_many, not_ready(KIND, too_many)))
            return Plan(status=crowded_status, requeue_after=PAUSE.total_seconds())
    plans = _plan_clusters(observed, plan_cluster)
    waits = [cluster_plan.requeue_after for cluster_plan in plans if cluster_plan.requeue_after is not None]
    if credentials(source_of(observed.cache)) and any(cluster_plan.row.phase != "Ready" for cluster_plan in plans):
        waits.append(observed.recheck)
    steps = tuple(step for cluster_plan in plans for step in cluster_plan.steps)
    return Plan(
        steps,
        _compute_status(observed, plans),
        requeue_after=min(waits, default=None),
        refused=_rejection_message(plans),
        defects=_defects(plans),
    )


def _plan_clusters(
    observed: Observed, plan_single: Callable[[Observed, ClusterState], ClusterPlan | None]
) -> Sequence[ClusterPlan]:
    """Return the plan of each cluster. Any data of one cluster, even malformed, must not affect the others."""

    def plan_safely(cluster: ClusterState) -> ClusterPlan | None:
        """Return the plan of a cluster; one that only reports the defect if its data raises an exception."""
        try:
            cluster_plan = plan_single(observed, cluster)
            return cluster_plan and apply_backoff(observed, cluster_plan)
        except Exception as error:  # noqa: BLE001 - a hostile cluster may return anything
            message = f"the answer of cluster {cluster.name} cannot be read: {Defect.by(error)}"
            row = clear_rejection(
                observed.cache.on(cluster.name) or CachedCluster(name=cluster.name, phase="Pending", since=observed.now)
            )
            row = row.model_copy(update={"message": message[:1000]})
            return ClusterPlan(
                row, requeue_after=PAUSE.total_seconds(), counts=cluster.is_selected, reason=message, defect=error
            )

    return [cluster_plan for cluster in observed.clusters if (cluster_plan := plan_safely(cluster))]


def _defects(plans: Iterable[ClusterPlan]) -> Mapping[str, Exception]:
    """Return the exceptions in plans of clusters, by cluster."""
    return {cluster_plan.row.name: cluster_plan.defect for cluster_plan in plans if cluster_plan.defect}


def _compute_status(observed: Observed, plans: Sequence[ClusterPlan]) -> ModelCacheStatus:
    """Return the status from the plans of all clusters."""
    rows = [cluster_plan.row for cluster_plan in plans if cluster_plan.counts]
    matched, artifact = compute_conditions(
        observed.cache,
        rows,
        observed.now,
        without_storage=observed.without_storage,
        secret_missing=observed.secret_missing,
    )
    ready = Ready.AVAILABLE.condition(observed.now, message=artifact.message or "")
    return ModelCacheStatus(
        conditions=(matched, artifact, ready if artifact.status == "True" else not_ready(KIND, artifact)),
        summary=CacheSummary(
            source=format_for_column(source_of(observed.cache))[:2048],
            ready=ready_of(rows),
            size=None if claim_of(observed.cache) else f"{remote_source(observed.cache).size_gib}Gi",
            progress=progress_of(rows),
        ),
        clusters=tuple(cluster_plan.row for cluster_plan in plans),
    )


def _rejection_message(plans: Iterable[ClusterPlan]) -> str:
    """Return the messages of clusters that have rejected a write."""
    return "; ".join(filter(None, (cluster_plan.row.message for cluster_plan in plans if cluster_plan.row.refusals)))


# Teardown -------------------------------------------------------------------------------------------------------------


def _teardown(observed: Observed) -> Plan:
    """Return the next steps to delete a cache.

    Downloads stop at once; volumes go when no replica starts from them.
    """
    if labels.FINALIZER not in observed.cache.metadata.finalizers:
        return Plan()
    plans = _plan_clusters(observed, _plan_deletion)
    steps = tuple(step for cluster_plan in plans for step in cluster_plan.steps)
    reasons = [
        reasons
        for cluster_plan in plans
        if (reasons := cluster_plan.row.message if cluster_plan.row.refusals else cluster_plan.reason)
    ]
    if not reasons:
        return Plan((*steps, LET_GO))
    reported = (
        {cluster_plan.name for cluster_plan in observed.cache.status.clusters} if observed.cache.status else set[str]()
    )
    rows = tuple(
        cluster_plan.row for cluster_plan in plans if cluster_plan.row.name in reported or cluster_plan.row.refusals
    )
    deleting = Ready.DELETING.condition(observed.now, message="; ".join(reasons[:MAX_NAMES]))
    status = (observed.cache.status or ModelCacheStatus()).model_copy(
        update={"conditions": (deleting,), "clusters": rows}
    )
    requeue_after = min(
        (cluster_plan.requeue_after for cluster_plan in plans if cluster_plan.requeue_after is not None), default=None
    )
    return Plan(steps, status, requeue_after=requeue_after, refused=_rejection_message(plans), defects=_defects(plans))


def _plan_deletion(observed: Observed, cluster: ClusterState) -> ClusterPlan:
    """Return the deletions on one cluster, and the reason why they wait."""
    row = observed.cache.on(cluster.name) or CachedCluster(name=cluster.name)
    if not cluster.connected:
        reason = f"cluster {cluster.name} does not answer; the copy there is deleted when it answers again"
        return ClusterPlan(
            clear_rejection(row) if cluster.error else row,
            requeue_after=None if cluster.error else REQUEUE_SOON,
            reason=reason,
        )
    volumes = claims(cluster)
    others = [child for child in cluster.children if child not in volumes]
    deletable = others if cluster.users else [*others, *volumes]
    steps = tuple(delete(child, cluster=cluster.name) for child in deletable if not is_terminating(child))
    reason = ""
    if cluster.users and (volumes or claim_of(observed.cache)):
        users = list_names((user.name for user in cluster.users), MAX_NAMES)
        reason = f"replicas on cluster {cluster.name} start from the cache: {users}"
    elif cluster.children:
        remaining = list_names((f"{child['kind']} {key_of(child).name}" for child in cluster.children), MAX_NAMES)
        reason = f"waiting for deletions on cluster {cluster.name}: {remaining}"
    elif cluster.namespace is not None and not is_terminating(cluster.namespace):
        steps = (*steps, delete(cluster.namespace, cluster=cluster.name))
    return ClusterPlan(clear_rejection(row).model_copy(update=used(cluster)), steps, reason=reason)
