"""Detect a cluster that is already registered under another InferenceCluster.

Two InferenceClusters with the same identity are told apart by a mark: the first one writes the uids of the others on
its cluster, and another that reads its own uid there has the same cluster. The identity alone proves nothing, since a
cluster restored from another's backup has the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kubeloop.objects import Manifest, is_terminating, key_of
from kubeloop.plan import Apply, Delete, Plan, delete
from kubeloop.types import SECRET, type_of
from modelplane_operator.api.inference_cluster import ClusterReady, InferenceClusterStatus, ObservedCluster
from modelplane_operator.clusters.cluster.plan.observed import SWEEP, ClusterState, Observed
from modelplane_operator.clusters.cluster.plan.out_of_reach import plan_waiting
from modelplane_operator.clusters.cluster.registration import mark_key, render_mark

ASK_AGAIN = 1.0  # seconds; the first InferenceCluster writes its mark meanwhile, which triggers no event


def only_once(observed: Observed, state: ClusterState) -> Plan | None:
    """Return the plan of a cluster that is, or may be, another InferenceCluster's; None for any other.

    Replicas that are placed there stay.
    """
    registered = state.registered
    if registered.first:
        message = (
            f"{observed.display_name} is the same cluster as InferenceCluster {registered.first}, so the operator"
            " creates nothing there for this one: delete one of the two"
        )
        return _wait_for_registration(observed, state, ClusterReady.REGISTERED_TWICE, message, requeue_after=SWEEP)
    if registered.unsure:
        message = (
            f"{observed.display_name} may be the same cluster as InferenceCluster {registered.unsure}: the operator is"
            " checking that"
        )
        return _wait_for_registration(observed, state, ClusterReady.IDENTIFYING, message, requeue_after=ASK_AGAIN)
    return None


def marks(observed: Observed, state: ClusterState) -> Sequence[Apply | Delete]:
    """Return the step that writes the mark for later InferenceClusters, or deletes it when there are none.

    It belongs at the end of a plan, so that its failure blocks nothing.
    """
    mark, cluster = mark_of(observed, state.children), observed.cluster.metadata.name
    if not state.registered.later:
        deleted = mark is None or is_terminating(mark)
        return () if mark is None or deleted else (delete(mark, cluster=cluster),)
    if not state.registered.home or SECRET in state.forbidden:
        return ()
    return (Apply(render_mark(observed.cluster, state.registered.later), cluster),)


def mark_of(observed: Observed, children: Iterable[Manifest]) -> Manifest | None:
    """Return this InferenceCluster's mark among the children; None if there is none."""
    desired = SECRET, mark_key(observed.cluster.metadata.uid or "")
    return next((child for child in children if (type_of(child), key_of(child)) == desired), None)


def _wait_for_registration(
    cluster_observed: Observed, state: ClusterState, reason: ClusterReady, message: str, *, requeue_after: float
) -> Plan:
    """Return a plan that changes nothing on the cluster, with the identity in the status."""
    decided = plan_waiting(cluster_observed, reason, message)
    status = decided.status
    if isinstance(status, InferenceClusterStatus):
        observed = (status.observed or ObservedCluster()).model_copy(update={"identity": state.registered.identity})
        status = status.model_copy(update={"observed": observed})
    return replace(decided, status=status, requeue_after=requeue_after)
