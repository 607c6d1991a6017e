"""Plan an LLMInference: its objects at the target location, and the removal of old copies elsewhere.

A location is stored in the status before objects are created there, and stays until none were observed in it. So an
operator that was down when the target changed, or that crashes at any write, still knows the old locations. Old
copies are deleted once the new one exists. Errors never cause a deletion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from kubeloop.condition_types import Condition, Ready
from kubeloop.conditions import condition
from kubeloop.errors import ClientError, Forbidden, Unauthorized
from kubeloop.objects import Manifest, key_of, labels_of, section
from kubeloop.plan import KEEP, LET_GO, Apply, Plan, Step, delete, prune
from kubeloop.remote_messages import describe_rejection
from kubeloop.types import DEPLOYMENT, HUB, VLLM_RUNTIME, type_of
from kubeloop.words import count_of, list_names
from modelplane_operator.api import labels
from modelplane_operator.api.llm_inference import (
    LOCATIONS,
    LLMInference,
    LLMInferenceStatus,
    Location,
    MemoryKnown,
    ModelReady,
    OldCopiesRemoved,
    RuntimeAvailable,
    TargetResolved,
)
from modelplane_operator.api.reasons import is_warning, not_ready
from modelplane_operator.models.llm_inference.llm_engine import model_ready, replicas
from modelplane_operator.models.llm_inference.model_memory import MemoryRequirement, memory_need
from modelplane_operator.models.llm_inference.render import render_in_fleet, render_on_cluster
from modelplane_operator.models.replica.plan.symptoms import describe_starting

AT_ONCE: Final = 0.1  # the next run creates the objects
"""Seconds until a location that was just stored gets its objects."""
REQUEUE_AFTER: Final = 20.0  # locations are not watched: a kubeconfig may not permit it
"""Seconds between runs while the object is not at rest."""
POLL_INTERVAL: Final = 60.0
"""Seconds between runs while nothing changes, or while only a user can resolve a problem."""
INSTALL: Final = "install the vLLM production-stack operator there, which brings the kind VLLMRuntime"
"""Advice for clusters without VLLMRuntimes."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The objects at one location, or the error in reading them."""

    cluster: str = HUB
    """Name of the connection to the location."""
    error: ClientError | None = None
    """Error in reading the location, or None."""
    connecting: bool = False
    """True if the connection is still being opened."""
    runtimes: bool = True
    """True if the cluster serves VLLMRuntimes."""
    children: tuple[Manifest, ...] = ()
    """Own objects with the name of the LLMInference."""
    others: tuple[Manifest, ...] = ()
    """Foreign objects with that name."""
    token: bool = False
    """True if a Hugging Face token exists; the last applied state while reading the Secret is forbidden."""
    unverified: str = ""
    """Reason why the API server's identity is not verified; "" if it is."""


@dataclass(frozen=True, slots=True)
class UnusableTarget:
    """A reason why the target location cannot be used."""

    reason: TargetResolved
    """Reason for the condition TargetResolved."""
    message: str
    """Message for that condition."""


@dataclass(frozen=True, slots=True)
class Observed:
    """An LLMInference, its target, and the states of its current and former locations."""

    inference: LLMInference
    """LLMInference as its spec and its last status describe it."""
    target: Location | UnusableTarget | None
    """The target location, or why it is unusable; None with placement Fleet."""
    now: datetime
    """Time of the plan."""
    states: Mapping[Location, ClusterState] = field(default_factory=dict[Location, ClusterState])
    """State of each current or former location."""
    in_fleet: tuple[Manifest, ...] = ()
    """Own ModelDeployment and ModelService on the hub."""


def plan(observed: Observed) -> Plan:
    """Return the steps and the status for an observed LLMInference."""
    if observed.inference.metadata.deletion_timestamp is not None:
        return _teardown(observed)
    return _plan_in_fleet(observed) if observed.target is None else _plan_on_cluster(observed, observed.target)


# On a named cluster ---------------------------------------------------------------------------------------------------


