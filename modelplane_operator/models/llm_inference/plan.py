"""One LLMInference: what is to be where, what is left of before, and what became of it.

A place is written into the status before anything is made there, and stays there until nothing of ours was seen in it:
so an operator that was down when the target changed, or is killed at any write, still knows where to look. Old copies
go once the new one is there; what cannot be read or reached deletes nothing.
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
from kubeloop.remote_messages import refused
from kubeloop.types import DEPLOYMENT, HUB, VLLM_RUNTIME, type_of
from kubeloop.words import counted, listed
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
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.models.llm_inference.llm_engine import model_ready, replicas
from modelplane_operator.models.llm_inference.model_memory import MemoryRequirement, memory_need
from modelplane_operator.models.llm_inference.render import render_in_fleet, render_on_cluster

AT_ONCE: Final = 0.1  # what was only written down is made
REQUEUE_AFTER: Final = 20.0  # nothing is watched there: whoever gives a kubeconfig need not let us
AT_REST: Final = 60.0
INSTALL: Final = "install the vLLM production-stack operator there, which brings the kind VLLMRuntime"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One place, as it was seen."""

    cluster: str = HUB
    """The connection that leads there."""
    error: ClientError | None = None
    """Why it could not be asked."""
    connecting: bool = False
    """Whether that is because nobody has asked it yet."""
    runtimes: bool = True
    """Whether the cluster knows VLLMRuntimes."""
    children: tuple[Manifest, ...] = ()
    """What is there of the object's name and is ours."""
    others: tuple[Manifest, ...] = ()
    """What is there of that name and is not."""
    token: bool = False
    """Whether there is a Hugging Face token, or was one when nobody lets us look."""
    unverified: str = ""
    """Why nobody can tell whether it is that cluster who answers; empty when it proves it."""


@dataclass(frozen=True, slots=True)
class UnusableTarget:
    """Why nothing can be made where the object says."""

    reason: TargetResolved
    message: str


@dataclass(frozen=True, slots=True)
class Observed:
    """An LLMInference, where it is to be, and all places that it is or was in."""

    inference: LLMInference
    target: Location | UnusableTarget | None
    """None with placement Fleet."""
    now: datetime
    states: Mapping[Location, ClusterState] = field(default_factory=dict[Location, ClusterState])
    in_fleet: tuple[Manifest, ...] = ()
    """The ModelDeployment and ModelService that are ours."""


def plan(seen: Observed) -> Plan:
    if seen.inference.metadata.deletion_timestamp is not None:
        return _teardown(seen)
    return _fleet(seen) if seen.target is None else _cluster(seen, seen.target)


# A cluster that is named ----------------------------------------------------------------------------------------------


def _cluster(seen: Observed, target: Location | UnusableTarget) -> Plan:
    inference, now, known = seen.inference, seen.now, seen.inference.locations
    if isinstance(target, UnusableTarget):
        judged = target.reason.condition(now, message=target.message)
        told = _status(seen, known, judged, _unasked(seen), _unknown(seen, target.message))
        return Plan(status=told, requeue_after=AT_REST)
    state = seen.states[target]
    if state.connecting and target in known:  # what was known of it stays
        return Plan(requeue_after=REQUEUE_AFTER)
    if state.error is not None:
        words = f"In {target}: {_why(target, state.error)}"
        judged = _unanswered(target, state).condition(now, message=words)
        told = _status(seen, known, judged, _unasked(seen), _unknown(seen, words))
        return Plan(status=told, requeue_after=REQUEUE_AFTER)
    wanted = render_on_cluster(inference, token=state.token)
    kinds = {*map(type_of, wanted), DEPLOYMENT, VLLM_RUNTIME}
    if taken := [f"{one['kind']} {key_of(one)}" for one in state.others if type_of(one) in kinds]:
        words = f"{listed(taken)} in {target} is not this LLMInference's: delete it, or give this one another name"
        judged = ModelReady.NAME_TAKEN.condition(now, message=words)
        return Plan(status=_status(seen, known, judged), requeue_after=REQUEUE_AFTER)
    doubt = f"; anybody on the way there can take its place: {state.unverified}" if state.unverified else ""
    resolved = TargetResolved.RESOLVED.condition(now, message=f"The model is in {target}{doubt}")
    if target not in known:
        kept = tuple(one for one in known if not (state.children and _moved(one, target)))
        if len(kept) >= LOCATIONS:
            words = f"There are old copies in {counted(len(kept), 'place')}: {_where(kept)}; let go of them first"
            full = TargetResolved.TOO_MANY_LOCATIONS.condition(now, message=words)
            return Plan(status=_status(seen, kept, full), requeue_after=AT_REST)
        return Plan((KEEP,), _status(seen, (*kept, target), resolved), AT_ONCE)
    old = tuple(one for one in known if one != target)
    if inference.spec.runtime == "VLLMRuntime" and not state.runtimes:
        words = f"The cluster does not know VLLMRuntimes: {INSTALL}"
        lacking = RuntimeAvailable.NOT_INSTALLED.condition(now, message=words)
        return Plan((KEEP,), _status(seen, known, resolved, lacking, model_ready(None, now)), REQUEUE_AFTER)
    steps: list[Step] = [KEEP, *(Apply(one, state.cluster) for one in wanted)]
    steps += prune(state.children, wanted, owner=_uid(seen), cluster=state.cluster)
    left = _still_there(seen, old)
    engine = next((one for one in state.children if one["kind"] == inference.spec.runtime), None)
    if engine is not None:
        steps += _removed(seen, left)
        steps += [delete(one) for one in seen.in_fleet]
    available = _runtime_available(seen, RuntimeAvailable.AVAILABLE)
    ready = model_ready(engine, now)
    at_rest = not left and not seen.in_fleet and ready.status == "True"
    status = _status(seen, (target, *left), resolved, available, ready, old=old)
    ingress = next((one for one in state.children if one["kind"] == "Ingress"), None)
    host = inference.spec.ingress_host
    url = f"http://{host}" if host and ingress else None
    told = status.model_copy(update={"url": url, "replicas": replicas(engine)})
    return Plan(tuple(steps), told, AT_REST if at_rest else REQUEUE_AFTER)


