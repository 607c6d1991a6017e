"""Plan a ModelReplica: its objects on its cluster, its status, and its teardown.

A replica is torn down in this order: its pods end and finish their responses while the route still leads to them;
then the other objects are deleted; then the namespace, if no other replica needs it and it has no foreign objects.
"""

from __future__ import annotations

from kubeloop.plan import Apply, Plan, Step, prune
from kubeloop.types import type_of
from modelplane_operator.api.model_replica import ModelAccepted
from modelplane_operator.models.replica.plan.engines import engines
from modelplane_operator.models.replica.plan.observed import REQUEUE_SOON, WORKLOADS, ClusterState, Observed
from modelplane_operator.models.replica.plan.out_of_reach import plan_unreachable, plan_waiting
from modelplane_operator.models.replica.plan.outdated import find_outdated
from modelplane_operator.models.replica.plan.referenced import complete_context, describe_missing, keeps
from modelplane_operator.models.replica.plan.status import Problem, compute_status
from modelplane_operator.models.replica.plan.teardown import teardown
from modelplane_operator.models.replica.render import NOT_SERVED, CannotRender, render_model_replica, sources

__all__ = ["ClusterState", "Observed", "plan"]

REFRESH = 300.0  # Secrets of the hub are read, not watched: a change reaches the copies within that time
"""Seconds between reconciles of a replica that copies Secrets or ConfigMaps of the hub."""


def plan(observed: Observed) -> Plan:
    """Return the steps and the status for an observed replica.

    Nothing is applied while the cluster is unknown, unreachable or not synced, or while the spec cannot be
    rendered. Workloads that do not exist yet wait until the weights are complete on the cluster.
    """
    if observed.replica.metadata.deletion_timestamp is not None:
        return teardown(observed)
    if not observed.cluster.exists:
        name = observed.replica.spec.cluster_name
        return plan_waiting(observed, f"there is no connection to cluster {name}: see its InferenceCluster")
    if observed.cluster.error is not None:
        return plan_unreachable(observed, observed.cluster.error)
    if not observed.cluster.connected:
        return Plan(requeue_after=REQUEUE_SOON)
    context = complete_context(observed)
    rendered = render_model_replica(observed.replica, context, lifecycle=observed.lifecycle)
    if isinstance(rendered, CannotRender):
        reason = ModelAccepted.NOT_SERVED if rendered.cause in NOT_SERVED else ModelAccepted.INVALID_ENGINE
        return Plan(status=compute_status(observed, engines(observed, ()), Problem(reason, rendered.message)))
    states = engines(observed, rendered)
    cluster = observed.replica.spec.cluster_name
    awaited = None if any(type_of(child) in WORKLOADS for child in observed.children) else observed.awaited
    steps: list[Step] = [
        Apply(manifest, cluster) for manifest in rendered if not awaited or type_of(manifest) not in WORKLOADS
    ]
    complete = not any(engine.lacks for engine in states)
    prunable = [child for child in observed.children if not keeps(child, observed, complete=complete)]
    steps += prune(prunable, rendered, owner=observed.replica.metadata.uid or "", cluster=cluster)
    steps += prune(observed.fences, rendered, owner=observed.around.namespace_uid, cluster=cluster)
    requeue_after = REFRESH if sources(observed.replica) else None
    missing_sources = describe_missing(observed, copied=False)
    problem = None
    if awaited:
        reason = ModelAccepted.MODEL_CACHE_FAILED if awaited.reason else ModelAccepted.MODEL_CACHE_HYDRATING
        problem = Problem(reason, awaited.message, awaited.reason)
    problem = Problem(ModelAccepted.SOURCE_NOT_FOUND, missing_sources) if missing_sources else problem
    reported = compute_status(observed, states, problem).model_copy(
        update={"outdated": find_outdated(observed, context, rendered)}
    )
    return Plan(tuple(steps), reported, requeue_after=requeue_after)
