"""Compute the status of a ModelReplica whose cluster is reachable.

ModelAccepted says if the objects are there, ModelReady if the model answers, and Ready has the most important reason
of both. Symptoms of pods give the cause while a model does not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kubeloop.condition_types import Condition, Ready
from kubeloop.conditions import condition
from kubeloop.objects import is_terminating, section
from modelplane_operator.api import labels
from modelplane_operator.api.model_replica import (
    CacheTransfer,
    HeldNodes,
    ModelAccepted,
    ModelReady,
    ModelReplica,
    ModelReplicaStatus,
    PickerReady,
    PodsOnNode,
)
from modelplane_operator.api.reasons import is_warning, not_ready
from modelplane_operator.models.replica.plan.engines import EngineState
from modelplane_operator.models.replica.plan.observed import Observed
from modelplane_operator.models.replica.plan.pod_nodes import find_claiming_pods, find_pod_nodes
from modelplane_operator.models.replica.plan.referenced import describe_missing
from modelplane_operator.models.replica.plan.symptoms import (
    describe_starting,
    describe_unrouted,
    is_pending,
    is_refused,
    summarize,
    symptoms,
)
from modelplane_operator.models.replica.render import engines_without_kv_transfer, unheard
from modelplane_operator.scheduling.placement import charges, read

KIND = ModelReplica.definition.kind


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why the replica is not as its spec requests."""

    reason: ModelAccepted
    """Reason for the condition ModelAccepted."""
    message: str
    """Message for that condition."""
    cause: str = ""
    """Reason of the part that fails, for Ready; "" if it is the reason of ModelAccepted."""


def compute_status(observed: Observed, engines: Sequence[EngineState], problem: Problem | None) -> ModelReplicaStatus:
    """Return the status of a replica whose cluster is reachable.

    `problem` is the reason why the replica cannot be deployed as requested, if there is one.
    """
    now, problem_message = observed.now, problem.message if problem else ""
    without_workload = [engine.name for engine in engines if engine.workload is None]
    not_answering = [engine.name for engine in engines if not engine.answers]
    route_problem, picker_problem, pod_symptoms = (
        _find_route_problem(observed),
        _find_picker_problem(observed),
        symptoms(observed.pods, observed.nodes),
    )
    symptom_message = summarize(pod_symptoms)
    rejected = any(engine.rejected for engine in engines)
    starting = ModelReady.PODS_REJECTED if rejected else ModelReady.MODEL_STARTING
    pod_reason = pod_symptoms[0].reason if pod_symptoms else starting
    pod_reason = starting if pod_reason is ModelReady.MODEL_STARTING else pod_reason
    if without_workload:
        reason = problem.reason if problem else ModelAccepted.DEPLOYING
        accepted = reason.condition(
            now,
            message=problem_message or f"engine {', '.join(without_workload)}: {describe_starting('workload')}",
        )
        model_ready = ModelReady.WAITING_FOR_MODEL.condition(now)
    else:
        missing_on_hub = describe_missing(observed, copied=True)
        accepted = ModelAccepted.ACCEPTED.condition(
            now, message=f"{missing_on_hub}; the previous copy stays in use" if missing_on_hub else ""
        )
        if not_answering:
            hints = [unheard(engine) for engine in observed.replica.spec.engines if engine.name in not_answering]
            unmade = [engine.lacks for engine in engines if engine.rejected]
            cause = _join(
                problem_message,
                f"no pod of engine {', '.join(not_answering)} answers",
                *unmade,
                *hints,
                symptom_message,
            )
            model_ready = pod_reason.condition(now, message=cause)
        elif picker_problem and observed.replica.spec.is_split:
            model_ready = ModelReady.PICKER_NOT_READY.condition(now, message=_join(picker_problem, symptom_message))
        elif route_problem:
            is_rejected = any(map(is_refused, observed.routes))
            reason = ModelReady.ROUTE_REFUSED if is_rejected else ModelReady.MODEL_STARTING
            model_ready = reason.condition(now, message=route_problem)
        else:
            model_ready = ModelReady.SERVING.condition(now)
    required_picker = picker_problem if observed.replica.spec.is_split else ""
    lacking_route = "" if without_workload else route_problem
    missing_message = _join(problem_message, *(engine.lacks for engine in engines), required_picker, lacking_route)
    if problem:
        cause = problem.reason.condition(now)
        missing_message = problem_message
    elif without_workload or model_ready.status != "True":
        cause = accepted if without_workload else model_ready
    elif required_picker:
        cause = _choose_picker_reason(observed).condition(now)
    else:
        cause = pod_reason.condition(now)
    cordoned = observed.nodes.describe_cordoned(observed.pods)
    # In mode Unified, a replica serves without its endpoint picker, too.
    ready = (Ready.DEGRADED if observed.cluster.silence else Ready.AVAILABLE).condition(
        now,
        message=_join(
            observed.cluster.silence,
            cordoned,
            _explain_distribution(observed, picker_problem),
            picker_problem and symptom_message,
        ),
    )
    if missing_message:
        clauses = (symptom_message, missing_message) if is_warning(KIND, cause) else (missing_message, symptom_message)
        clauses = (missing_message,) if problem else clauses
        ready = not_ready(KIND, cause, _join(*clauses, cordoned), reason=problem.cause if problem else "")
    return status(
        (accepted, *_report_transfer(observed), *_report_picker(observed, picker_problem), model_ready, ready),
        reserved=_count_reserved_nodes(observed),
        pod_nodes=find_pod_nodes(observed),
        unschedulable_since=_unschedulable_since(observed),
        paths="ModelAPIs" if observed.around.filters(observed.replica) else "All",
    )