def _plan_on_cluster(observed: Observed, target: Location | UnusableTarget) -> Plan:
    """Return the plan for a target cluster: store the location, apply the objects, then remove old copies."""
    inference, now, previous = observed.inference, observed.now, observed.inference.locations
    if isinstance(target, UnusableTarget):
        problem = target.reason.condition(now, message=target.message)
        new_status = _compute_status(
            observed, previous, problem, _runtime_unknown(observed), _unknown_condition(observed, target.message)
        )
        return Plan(status=new_status, requeue_after=POLL_INTERVAL)
    state = observed.states[target]
    if state.connecting and target in previous:  # the previous status stays
        return Plan(requeue_after=REQUEUE_AFTER)
    if state.error is not None:
        text = f"In {target}: {_describe_error(target, state.error)}"
        problem = _target_reason(target, state).condition(now, message=text)
        new_status = _compute_status(
            observed, previous, problem, _runtime_unknown(observed), _unknown_condition(observed, text)
        )
        return Plan(status=new_status, requeue_after=REQUEUE_AFTER)
    desired = render_on_cluster(inference, token=state.token)
    kinds = {*map(type_of, desired), DEPLOYMENT, VLLM_RUNTIME}
    if conflicts := [f"{item['kind']} {key_of(item)}" for item in state.others if type_of(item) in kinds]:
        text = (
            f"{list_names(conflicts)} in {target} belongs to another owner: delete it, or give this LLMInference"
            " another name"
        )
        problem = ModelReady.NAME_TAKEN.condition(now, message=text)
        return Plan(status=_compute_status(observed, previous, problem), requeue_after=REQUEUE_AFTER)
    doubt = f"; the connection to it can be intercepted: {state.unverified}" if state.unverified else ""
    resolved = TargetResolved.RESOLVED.condition(now, message=f"The model is in {target}{doubt}")
    if target not in previous:
        others = tuple(item for item in previous if not (state.children and _is_same_but_moved(item, target)))
        if len(others) >= LOCATIONS:
            text = (
                f"There are old copies in {count_of(len(others), 'place')}: {_join(others)}; restore the connection to"
                f" them, or annotate the object {labels.ABANDON}=true to leave them behind"
            )
            too_many = TargetResolved.TOO_MANY_LOCATIONS.condition(now, message=text)
            return Plan(status=_compute_status(observed, others, too_many), requeue_after=POLL_INTERVAL)
        return Plan((KEEP,), _compute_status(observed, (*others, target), resolved), AT_ONCE)
    old_locations = tuple(item for item in previous if item != target)
    if inference.spec.runtime == "VLLMRuntime" and not state.runtimes:
        text = f"The cluster does not know VLLMRuntimes: {INSTALL}"
        not_installed = RuntimeAvailable.NOT_INSTALLED.condition(now, message=text)
        return Plan(
            (KEEP,), _compute_status(observed, previous, resolved, not_installed, model_ready(None, now)), REQUEUE_AFTER
        )
    steps: list[Step] = [KEEP, *(Apply(item, state.cluster) for item in desired)]
    steps += prune(state.children, desired, owner=inference.metadata.uid or "", cluster=state.cluster)
    nonempty = _nonempty_locations(observed, old_locations)
    engine = next((item for item in state.children if item["kind"] == inference.spec.runtime), None)
    if engine is not None:
        steps += _delete_copies(observed, nonempty)
        steps += [delete(item) for item in observed.in_fleet]
    available = _runtime_condition(observed, RuntimeAvailable.AVAILABLE)
    ready = model_ready(engine, now)
    is_stable = not nonempty and not observed.in_fleet and ready.status == "True"
    status = _compute_status(observed, (target, *nonempty), resolved, available, ready, old=old_locations)
    ingress = next((item for item in state.children if item["kind"] == "Ingress"), None)
    host = inference.spec.ingress_host
    url = f"http://{host}" if host and ingress else None
    new_status = status.model_copy(update={"url": url, "replicas": replicas(engine)})
    return Plan(tuple(steps), new_status, POLL_INTERVAL if is_stable else REQUEUE_AFTER)


def _target_reason(target: Location, state: ClusterState) -> TargetResolved:
    """Return the reason of TargetResolved for an error at the target."""
    match state.error:
        case Forbidden():
            return TargetResolved.FORBIDDEN
        case Unauthorized() if target.target == "Secret":
            return TargetResolved.INVALID_KUBECONFIG
        case _:
            return TargetResolved.CONNECTING if state.connecting else TargetResolved.UNREACHABLE


def _runtime_unknown(observed: Observed) -> Condition:
    """Return the RuntimeAvailable condition while the cluster could not be asked."""
    return _runtime_condition(observed, RuntimeAvailable.NOT_KNOWN)


def _runtime_condition(observed: Observed, reason: RuntimeAvailable) -> Condition:
    """Return the RuntimeAvailable condition; only VLLMRuntimes need a runtime."""
    needed = observed.inference.spec.runtime == "VLLMRuntime"
    return (reason if needed else RuntimeAvailable.NOT_NEEDED).condition(observed.now)


