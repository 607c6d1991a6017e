"""Plan a cluster that a cloud creates, through an object of the cloud's own kind that is deleted last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, is_terminating, key_of, section
from kubeloop.plan import KEEP, Apply, Plan, Step, delete
from modelplane_operator.api.inference_cluster import ClusterReady
from modelplane_operator.api.reasons import is_warning
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.render import INFRASTRUCTURE, objects_of, render_infrastructure
from modelplane_operator.clusters.cluster.plan.observed import REQUEUE_SOON, Observed
from modelplane_operator.clusters.cluster.plan.out_of_reach import plan_unreachable, plan_waiting

_PROBLEM_CONDITIONS = (("CredentialsValid", "False"), ("Stalled", "True"), ("CapacityAvailable", "False"))
"""Conditions of the cloud's object, with the status that means a lasting problem."""


def never_reached(observed: Observed) -> bool:
    """True if a cloud creates the cluster and nothing can run on it, as it never answered or has no API server.

    Anything that a crashed operator started there is deleted together with the cluster.
    """
    is_made = observed.cluster.spec.cluster.source in INFRASTRUCTURE
    answered = observed.cluster.status is not None and observed.cluster.status.observed is not None
    return is_made and observed.state is None and not (answered and has_api_server(observed.infrastructure))


def plan_provisioned(observed: Observed, plan_connected: Callable[[Observed], Plan]) -> Plan:
    """Apply the cloud's object and, once the cluster is connected, add the plan that `plan_connected` returns.

    The InferenceCluster stays until the cloud's object is deleted, so that waiting for its deletion means that nothing
    is billed any longer. A problem with a pool or its class changes nothing on a running cluster.
    """
    steps: tuple[Step, ...] = ()
    problem = ""
    try:
        steps = (KEEP, Apply(render_infrastructure(observed.cluster, observed.classes, observed.removed_pools)))
        problem = _find_lasting_problem(observed.infrastructure) if observed.connected else ""
    except CannotMake as error:
        problem = str(error)
    observed = replace(observed, problem=problem)
    if observed.connected:
        # From here on it is a cluster like one that its owner has registered.
        plan = plan_connected(observed)
        manifests = objects_of(observed.cluster, observed.infrastructure) if observed.state is not None else ()
        objects = (Apply(manifest, observed.cluster.metadata.name) for manifest in manifests)
        return replace(plan, steps=(*steps, *plan.steps, *objects))
    if has_api_server(observed.infrastructure):
        # The connection is being opened, as after each change of leader: the status stays as it was.
        plan = (
            plan_unreachable(observed, observed.kubeconfig)
            if observed.kubeconfig is not None
            else Plan(requeue_after=REQUEUE_SOON)
        )
        return replace(plan, steps=(*steps, *plan.steps))
    if problem:
        reason = ClusterReady.INVALID_NODE_POOL
        # A missing class is not an error of the pool: it may be created later.
        missing = any(pool.class_name not in observed.classes for pool in observed.cluster.spec.node_pools)
        plan = plan_waiting(observed, ClusterReady.WAITING_FOR_CLASSES if missing else reason, problem)
    else:
        blocked = _find_blocked(observed.infrastructure)
        reason = ClusterReady.PROVISIONING_FAILED if blocked else ClusterReady.PROVISIONING
        plan = plan_waiting(observed, reason, _describe_progress(observed), cause=blocked)
    return replace(plan, steps=(*steps, *plan.steps))


def _find_lasting_problem(infrastructure: Manifest | None) -> str:
    """Return the lasting problem that the cloud's object reports; empty if there is none."""
    reported = (
        ((condition(infrastructure, condition_type), bad_status) for condition_type, bad_status in _PROBLEM_CONDITIONS)
        if infrastructure
        else ()
    )
    message = next(
        (
            reported_condition.message
            for reported_condition, bad_status in reported
            if reported_condition.status == bad_status
        ),
        "",
    )
    return f"{infrastructure['kind']} {key_of(infrastructure)}: {message}" if infrastructure and message else ""


def _find_blocked(infrastructure: Manifest | None) -> str:
    """Return the reason for which the cloud's object cannot become ready without help; empty if it only takes time."""
    ready = condition(infrastructure or {}, "Ready")
    return ready.reason if infrastructure and is_warning(infrastructure["kind"], ready) else ""


def _describe_progress(observed: Observed) -> str:
    """Return the message about the progress of the cloud's object."""
    infrastructure = observed.infrastructure
    if infrastructure is None:
        return f"{observed.cluster.spec.cluster.source}Cluster {observed.cluster.metadata.name} is being created"
    ready, synced = condition(infrastructure, "Ready"), condition(infrastructure, "Synced")
    reason = synced.message if synced.status == "False" else ready.message
    return ": ".join(filter(None, (f"{infrastructure['kind']} {key_of(infrastructure)}", reason)))


def has_api_server(made: Manifest | None) -> bool:
    """True if the cloud's object has the address of an API server, so that objects may exist on the cluster."""
    return made is not None and bool(section(made, "status", "endpoint"))


def plan_deleted(observed: Observed) -> tuple[tuple[Step, ...], str]:
    """Return the step that deletes the cloud's object and the message to wait with; empty when it is deleted."""
    infrastructure = observed.infrastructure
    if infrastructure is None:
        return (), ""
    steps: tuple[Step, ...] = () if is_terminating(infrastructure) else (delete(infrastructure),)
    reason = condition(infrastructure, "Ready").message if is_terminating(infrastructure) else ""
    return steps, f"{infrastructure['kind']} {key_of(infrastructure)}{f' ({reason})' if reason else ''}"
