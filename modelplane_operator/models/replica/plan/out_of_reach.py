"""A replica on whose cluster nothing can be done at the moment."""

from __future__ import annotations

from kubeloop.condition_types import Ready
from kubeloop.errors import ApiError, ClientError, KubeconfigError
from kubeloop.plan import Plan
from modelplane_operator.api.model_replica import ModelAccepted, ModelReady, PickerReady
from modelplane_operator.models.replica.plan.observed import Observed
from modelplane_operator.models.replica.plan.status import status


def waiting(seen: Observed, why: str) -> Plan:
    """Nothing can be done yet. What was known of a replica that runs stays true."""
    if seen.replica.conditions:
        return Plan()
    now = seen.now
    conditions = (
        ModelAccepted.WAITING_FOR_CLUSTER.condition(now, message=why),
        ModelReady.WAITING_FOR_MODEL.condition(now),
        Ready.CREATING.condition(now, message=why),
    )
    return Plan(status=status(conditions))


def silence(cluster: str, error: ClientError) -> ClientError:
    """Return an error of a cluster for tenants: of what may be the cluster's words, its kind alone."""
    if not isinstance(error, ApiError | KubeconfigError):
        return error
    return type(error)(f"cluster {cluster} does not answer: see ClusterReady of that InferenceCluster")


def out_of_sight(seen: Observed, error: ClientError) -> Plan:
    """The cluster's API server does not answer. That alone ends no model: only when its gateway is silent too."""
    cluster = seen.replica.spec.cluster_name
    error = silence(cluster, error)
    if not seen.replica.conditions:
        return Plan(status=waiting(seen, str(error)).status, failure=error)
    if seen.cluster.serving:
        return Plan(failure=error)
    why = f"neither cluster {cluster} nor its gateway answers: see ClusterReady of that InferenceCluster"
    picker = (each for each in seen.replica.conditions if each.type == PickerReady.__name__)
    lost = (
        *picker,
        ModelReady.CLUSTER_UNREACHABLE.condition(seen.now, message=why),
        Ready.UNREACHABLE.condition(seen.now, message=why),
    )
    last = seen.replica.status
    known = status(
        lost,
        held=last.held_nodes if last else (),
        unschedulable_since=last.unschedulable_since if last else None,
        paths=last.paths if last else None,
    )
    return Plan(status=known, failure=error)
