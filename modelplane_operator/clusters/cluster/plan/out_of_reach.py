"""Plans for a cluster whose state cannot be read at the moment."""

from __future__ import annotations

from datetime import datetime

from kubeloop.condition_types import ConditionType, Ready
from kubeloop.errors import ClientError, KubeconfigError, Misbehaving, Unauthorized
from kubeloop.plan import Plan
from modelplane_operator.api.inference_cluster import BackendReady, ClusterReady, InferenceCluster
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.clusters.cluster.plan.observed import Observed
from modelplane_operator.clusters.cluster.plan.status import pools_valid, resolved_pools, status_of


def waiting(seen: Observed, reason: ClusterReady, words: str) -> Plan:
    """Return a plan that changes nothing until the user changes something; it sets the reason and message."""
    resolved = resolved_pools(seen)
    cluster_ready = reason.condition(seen.now, message=words)
    conditions = (
        cluster_ready,
        BackendReady.WAITING_FOR_CLUSTER.condition(seen.now),
        pools_valid(seen, resolved),
        not_ready(InferenceCluster.definition.kind, cluster_ready),
    )
    return Plan(status=status_of(seen, resolved, conditions))


def unreachable(seen: Observed, error: ClientError) -> Plan:
    """Return a plan that changes nothing but conditions: the cluster does not answer, or its responses are unusable."""
    reason = ClusterReady.MISBEHAVING if isinstance(error, Misbehaving) else ClusterReady.UNREACHABLE
    started_at = _get_transition_time(seen, reason).strftime("%Y-%m-%dT%H:%M:%SZ")
    address = f" ({seen.server})" if seen.server else ""
    message = f"{seen.named} {_describe_error(error)} since {started_at}: {error}{address}"
    resolved = resolved_pools(seen)
    conditions = (
        reason.condition(seen.now, message=message),
        BackendReady.UNREACHABLE.condition(seen.now, message=f"{seen.named} cannot be asked: see ClusterReady"),
        pools_valid(seen, resolved),
        Ready.UNREACHABLE.condition(seen.now, message=message),
    )
    return Plan(status=status_of(seen, resolved, conditions))


def _describe_error(error: ClientError) -> str:
    """Return the predicate of the message about an error of the connection."""
    match error:
        case Misbehaving():
            return "misbehaves, and is left alone for some minutes each time"
        case Unauthorized():
            return "does not accept the operator"
        case KubeconfigError():
            return "cannot be asked"
        case _:
            return "has not answered"


def _get_transition_time(observed: Observed, reason: ConditionType) -> datetime:
    """Return when the condition got this reason's status; now if it does not have that yet."""
    for current in observed.cluster.conditions:
        if (current.type, current.status) == (reason.type, reason.status):
            return current.last_transition_time
    return observed.now
