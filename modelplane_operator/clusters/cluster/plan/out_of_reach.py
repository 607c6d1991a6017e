"""A cluster of which nothing can be known at the moment."""

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
    """Nothing can be done until somebody changes something."""
    resolved = resolved_pools(seen)
    told = reason.condition(seen.now, message=words)
    judged = (
        told,
        BackendReady.WAITING_FOR_CLUSTER.condition(seen.now),
        pools_valid(seen, resolved),
        not_ready(InferenceCluster.definition.kind, told),
    )
    return Plan(status=status_of(seen, resolved, judged))


def unreachable(seen: Observed, error: ClientError) -> Plan:
    """It does not answer, or nothing that it says can be used: what was known of it stays."""
    reason = ClusterReady.MISBEHAVING if isinstance(error, Misbehaving) else ClusterReady.UNREACHABLE
    since = _since(seen, reason).strftime("%Y-%m-%dT%H:%M:%SZ")
    where = f" ({seen.server})" if seen.server else ""
    words = f"{seen.named} {_what(error)} since {since}: {error}{where}"
    resolved = resolved_pools(seen)
    judged = (
        reason.condition(seen.now, message=words),
        BackendReady.UNREACHABLE.condition(seen.now, message=f"{seen.named} cannot be asked: see ClusterReady"),
        pools_valid(seen, resolved),
        Ready.UNREACHABLE.condition(seen.now, message=words),
    )
    return Plan(status=status_of(seen, resolved, judged))


def _what(error: ClientError) -> str:
    match error:
        case Misbehaving():
            return "misbehaves, and is left alone for some minutes each time"
        case Unauthorized():
            return "does not accept the operator"
        case KubeconfigError():
            return "cannot be asked"
        case _:
            return "has not answered"


def _since(seen: Observed, reason: ConditionType) -> datetime:
    """Since when a condition with this reason will have had this status."""
    for known in seen.cluster.conditions:
        if (known.type, known.status) == (reason.type, reason.status):
            return known.last_transition_time
    return seen.now