# The fleet ------------------------------------------------------------------------------------------------------------


def _plan_in_fleet(observed: Observed) -> Plan:
    """Return the plan for placement Fleet: a ModelDeployment and a ModelService, then the removal of old copies."""
    inference, now, previous = observed.inference, observed.now, observed.inference.locations
    need = memory_need(inference)
    message = memory_message(inference, need)
    if need is None:
        unknown = MemoryKnown.NOT_KNOWN.condition(now, message=message)
        return Plan(status=_compute_status(observed, previous, unknown, _fleet_condition(observed)))
    nonempty = _nonempty_locations(observed, previous)
    steps: list[Step] = [Apply(item) for item in render_in_fleet(inference, need.per_gpu)]
    if observed.in_fleet:
        steps += _delete_copies(observed, nonempty)
    if not nonempty:
        steps.append(LET_GO)
    reason = next(item for item in MemoryKnown if item.reason == need.source)
    status = _compute_status(
        observed, nonempty, reason.condition(now, message=message), _fleet_condition(observed), old=previous
    )
    by_kind = {item["kind"]: item for item in observed.in_fleet}
    service, deployment = (by_kind.get(kind_name, Manifest()) for kind_name in ("ModelService", "ModelDeployment"))
    fields = {
        "url": section(service, "status").get("address"),
        "replicas": section(deployment, "status", "replicas").get("ready"),
        "memory_per_gpu": f"{need.per_gpu}Gi",
    }
    return Plan(tuple(steps), status.model_copy(update=fields), REQUEUE_AFTER if nonempty else None)


def memory_message(inference: LLMInference, need: MemoryRequirement | None) -> str:
    """Return a message about the memory that the GPUs must have, and how it was determined."""
    if need is None:
        return f"The memory that model {inference.spec.model} needs does not follow from its name: set spec.memory"
    return f"{need.message}: {count_of(inference.spec.gpu, 'GPU')} of at least {need.per_gpu}Gi each"


def _fleet_condition(observed: Observed) -> Condition:
    """Return the ModelReady condition of the ModelDeployment and ModelService."""
    if len(observed.in_fleet) < 2:
        return ModelReady.NOT_CREATED.condition(observed.now)
    for child in sorted(observed.in_fleet, key=lambda child: child["kind"]):  # the service waits for the deployment
        ready = condition(child, Ready.__name__)
        if not ready.is_true:
            message = f"{child['kind']} {child['metadata']['name']} is not ready: {ready.why}"
            return ModelReady.NOT_READY.condition(observed.now, message=message)
        if not ready.current:
            message = f"{child['kind']} {child['metadata']['name']} is being changed"
            return ModelReady.NOT_READY.condition(observed.now, message=message)
    return ModelReady.READY.condition(observed.now)


def _find_failing_part(observed: Observed) -> str:
    """Return the reason of the ModelDeployment or ModelService that needs help; "" if none does."""
    parts = sorted(observed.in_fleet, key=lambda child: child["kind"]) if observed.target is None else ()
    states = ((child["kind"], condition(child, Ready.__name__)) for child in parts)
    return next((ready.reason for kind, ready in states if not ready.is_true and is_warning(kind, ready)), "")


# Old locations --------------------------------------------------------------------------------------------------------


def _teardown(observed: Observed) -> Plan:
    """Return the next steps to delete all copies; the finalizer is removed last."""
    nonempty = _nonempty_locations(observed, observed.inference.locations)
    steps = _delete_copies(observed, nonempty) if nonempty else (LET_GO,)
    message = f"Objects of the model remain in {_join(nonempty)}" if nonempty else ""
    blocked = _describe_blocked(observed, nonempty)
    deleting = Ready.DELETING.condition(observed.now, message=blocked or message)
    status = LLMInferenceStatus(locations=nonempty, conditions=(deleting,))
    return Plan(tuple(steps), status, REQUEUE_AFTER if blocked else AT_ONCE * 10)


def _nonempty_locations(observed: Observed, locations: Iterable[Location]) -> tuple[Location, ...]:
    """Return the locations that have, or may have, own objects."""
    return tuple(location for location in locations if not _is_empty(observed, location))


def _is_empty(observed: Observed, location: Location) -> bool:
    """True if a location has no own objects.

    An unreadable one counts only if the object is annotated as abandoned.
    """
    state = observed.states[location]
    if state.error is not None:
        return observed.inference.metadata.annotations.get(labels.ABANDON) == "true"
    return not state.children


