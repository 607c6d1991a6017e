"""Plan the teardown of a ModelReplica on its cluster: its pods first, while the route still leads to them."""

from __future__ import annotations

from kubeloop.condition_types import Ready
from kubeloop.objects import is_terminating
from kubeloop.plan import LET_GO, Plan, delete
from kubeloop.types import type_of
from kubeloop.words import counted
from modelplane_operator.api import labels
from modelplane_operator.api.model_replica import ModelReplicaStatus
from modelplane_operator.models.replica.plan.observed import REQUEUE_SOON, WORKLOADS, Observed
from modelplane_operator.models.replica.plan.out_of_reach import silence
from modelplane_operator.models.replica.plan.status import status


def teardown(seen: Observed) -> Plan:
    """Return the next steps to delete a replica's objects; the finalizer is removed last.

    A cluster that no longer exists counts as clean. One that does not answer keeps the finalizer until it does.
    """
    replica, cluster = seen.replica, seen.replica.spec.cluster_name
    if labels.FINALIZER not in replica.metadata.finalizers:
        return Plan()
    if not seen.cluster.exists:  # objects that remain there cannot be reached
        return Plan((LET_GO,))
    if seen.cluster.error is not None:
        message = f"cluster {cluster} does not answer; what runs there is deleted when it does"
        return Plan(status=_report_terminating(seen, message), failure=silence(cluster, seen.cluster.error))
    if not seen.cluster.connected:
        return Plan(requeue_after=REQUEUE_SOON)
    workloads = [child for child in seen.children if type_of(child) in WORKLOADS and not seen.is_pickers(child)]
    # The picker stays while any of them answers. Its pods end by themselves afterwards: they hold no devices, so
    # the teardown does not wait for their grace period.
    running = [pod for pod in seen.pods if not seen.is_pickers(pod)]
    if workloads or running:
        steps = tuple(delete(each, cluster=cluster) for each in workloads if not is_terminating(each))
        return Plan(steps, _report_terminating(seen, f"waiting for {counted(len(running), 'pod')} to end"))
    if seen.children:
        steps = tuple(delete(each, cluster=cluster) for each in seen.children if not is_terminating(each))
        return Plan(steps, _report_terminating(seen, f"waiting for {counted(len(seen.children), 'object')} to go"))
    if seen.namespace is not None and not seen.of_others and not is_terminating(seen.namespace):
        return Plan((delete(seen.namespace, cluster=cluster), LET_GO))
    return Plan((LET_GO,))


def _report_terminating(observed: Observed, message: str) -> ModelReplicaStatus:
    """Return the status of a replica that is being deleted."""
    return status((Ready.DELETING.condition(observed.now, message=message),))
