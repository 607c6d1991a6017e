"""A cluster of which nothing can be known at the moment, or for which nothing is to be made."""

from __future__ import annotations

from datetime import datetime

from modelplane_operator.api.conditions import Condition, ConditionType, Ready
from modelplane_operator.api.inference_cluster import (
    BackendReady,
    ClusterReady,
    InferenceClusterStatus,
    ObservedCluster,
    RegisteredOnce,
)
from modelplane_operator.clients.errors import ClientError, Misbehaving
from modelplane_operator.planning.inference_cluster.observed import Observed, There
from modelplane_operator.planning.inference_cluster.status import pools_valid, resolved_pools, status_of
from modelplane_operator.planning.plan import Plan


def waiting(seen: Observed, reason: ClusterReady, words: str, *more: Condition) -> Plan:
    """Nothing can be done until somebody changes something."""
    resolved = resolved_pools(seen)
    judged = (
        reason.condition(seen.now, message=words),
        BackendReady.WAITING_FOR_CLUSTER.condition(seen.now),
        pools_valid(seen, resolved),
        Ready.CREATING.condition(seen.now, message=words),
        *more,
    )
    return Plan(status=status_of(seen, resolved, judged))


def identified(seen: Observed, there: There) -> InferenceClusterStatus:
    """The status as it was, and which cluster it is."""
    last = seen.cluster.status.observed if seen.cluster.status else None
    observed = (last or ObservedCluster()).model_copy(update={"uid": there.uid})
    told = RegisteredOnce.NOT_KNOWN.condition(seen.now)  # what it has had was another cluster
    return status_of(seen, resolved_pools(seen), (told,)).model_copy(update={"observed": observed})


def duplicate(seen: Observed, there: There) -> Plan:
    """Nothing is made on a cluster that another InferenceCluster has. What is placed there stays."""
    words = f"it is the same cluster as InferenceCluster {there.registered_before}: delete one of the two"
    told = RegisteredOnce.SAME_CLUSTER.condition(seen.now, message=words)
    return waiting(seen, ClusterReady.SAME_CLUSTER, words, told)


def silent(seen: Observed, error: ClientError) -> Plan:
    """It does not answer, or nothing that it says can be used: what was known of it stays."""
    reason = ClusterReady.MISBEHAVING if isinstance(error, Misbehaving) else ClusterReady.UNREACHABLE
    since = _since(seen, reason).strftime("%Y-%m-%dT%H:%M:%SZ")
    words = f"it has not answered since {since}: {error}"
    if reason is ClusterReady.MISBEHAVING:
        words = f"it misbehaves, and is left alone for some minutes each time since {since}: {error}"
    resolved = resolved_pools(seen)
    judged = (
        reason.condition(seen.now, message=words),
        BackendReady.UNREACHABLE.condition(seen.now, message=words),
        pools_valid(seen, resolved),
        Ready.UNREACHABLE.condition(seen.now, message=words),
    )
    return Plan(status=status_of(seen, resolved, judged))


def _since(seen: Observed, reason: ConditionType) -> datetime:
    """Since when a condition with this reason will have had this status."""
    for known in seen.cluster.conditions:
        if (known.type, known.status) == (reason.type, reason.status):
            return known.last_transition_time
    return seen.now
