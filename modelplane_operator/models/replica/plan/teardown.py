"""Plan the teardown of a ModelReplica on its cluster: its pods first, while the route still leads to them."""

from __future__ import annotations

from kubeloop.condition_types import Ready
from kubeloop.objects import is_terminating
from kubeloop.plan import LET_GO, Plan, delete
from kubeloop.types import type_of
from kubeloop.words import count_of
from modelplane_operator.api import labels
from modelplane_operator.api.model_replica import ModelReplicaStatus
from modelplane_operator.models.replica.plan.observed import REQUEUE_SOON, WORKLOADS, Observed
from modelplane_operator.models.replica.plan.out_of_reach import silence
from modelplane_operator.models.replica.plan.status import status


def teardown(observed: Observed) -> Plan:
    """Return the next steps to delete a replica's objects; the finalizer is removed last.

    A cluster that no longer exists counts as clean. One that does not answer keeps the finalizer until it does.
    """
    replica, cluster = observed.replica, observed.replica.spec.cluster_name
    if labels.FINALIZER not in replica.metadata.finalizers:
        return Plan()
    if not observed.cluster.exists:  # objects that remain there cannot be reached
        return Plan((LET_GO,))
    if observed.cluster.error is not None:
        message = f"cluster {cluster} does not answer; the replica there is deleted when it answers again"
        return Plan(status=_report_terminating(observed, message), failure=silence(cluster, observed.cluster.error))
    if not observed.cluster.connected:
        return Plan(requeue_after=REQUEUE_SOON)
    workloads = [child for child in observed.children if type_of(child) in WORKLOADS and not observed.is_pickers(child)]
    # The picker stays while any of them answers. Its pods end by themselves afterwards: they hold no devices, so
    # the teardown does not wait for their grace period.
    running = [pod for pod in observed.pods if not observed.is_pickers(pod)]
    if workloads or running:
        steps = tuple(delete(each, cluster=cluster) for each in workloads if not is_terminating(each))
        return Plan(steps, _report_terminating(observed, f"waiting for {count_of(len(running), 'pod')} to end"))
    if observed.children:
        steps = tuple(delete(each, cluster=cluster) for each in observed.children if not is_terminating(each))
        return Plan(
            steps,
            _report_terminating(observed, f"waiting for {count_of(len(observed.children), 'object')} to be deleted"),
        )
    if observed.namespace is not None and not observed.of_others and not is_terminating(observed.namespace):
        return Plan((delete(observed.namespace, cluster=cluster), LET_GO))
    return Plan((LET_GO,))


def _report_terminating(observed: Observed, message: str) -> ModelReplicaStatus:
    """Return the status of a replica that is being deleted."""
    return status((Ready.DELETING.condition(observed.now, message=message),))
