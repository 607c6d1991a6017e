"""Plan a replica whose cluster is missing or does not answer."""

from __future__ import annotations

from kubeloop.condition_types import Ready
from kubeloop.errors import ApiError, ClientError, KubeconfigError
from kubeloop.plan import Plan
from modelplane_operator.api.model_replica import ModelAccepted, ModelReady, PickerReady
from modelplane_operator.models.replica.plan.observed import Observed
from modelplane_operator.models.replica.plan.status import status


def plan_waiting(observed: Observed, reason: str) -> Plan:
    """Return the plan of a replica that waits for its cluster. A replica that has conditions keeps them."""
    if observed.replica.conditions:
        return Plan()
    now = observed.now
    conditions = (
        ModelAccepted.WAITING_FOR_CLUSTER.condition(now, message=reason),
        ModelReady.WAITING_FOR_MODEL.condition(now),
        Ready.CREATING.condition(now, message=reason),
    )
    return Plan(status=status(conditions))


def silence(cluster: str, error: ClientError) -> ClientError:
    """Return an error without the cluster's own text, for tenants to read.

    Errors of other types are returned as they are.
    """
    if not isinstance(error, ApiError | KubeconfigError):
        return error
    return type(error)(f"cluster {cluster} does not answer: see ClusterReady of that InferenceCluster")


def plan_unreachable(observed: Observed, error: ClientError) -> Plan:
    """Return the plan of a replica whose cluster's API server does not answer.

    The model counts as lost only if the gateway of the cluster is silent, too.
    """
    cluster = observed.replica.spec.cluster_name
    error = silence(cluster, error)
    if not observed.replica.conditions:
        return Plan(status=plan_waiting(observed, str(error)).status, failure=error)
    if observed.cluster.serving:
        return Plan(failure=error)
    message = f"neither cluster {cluster} nor its gateway answers: see ClusterReady of that InferenceCluster"
    picker = (item for item in observed.replica.conditions if item.type == PickerReady.__name__)
    conditions = (
        *picker,
        ModelReady.CLUSTER_UNREACHABLE.condition(observed.now, message=message),
        Ready.UNREACHABLE.condition(observed.now, message=message),
    )
    last = observed.replica.status
    new_status = status(
        conditions,
        reserved=last.held_nodes if last else (),
        unschedulable_since=last.unschedulable_since if last else None,
        paths=last.paths if last else None,
    )
    return Plan(status=new_status, failure=error)
