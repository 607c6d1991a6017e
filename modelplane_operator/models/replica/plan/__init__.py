"""One replica: its objects on its cluster, how it does there, and how it goes.

A replica is torn down in this order: its pods end and finish what they answer, while the route still leads to them;
then the rest is deleted, then the namespace when no other replica needs it and nobody else has anything there.
"""

from __future__ import annotations

from kubeloop.plan import Apply, Plan, Step, prune
from kubeloop.types import type_of
from modelplane_operator.api.model_replica import ModelAccepted
from modelplane_operator.models.replica.plan.engines import engines
from modelplane_operator.models.replica.plan.observed import REQUEUE_SOON, WORKLOADS, ClusterState, Observed
from modelplane_operator.models.replica.plan.out_of_reach import out_of_sight, waiting
from modelplane_operator.models.replica.plan.referenced import keeps, missing, whole
from modelplane_operator.models.replica.plan.status import Problem, judged
from modelplane_operator.models.replica.plan.teardown import teardown
from modelplane_operator.models.replica.render import NOT_SERVED, CannotRender, render_model_replica, sources

__all__ = ["ClusterState", "Observed", "plan"]

REFRESH = 300.0  # Secrets of the hub are read and not watched: a changed one reaches its copies within that time


def plan(seen: Observed) -> Plan:
    if seen.replica.metadata.deletion_timestamp is not None:
        return teardown(seen)
    if not seen.cluster.exists:
        name = seen.replica.spec.cluster_name
        return waiting(seen, f"there is no connection to cluster {name}: see its InferenceCluster")
    if seen.cluster.error is not None:
        return out_of_sight(seen, seen.cluster.error)
    if not seen.cluster.connected:
        return Plan(requeue_after=REQUEUE_SOON)
    rendered = render_model_replica(seen.replica, whole(seen), lifecycle=seen.lifecycle)
    if isinstance(rendered, CannotRender):
        why = ModelAccepted.NOT_SERVED if rendered.cause in NOT_SERVED else ModelAccepted.INVALID_ENGINE
        return Plan(status=judged(seen, engines(seen, ()), Problem(why, rendered.message)))
    found = engines(seen, rendered)
    cluster = seen.replica.spec.cluster_name
    held = "" if any(type_of(child) in WORKLOADS for child in seen.children) else seen.held
    steps: list[Step] = [Apply(one, cluster) for one in rendered if not held or type_of(one) not in WORKLOADS]
    complete = not any(engine.lacks for engine in found)
    spare = [child for child in seen.children if not keeps(child, seen, complete=complete)]
    steps += prune(spare, rendered, owner=seen.replica.metadata.uid or "", cluster=cluster)
    steps += prune(seen.fences, rendered, owner=seen.around.namespace_uid, cluster=cluster)
    requeue_after = REFRESH if sources(seen.replica) else None
    absent = missing(seen, copied=False)
    problem = Problem(ModelAccepted.MODEL_CACHE_HYDRATING, held) if held else None
    problem = Problem(ModelAccepted.SOURCE_NOT_FOUND, absent) if absent else problem
    return Plan(tuple(steps), judged(seen, found, problem), requeue_after=requeue_after)
