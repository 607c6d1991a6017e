"""Plan the deletion of a cluster: its replicas first, then their objects, then the gateway and its dependencies.

Each reconcile takes the first step that is still necessary, and the status names the objects that it waits for. An
unreachable cluster keeps its finalizer until it answers, or until a user abandons it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kubeloop.condition_types import Ready
from kubeloop.conditions import condition
from kubeloop.objects import Manifest, is_terminating, key_of
from kubeloop.plan import LET_GO, Plan, SetFinalizer, Step, delete
from kubeloop.types import SECRET, type_of
from kubeloop.words import MAX_NAMES, list_names
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_cluster import (
    ClusterReady,
    DeletionPhase,
    DeletionStatus,
    InferenceClusterStatus,
)
from modelplane_operator.clusters.cluster.plan.observed import (
    CHILDREN,
    REQUEUE_AFTER,
    REQUEUE_SOON,
    ClusterState,
    Observed,
)
from modelplane_operator.clusters.cluster.plan.provisioned import never_reached, plan_deleted
from modelplane_operator.clusters.cluster.plan.status import resolve_pools, status_of

_ABANDON = f'annotate the InferenceCluster with {labels.ABANDON}="true"'


def teardown(observed: Observed) -> Plan:
    """Return the plan of a cluster that is being deleted: the next step, and the objects it waits for."""
    metadata = observed.cluster.metadata
    if labels.FINALIZER not in metadata.finalizers:
        return Plan()  # nothing was created there, or all of it has been deleted
    if metadata.annotations.get(labels.ABANDON) == "true":
        return _abandon(observed) if observed.infrastructure is None else _delete_infrastructure(observed)
    if observed.replicas:
        blocking = [f"ModelReplica {key}" for key in observed.replicas]
        remedy = (
            "they fit nowhere else: add capacity, or force it by annotating the "
            f'InferenceCluster with {labels.FORCE_DRAIN}="true"'
        )
        return _build_deletion_plan(
            observed, "Blocked", blocking, f"replicas are placed on {observed.display_name}", remedy=remedy
        )
    if is_emptied(observed.cluster.status) or never_reached(observed):
        return (
            _delete_infrastructure(observed)
            if observed.infrastructure is not None
            else Plan(_build_release_steps(observed))
        )
    if observed.state is None:
        reason = observed.unreachable or observed.forbidden or observed.kubeconfig
        if reason is None:
            return Plan(requeue_after=REQUEUE_SOON)
        message = f"{observed.display_name} cannot be cleaned up: {reason}; {_ABANDON} to leave everything there"
        return _build_deletion_plan(observed, "Unreachable", [], message)
    if observed.state.others:
        remedy = f"delete them there if no other hub does, or {_ABANDON} to leave them"
        return _build_deletion_plan(
            observed,
            "DrainServing",
            observed.state.others,
            f"objects of models are left on {observed.display_name}",
            remedy=remedy,
        )
    return _uninstall(observed, observed.state)


def _uninstall(observed: Observed, state: ClusterState) -> Plan:
    """Delete the last remaining child on the cluster; release the cluster when there is none."""
    if observed.stack is not None:
        return _delete_stack(observed, observed.stack)
    remaining = sorted(state.children, key=lambda child: CHILDREN.index(type_of(child)))
    if not remaining:
        if state.spared:
            return _report_spared(observed, state)
        # The finalizer is removed in the next reconcile, after this status is stored: the kubeconfig Secret may
        # disappear once it has lost its finalizer, before the InferenceCluster does, and an operator that crashed in
        # between could not read the cluster again.
        emptied = _build_deletion_plan(
            observed, "UninstallServingStack", [], f"nothing is left on {observed.display_name}"
        )
        return replace(emptied, requeue_after=REQUEUE_SOON)
    descriptions = [f"{child['kind']} {key_of(child)}" for child in reversed(remaining)]
    steps: tuple[Step, ...] = (delete(remaining[-1], cluster=observed.cluster.metadata.name),)
    return _build_deletion_plan(
        observed,
        "UninstallServingStack",
        descriptions,
        f"the gateway of {observed.display_name} is being deleted",
        steps,
    )


def _report_spared(observed: Observed, state: ClusterState) -> Plan:
    """Report the tenant namespaces that stay on the cluster (see `is_emptied`)."""
    reason = "they have objects of others, or an unknown owner"
    message = f"namespaces stay on {observed.display_name}, as {reason}: {list_names(state.spared)}"
    return replace(_build_deletion_plan(observed, "UninstallServingStack", [], message), requeue_after=REQUEUE_SOON)


def _delete_stack(observed: Observed, stack: Manifest) -> Plan:
    """Delete the ServingStack and wait until it is gone."""
    reason = condition(stack, "Ready").message if is_terminating(stack) else ""
    if not observed.helm:
        reason = "this operator runs without Helm, so it cannot uninstall it"
    blocking = [f"ServingStack {key_of(stack)}{f' ({reason})' if reason else ''}"]
    return _build_deletion_plan(
        observed,
        "UninstallServingStack",
        blocking,
        f"the software of {observed.display_name} is being uninstalled",
        _delete_stack_step(observed),
    )


def _delete_infrastructure(observed: Observed) -> Plan:
    """Delete the cloud's object and wait: its own finalizer holds it until the cloud has deleted everything."""
    steps, remaining = plan_deleted(observed)
    return _build_deletion_plan(
        observed,
        "DeleteCluster",
        [remaining],
        f"the cloud is deleting {observed.display_name}",
        (*_delete_stack_step(observed), *steps),
    )