def _unanswered(target: Location, state: ClusterState) -> TargetResolved:
    match state.error:
        case Forbidden():
            return TargetResolved.FORBIDDEN
        case Unauthorized() if target.target == "Secret":
            return TargetResolved.INVALID_KUBECONFIG
        case _:
            return TargetResolved.CONNECTING if state.connecting else TargetResolved.UNREACHABLE


def _unasked(seen: Observed) -> Condition:
    return _runtime_available(seen, RuntimeAvailable.NOT_KNOWN)


def _runtime_available(seen: Observed, reason: RuntimeAvailable) -> Condition:
    needed = seen.inference.spec.runtime == "VLLMRuntime"
    return (reason if needed else RuntimeAvailable.NOT_NEEDED).condition(seen.now)


# The fleet ------------------------------------------------------------------------------------------------------------


def _fleet(seen: Observed) -> Plan:
    inference, now, known = seen.inference, seen.now, seen.inference.locations
    need = memory_need(inference)
    words = memory_words(inference, need)
    if need is None:
        unknown = MemoryKnown.NOT_KNOWN.condition(now, message=words)
        return Plan(status=_status(seen, known, unknown, _in_fleet(seen)))
    left = _still_there(seen, known)
    steps: list[Step] = [Apply(one) for one in render_in_fleet(inference, need.per_gpu)]
    if seen.in_fleet:
        steps += _removed(seen, left)
    if not left:
        steps.append(LET_GO)
    reason = next(one for one in MemoryKnown if one.reason == need.known)
    status = _status(seen, left, reason.condition(now, message=words), _in_fleet(seen), old=known)
    found = {one["kind"]: one for one in seen.in_fleet}
    service, deployment = (found.get(kind, Manifest()) for kind in ("ModelService", "ModelDeployment"))
    told = {
        "url": section(service, "status").get("address"),
        "replicas": section(deployment, "status", "replicas").get("ready"),
        "memory_per_gpu": f"{need.per_gpu}Gi",
    }
    return Plan(tuple(steps), status.model_copy(update=told), REQUEUE_AFTER if left else None)


def memory_words(inference: LLMInference, need: MemoryRequirement | None) -> str:
    """What its GPUs have to have, and how that is known."""
    if need is None:
        return f"How much memory model {inference.spec.model} needs cannot be told by its name: set spec.memory"
    return f"{need.words}: {counted(inference.spec.gpu, 'GPU')} of at least {need.per_gpu}Gi each"


def _in_fleet(seen: Observed) -> Condition:
    if len(seen.in_fleet) < 2:
        return ModelReady.NOT_CREATED.condition(seen.now)
    for one in seen.in_fleet:
        ready = condition(one, Ready.__name__)
        if not ready.is_true:
            words = f"{one['kind']} {one['metadata']['name']} is not ready: {ready.why}"
            return ModelReady.NOT_READY.condition(seen.now, message=words)
        if not ready.current:
            words = f"{one['kind']} {one['metadata']['name']} is being changed"
            return ModelReady.NOT_READY.condition(seen.now, message=words)
    return ModelReady.READY.condition(seen.now)


# What was before ------------------------------------------------------------------------------------------------------


