"""How a replica leaves its cluster: its pods first, while the route still leads to them."""

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
    replica, cluster = seen.replica, seen.replica.spec.cluster_name
    if labels.FINALIZER not in replica.metadata.finalizers:
        return Plan()
    if not seen.cluster.exists:  # nobody can reach what may be left there
        return Plan((LET_GO,))
    if seen.cluster.error is not None:
        why = f"cluster {cluster} does not answer; what runs there is deleted when it does"
        return Plan(status=_terminating(seen, why), failure=silence(cluster, seen.cluster.error))
    if not seen.cluster.connected:
        return Plan(requeue_after=REQUEUE_SOON)
    workloads = [child for child in seen.children if type_of(child) in WORKLOADS and not seen.is_pickers(child)]
    # The picker stays as long as any of them answers. Then its pods end by themselves: they hold no devices, and
    # nobody waits for the minutes that they have.
    running = [pod for pod in seen.pods if not seen.is_pickers(pod)]
    if workloads or running:
        steps = tuple(delete(each, cluster=cluster) for each in workloads if not is_terminating(each))
        return Plan(steps, _terminating(seen, f"waiting for {counted(len(running), 'pod')} to end"))
    if seen.children:
        steps = tuple(delete(each, cluster=cluster) for each in seen.children if not is_terminating(each))
        return Plan(steps, _terminating(seen, f"waiting for {counted(len(seen.children), 'object')} to go"))
    if seen.namespace is not None and not seen.of_others and not is_terminating(seen.namespace):
        return Plan((delete(seen.namespace, cluster=cluster), LET_GO))
    return Plan((LET_GO,))


def _terminating(seen: Observed, why: str) -> ModelReplicaStatus:
    return status((Ready.DELETING.condition(seen.now, message=why),))