def _abandon(observed: Observed) -> Plan:
    """Report the objects that stay behind and, once that is in the status, remove the finalizer."""
    message = (
        f"{observed.display_name} is abandoned as it is: Gateway {names.CLUSTER_GATEWAY} and the objects of models stay"
        " there"
    )
    abandoned = ClusterReady.ABANDONED.condition(observed.now, message=message)
    if any((item.type, item.reason) == (abandoned.type, abandoned.reason) for item in observed.cluster.conditions):
        return Plan(_build_release_steps(observed))
    return Plan(status=status_of(observed, resolve_pools(observed), (abandoned,)), requeue_after=REQUEUE_SOON)


def is_emptied(status: object) -> bool:
    """True if the status says that nothing remains to delete on the cluster, or that a cloud is deleting it."""
    deletion = status.deletion if isinstance(status, InferenceClusterStatus) else None
    if deletion is None or deletion.phase == "DeleteCluster":
        return deletion is not None
    return deletion.phase == "UninstallServingStack" and not deletion.waiting_for


def _delete_stack_step(observed: Observed) -> tuple[Step, ...]:
    """Return the step that deletes the stack, unless it is gone or already being deleted."""
    return (delete(observed.stack),) if observed.stack is not None and not is_terminating(observed.stack) else ()


def _build_release_steps(observed: Observed) -> tuple[Step, ...]:
    """Return the steps that delete the stack and remove the finalizers of the Secret and the cluster."""
    secret = observed.secrets.own
    remove_finalizer = (
        (SetFinalizer(SECRET, secret, present=False),) if secret and not observed.secrets.is_shared else ()
    )
    return (*_delete_stack_step(observed), *remove_finalizer, LET_GO)


def _build_deletion_plan(
    observed: Observed,
    phase: DeletionPhase,
    blocking: Sequence[str],
    message: str,
    steps: tuple[Step, ...] = (),
    *,
    remedy: str = "",
) -> Plan:
    """Return the plan of a phase of the deletion, with its message, the objects it waits for and its steps."""
    full_message = f"{message}: {list_names(blocking)}" if blocking else message
    full_message = f"{full_message}; {remedy}" if remedy else full_message
    conditions = (Ready.DELETING.condition(observed.now, message=full_message),)
    deletion = DeletionStatus(phase=phase, waiting_for=tuple(blocking[:MAX_NAMES]))
    status = status_of(observed, resolve_pools(observed), conditions, deletion=deletion)
    return Plan(steps, status, requeue_after=REQUEUE_AFTER)