def _teardown(seen: Observed) -> Plan:
    left = _still_there(seen, seen.inference.locations)
    steps = _removed(seen, left) if left else (LET_GO,)
    words = f"Something of it is in {_where(left)}" if left else ""
    stuck = _stuck(seen, left)
    told = Ready.DELETING.condition(seen.now, message=stuck or words)
    status = LLMInferenceStatus(locations=left, conditions=(told,))
    return Plan(tuple(steps), status, REQUEUE_AFTER if stuck else AT_ONCE * 10)


def _still_there(seen: Observed, places: Iterable[Location]) -> tuple[Location, ...]:
    """Those in which something is or may be."""
    return tuple(one for one in places if not _gone(seen, one))


def _gone(seen: Observed, place: Location) -> bool:
    state = seen.states[place]
    if state.error is not None:
        return _abandoned(seen)
    return not state.children


def _removed(seen: Observed, places: Iterable[Location]) -> tuple[Step, ...]:
    return tuple(
        delete(child, cluster=state.cluster)
        for state in (seen.states[place] for place in places)
        if state.error is None
        for child in state.children
    )


def _stuck(seen: Observed, places: Iterable[Location]) -> str:
    """Why some of what was made stays; empty when nothing keeps it."""
    wrong = [f"{one}: {_why(one, error)}" for one in places if (error := seen.states[one].error) is not None]
    remedy = f"Bring the way there back, or annotate the object {labels.ABANDON}=true to leave what is there behind"
    return f"{'; '.join(wrong)}. {remedy}" if wrong else ""


def _why(place: Location, error: ClientError) -> str:
    """Return why a place could not be asked, in its server's words only where a Secret of the tenant's leads there."""
    return str(error) if place.target == "Secret" else refused(error)


def _abandoned(seen: Observed) -> bool:
    return seen.inference.metadata.annotations.get(labels.ABANDON) == "true"


def _moved(place: Location, target: Location) -> bool:
    """Whether a place is this one but for the address of its API server."""
    return place.model_copy(update={"server": None}) == target.model_copy(update={"server": None})


# What is told ---------------------------------------------------------------------------------------------------------


def _status(
    seen: Observed, locations: tuple[Location, ...], *judged: Condition, old: tuple[object, ...] = ()
) -> LLMInferenceStatus:
    now, told = seen.now, list(judged)
    target = seen.target if isinstance(seen.target, Location) else None
    left = tuple(one for one in locations if one != target)
    before = any(one.type == OldCopiesRemoved.__name__ for one in seen.inference.conditions)
    if stuck := _stuck(seen, left):
        told.append(OldCopiesRemoved.LEFT_BEHIND.condition(now, message=stuck))
    elif left:
        told.append(OldCopiesRemoved.REMOVING.condition(now, message=f"Something of it is in {_where(left)}"))
    elif seen.target is not None and seen.in_fleet:
        words = f"The ModelDeployment and ModelService of before go when the {seen.inference.spec.runtime} is there"
        told.append(OldCopiesRemoved.REMOVING.condition(now, message=words))
    elif old or before:
        told.append(OldCopiesRemoved.REMOVED.condition(now))
    wrong = next((one for one in judged if one.status != "True"), None)
    degraded = next((one for one in told if one.reason == OldCopiesRemoved.LEFT_BEHIND.reason), None)
    done = any(one.type == ModelReady.__name__ for one in judged)
    if wrong is not None and wrong.reason == TargetResolved.UNREACHABLE.reason:
        ready = Ready.UNREACHABLE.condition(now, message=wrong.message or "")
    elif wrong is not None:
        ready = not_ready(LLMInference.definition.kind, wrong)
    elif not done:
        ready = Ready.CREATING.condition(now)
    elif degraded is not None:
        ready = Ready.DEGRADED.condition(now, message=degraded.message or "")
    else:
        ready = Ready.AVAILABLE.condition(now)
    told += _not_needed(seen)
    said = seen.inference.status or LLMInferenceStatus()
    return LLMInferenceStatus(url=said.url, replicas=said.replicas, locations=locations, conditions=(*told, ready))


def _not_needed(seen: Observed) -> list[Condition]:
    """What was told of the other placement, which would stay as it was."""
    before = {one.type for one in seen.inference.conditions}
    of_other = (MemoryKnown,) if seen.target is not None else (TargetResolved, RuntimeAvailable)
    return [one.NOT_NEEDED.condition(seen.now) for one in of_other if one.__name__ in before]


def _unknown(seen: Observed, message: str) -> Condition:
    return ModelReady.UNKNOWN.condition(seen.now, message=message)


def _where(places: Iterable[Location]) -> str:
    return ", ".join(map(str, places))


def _uid(seen: Observed) -> str:
    return seen.inference.metadata.uid or ""


def ours(child: Manifest, inference: LLMInference) -> bool:
    """Whether an object of that name is this one's."""
    return labels_of(child).get(labels.OWNER_UID) == inference.metadata.uid