def _report_transfer(observed: Observed) -> tuple[Condition, ...]:
    """Return the CacheTransfer condition of a split replica."""
    if not observed.replica.spec.is_split:
        return ()
    engines_without = engines_without_kv_transfer(observed.replica)
    reason = CacheTransfer.NOT_CONFIGURED if engines_without else CacheTransfer.CONFIGURED
    return (reason.condition(observed.now, message=engines_without),)


def _report_picker(observed: Observed, picker_problem: str) -> tuple[Condition, ...]:
    """Return the PickerReady condition of a replica that has an endpoint picker, or had one."""
    if observed.picker_policy is None:
        had_picker = any(item.type == PickerReady.__name__ for item in observed.replica.conditions)
        return (PickerReady.NOT_NEEDED.condition(observed.now),) if had_picker else ()
    reason = _choose_picker_reason(observed) if picker_problem else PickerReady.PICKING
    return (reason.condition(observed.now, message=_explain_distribution(observed, picker_problem)),)


def _explain_distribution(observed: Observed, picker_problem: str) -> str:
    """Return how requests are distributed while no picker answers, as a message; "" while one does."""
    if not picker_problem or observed.replica.spec.is_split:
        return picker_problem
    return f"{picker_problem}; until it is, the gateway spreads requests evenly over the pods"


def _choose_picker_reason(observed: Observed) -> PickerReady:
    """Return why no picker answers: the gateway does not ask it, it was ready before, or it still starts."""
    if observed.picker_refusal:
        return PickerReady.NOT_ASKED
    previous_reasons = {PickerReady.AWAY.reason, PickerReady.PICKING.reason}
    return (
        PickerReady.AWAY
        if any(item.reason in previous_reasons for item in observed.replica.conditions)
        else PickerReady.STARTING
    )


def status(
    conditions: tuple[Condition, ...],
    *,
    reserved: tuple[HeldNodes, ...] = (),
    pod_nodes: tuple[PodsOnNode, ...] = (),
    unschedulable_since: datetime | None = None,
    paths: Literal["ModelAPIs", "All"] | None = None,
) -> ModelReplicaStatus:
    """Return a status with these conditions. `reserved` are nodes that pods of an earlier shape still use."""
    return ModelReplicaStatus(
        conditions=conditions,
        held_nodes=reserved,
        pod_nodes=pod_nodes,
        unschedulable_since=unschedulable_since,
        paths=paths,
    )


def _unschedulable_since(observed: Observed) -> datetime | None:
    """Return the time since which a pod has no node, by the operator's clock. The cluster's clock may be wrong."""
    claiming = (pod for pod in observed.pods if section(pod, "spec").get("resourceClaims") and not is_terminating(pod))
    if not any(condition(pod, "PodScheduled").status == "False" for pod in claiming):
        return None
    last = observed.replica.status
    return (last.unschedulable_since if last else None) or observed.now


def _count_reserved_nodes(observed: Observed) -> tuple[HeldNodes, ...]:
    """Return the pools on which pods of the replica use more nodes than the spec requests."""
    requested = charges(read(observed.replica).engines)
    pools = Counter(section(pod, "spec", "nodeSelector").get(labels.POOL, "") for pod in find_claiming_pods(observed))
    return tuple(
        HeldNodes(pool=pool, nodes=nodes) for pool, nodes in sorted(pools.items()) if nodes > requested.get(pool, 0)
    )


def _join(*clauses: str) -> str:
    """Return the texts that are not empty, as one message."""
    return "; ".join(filter(None, clauses))


def _find_route_problem(observed: Observed) -> str:
    """Return why requests do not reach the replica through its route; "" if they do.

    When the operator changes the route of a serving replica, to or past its picker, requests use the old route
    until the gateway has programmed the new one.
    """
    if not observed.routes:
        return describe_starting("route")
    [route, *_] = observed.routes
    generation = observed.replica.metadata.generation
    was_serving = any(
        item.type == ModelReady.__name__ and item.status == "True" and item.observed_generation == generation
        for item in observed.replica.conditions
    )
    return "" if was_serving and is_pending(route) else describe_unrouted(route)


def _find_picker_problem(observed: Observed) -> str:
    """Return why the endpoint picker does not choose pods; "" if it does, or there is no picker."""
    if observed.picker_refusal:
        return f"the cluster's gateway does not use the endpoint picker: {observed.picker_refusal}"
    if observed.picker_policy is None or observed.picker_answers:
        return ""
    return "no pod of the endpoint picker is ready"