def _delete_copies(observed: Observed, locations: Iterable[Location]) -> tuple[Step, ...]:
    """Return the deletions of own objects at readable locations."""
    return tuple(
        delete(child, cluster=state.cluster)
        for state in (observed.states[location] for location in locations)
        if state.error is None
        for child in state.children
    )


def _describe_blocked(observed: Observed, locations: Iterable[Location]) -> str:
    """Return why some old copies remain, with advice; "" if nothing blocks their removal."""
    problems = [
        f"{location}: {_describe_error(location, error)}"
        for location in locations
        if (error := observed.states[location].error) is not None
    ]
    remedy = f"Restore the connection, or annotate the object {labels.ABANDON}=true to leave its copy there behind"
    return f"{'; '.join(problems)}. {remedy}" if problems else ""


def _describe_error(location: Location, error: ClientError) -> str:
    """Return a message about an error. The server's own text is included only for a tenant's own Secret."""
    return str(error) if location.target == "Secret" else describe_rejection(error)


def _is_same_but_moved(location: Location, target: Location) -> bool:
    """True if two locations differ only in the address of the API server."""
    return location.model_copy(update={"server": None}) == target.model_copy(update={"server": None})


# Status ---------------------------------------------------------------------------------------------------------------


def _compute_status(
    observed: Observed, locations: tuple[Location, ...], *given: Condition, old: tuple[object, ...] = ()
) -> LLMInferenceStatus:
    """Return the status with the given conditions, OldCopiesRemoved, and a Ready condition that follows from them.

    `old` are the former locations, empty or not.
    """
    now, conditions = observed.now, list(given)
    target = observed.target if isinstance(observed.target, Location) else None
    others = tuple(item for item in locations if item != target)
    had_old_copies = any(item.type == OldCopiesRemoved.__name__ for item in observed.inference.conditions)
    if blocked := _describe_blocked(observed, others):
        conditions.append(OldCopiesRemoved.LEFT_BEHIND.condition(now, message=blocked))
    elif others:
        conditions.append(OldCopiesRemoved.REMOVING.condition(now, message=f"Old copies remain in {_join(others)}"))
    elif observed.target is not None and observed.in_fleet:
        message = (
            f"The previous ModelDeployment and ModelService are deleted once the {observed.inference.spec.runtime}"
            " exists"
        )
        conditions.append(OldCopiesRemoved.REMOVING.condition(now, message=message))
    elif old or had_old_copies:
        conditions.append(OldCopiesRemoved.REMOVED.condition(now))
    problem = next((item for item in given if item.status != "True"), None)
    degraded = next((item for item in conditions if item.reason == OldCopiesRemoved.LEFT_BEHIND.reason), None)
    has_model_ready = any(item.type == ModelReady.__name__ for item in given)
    if problem is not None and problem.reason == TargetResolved.UNREACHABLE.reason:
        ready = Ready.UNREACHABLE.condition(now, message=problem.message or "")
    elif problem is not None:
        part = _find_failing_part(observed) if problem.reason == ModelReady.NOT_READY.reason else ""
        ready = not_ready(LLMInference.definition.kind, problem, reason=part)
    elif not has_model_ready:
        ready = Ready.CREATING.condition(now, message=describe_starting("engine"))
    elif degraded is not None:
        ready = Ready.DEGRADED.condition(now, message=degraded.message or "")
    else:
        ready = Ready.AVAILABLE.condition(now)
    conditions += _not_needed_conditions(observed)
    previous = observed.inference.status or LLMInferenceStatus()
    return LLMInferenceStatus(
        url=previous.url, replicas=previous.replicas, locations=locations, conditions=(*conditions, ready)
    )


def _not_needed_conditions(observed: Observed) -> list[Condition]:
    """Return conditions NotNeeded for those that an earlier status has from the other placement."""
    previous_types = {item.type for item in observed.inference.conditions}
    other_types = (MemoryKnown,) if observed.target is not None else (TargetResolved, RuntimeAvailable)
    return [item.NOT_NEEDED.condition(observed.now) for item in other_types if item.__name__ in previous_types]


def _unknown_condition(observed: Observed, message: str) -> Condition:
    return ModelReady.UNKNOWN.condition(observed.now, message=message)


def _join(locations: Iterable[Location]) -> str:
    """Return the locations as one text, for messages."""
    return ", ".join(map(str, locations))


def own_objects(child: Manifest, inference: LLMInference) -> bool:
    """True if an object belongs to this LLMInference, by the owner uid in its labels."""
    return labels_of(child).get(labels.OWNER_UID) == inference.metadata.uid
