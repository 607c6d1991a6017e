"""Plans for a cluster whose state cannot be read at the moment."""

from __future__ import annotations

from kubeloop.condition_types import Ready
from kubeloop.errors import ClientError, KubeconfigError, Misbehaving, ServerFault, Unauthorized
from kubeloop.plan import Plan
from modelplane_operator.api.inference_cluster import BackendReady, ClusterReady, InferenceCluster
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.clusters.cluster.plan.observed import Observed
from modelplane_operator.clusters.cluster.plan.status import pools_valid, resolve_pools, status_of


def plan_waiting(observed: Observed, reason: ClusterReady, message: str, *, cause: str = "") -> Plan:
    """Return a plan that changes nothing until the user changes something; it sets the reason and message.

    `cause` is the reason of the cloud's object, which Ready repeats.
    """
    resolved = resolve_pools(observed)
    cluster_ready = reason.condition(observed.now, message=message)
    conditions = (
        cluster_ready,
        BackendReady.WAITING_FOR_CLUSTER.condition(observed.now),
        pools_valid(observed, resolved),
        not_ready(InferenceCluster.definition.kind, cluster_ready, reason=cause),
    )
    return Plan(status=status_of(observed, resolved, conditions))


def plan_unreachable(observed: Observed, error: ClientError) -> Plan:
    """Return a plan that changes nothing but conditions: the cluster does not answer, or its responses are unusable."""
    reason = ClusterReady.MISBEHAVING if isinstance(error, Misbehaving) else ClusterReady.UNREACHABLE
    transitions = (
        current.last_transition_time
        for current in observed.cluster.conditions
        if (current.type, current.status) == (reason.type, reason.status)
    )
    started_at = next(transitions, observed.now).strftime("%Y-%m-%dT%H:%M:%SZ")
    address = f" ({observed.server})" if observed.server else ""
    name, details = observed.display_name, f"since {started_at}: {error}{address}"
    match error:
        case Misbehaving():
            message = f"{name} misbehaves, so the operator waits some minutes between attempts, {details}"
        case Unauthorized():
            message = f"{name} rejects the operator's credentials {details}"
        case KubeconfigError():
            message = f"{name} cannot be reached {details}"
        case ServerFault():
            message = (
                f"the API server of {name} answers but is not ready since {started_at} ({error}){address}: look at its "
                "control plane, etcd first"
            )
        case _:
            message = f"{name} has not answered {details}"
    resolved = resolve_pools(observed)
    conditions = (
        reason.condition(observed.now, message=message),
        BackendReady.UNREACHABLE.condition(
            observed.now, message=f"{observed.display_name} cannot be reached: see ClusterReady"
        ),
        pools_valid(observed, resolved),
        Ready.UNREACHABLE.condition(observed.now, message=message),
    )
    return Plan(status=status_of(observed, resolved, conditions))
