"""A cluster on its way out: replicas first, then their objects there, then its gateway and what that needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kubeloop.condition_types import Ready
from kubeloop.conditions import condition
from kubeloop.objects import Manifest, is_terminating, key_of
from kubeloop.plan import LET_GO, Plan, SetFinalizer, Step, delete
from kubeloop.types import SECRET, type_of
from kubeloop.words import NAMED, listed
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
from modelplane_operator.clusters.cluster.plan.provisioned import ended, never_reached
from modelplane_operator.clusters.cluster.plan.status import resolved_pools, status_of

_ABANDON = f'annotate the InferenceCluster with {labels.ABANDON}="true"'


def teardown(seen: Observed) -> Plan:
    metadata = seen.cluster.metadata
    if labels.FINALIZER not in metadata.finalizers:
        return Plan()  # nothing was ever made there, or all of it is gone
    if metadata.annotations.get(labels.ABANDON) == "true":
        return _abandoned(seen) if seen.infrastructure is None else _without_infrastructure(seen)
    if seen.replicas:
        blocking = [f"ModelReplica {key}" for key in seen.replicas]
        remedy = (
            "they stay for want of another place: make room elsewhere, or end them all the same by annotating the "
            f'InferenceCluster with {labels.FORCE_DRAIN}="true"'
        )
        return _leaving(seen, "Blocked", blocking, f"replicas are placed on {seen.named}", remedy=remedy)
    if is_emptied(seen.cluster.status) or never_reached(seen):
        return _without_infrastructure(seen) if seen.infrastructure is not None else Plan(_let_go(seen))
    if seen.state is None:
        why = seen.unreachable or seen.forbidden or seen.kubeconfig
        if why is None:
            return Plan(requeue_after=REQUEUE_SOON)
        words = f"{seen.named} cannot be cleaned up: {why}; {_ABANDON} to leave all there"
        return _leaving(seen, "Unreachable", [], words)
    if seen.state.others:
        remedy = f"delete them there if nobody else does, or {_ABANDON} to leave them"
        return _leaving(
            seen, "DrainServing", seen.state.others, f"objects of models are left on {seen.named}", remedy=remedy
        )
    return _uninstalled(seen, seen.state)


def _uninstalled(seen: Observed, state: ClusterState) -> Plan:
    """Delete the last of what we made there that is left; when none is, let go."""
    if seen.stack is not None:
        return _without(seen, seen.stack)
    left = sorted(state.children, key=lambda child: CHILDREN.index(type_of(child)))
    if not left:
        return _leaving_behind(seen, state) if state.spared else _emptied(seen)
    words = [f"{child['kind']} {key_of(child)}" for child in reversed(left)]
    steps: tuple[Step, ...] = (delete(left[-1], cluster=seen.cluster.metadata.name),)
    return _leaving(seen, "UninstallServingStack", words, f"the gateway of {seen.named} is being deleted", steps)


def _leaving_behind(seen: Observed, state: ClusterState) -> Plan:
    """Say which namespaces stay (`is_emptied`)."""
    why = "others have something in them, or nobody knows whose they are"
    words = f"namespaces stay on {seen.named}, as {why}: {listed(state.spared)}"
    return replace(_leaving(seen, "UninstallServingStack", [], words), requeue_after=REQUEUE_SOON)


def _without(seen: Observed, stack: Manifest) -> Plan:
    """Have the stack go, and wait for it."""
    why = condition(stack, "Ready").message if is_terminating(stack) else ""
    if not seen.helm:
        why = "this operator runs no Helm to take it away"
    blocking = [f"ServingStack {key_of(stack)}{f' ({why})' if why else ''}"]
    return _leaving(
        seen, "UninstallServingStack", blocking, f"the software of {seen.named} is being uninstalled", _end_stack(seen)
    )


def _without_infrastructure(seen: Observed) -> Plan:
    """Have the cloud's object go, and wait for it: its own finalizer holds it until the cloud has nothing left."""
    steps, left = ended(seen)
    return _leaving(
        seen, "DeleteCluster", [left], f"the cloud is taking {seen.named} down", (*_end_stack(seen), *steps)
    )


def _abandoned(seen: Observed) -> Plan:
    """Say what stays behind and, once that was said, let go."""
    words = f"{seen.named} is let go of as it is: Gateway {names.CLUSTER_GATEWAY} and what models have there stay"
    told = ClusterReady.ABANDONED.condition(seen.now, message=words)
    if any((known.type, known.reason) == (told.type, told.reason) for known in seen.cluster.conditions):
        return Plan(_let_go(seen))
    return Plan(status=status_of(seen, resolved_pools(seen), (told,)), requeue_after=REQUEUE_SOON)


def _emptied(seen: Observed) -> Plan:
    """Say that nothing is left there and, once that was said, let go.

    The kubeconfig may go as soon as it has no finalizer of ours any more, before the cluster does: who is killed in
    between could not look there again.
    """
    return replace(
        _leaving(seen, "UninstallServingStack", [], f"nothing is left on {seen.named}"), requeue_after=REQUEUE_SOON
    )


def is_emptied(status: object) -> bool:
    """Whether a status says that nothing is left there that has to go, or that a cloud is taking it down."""
    said = status.deletion if isinstance(status, InferenceClusterStatus) else None
    if said is None or said.phase == "DeleteCluster":
        return said is not None
    return said.phase == "UninstallServingStack" and not said.waiting_for


def _end_stack(seen: Observed) -> tuple[Step, ...]:
    return (delete(seen.stack),) if seen.stack is not None and not is_terminating(seen.stack) else ()


def _let_go(seen: Observed) -> tuple[Step, ...]:
    mine = seen.secrets.mine
    remove_finalizer = (SetFinalizer(SECRET, mine, present=False),) if mine and not seen.secrets.theirs else ()
    return (*_end_stack(seen), *remove_finalizer, LET_GO)


def _leaving(
    seen: Observed,
    phase: DeletionPhase,
    blocking: Sequence[str],
    words: str,
    steps: tuple[Step, ...] = (),
    *,
    remedy: str = "",
) -> Plan:
    said = f"{words}: {listed(blocking)}" if blocking else words
    said = f"{said}; {remedy}" if remedy else said
    judged = (Ready.DELETING.condition(seen.now, message=said),)
    deletion = DeletionStatus(phase=phase, waiting_for=tuple(blocking[:NAMED]))
    status = status_of(seen, resolved_pools(seen), judged, deletion=deletion)
    return Plan(steps, status, requeue_after=REQUEUE_AFTER)
