"""What is told of a replica whose cluster was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kubeloop.condition_types import Condition, Ready
from kubeloop.conditions import condition
from kubeloop.objects import Manifest, is_terminating, section
from modelplane_operator.api import labels
from modelplane_operator.api.model_replica import (
    CacheTransfer,
    HeldNodes,
    ModelAccepted,
    ModelReady,
    ModelReplica,
    ModelReplicaStatus,
    PickerReady,
)
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.models.replica.plan.engines import EngineState
from modelplane_operator.models.replica.plan.observed import Observed
from modelplane_operator.models.replica.plan.referenced import missing
from modelplane_operator.models.replica.plan.symptoms import is_pending, is_refused, symptoms, told, unrouted
from modelplane_operator.models.replica.render import unheard, untransferred
from modelplane_operator.scheduling.placement import charges, read

KIND = ModelReplica.definition.kind


@dataclass(frozen=True, slots=True)
class Problem:
    """What keeps a replica from being as it should."""

    reason: ModelAccepted
    words: str


def judged(seen: Observed, engines: Sequence[EngineState], problem: Problem | None) -> ModelReplicaStatus:
    """The conditions of a replica whose cluster was seen. `problem`: what keeps it from being as it should."""
    now, words = seen.now, problem.words if problem else ""
    absent = [engine.name for engine in engines if engine.workload is None]
    silent = [engine.name for engine in engines if not engine.answers]
    detour, unpicked, found = _unrouted(seen), _unpicked(seen), symptoms(seen.pods, seen.nodes)
    ill = told(found)
    if absent:
        reason = problem.reason if problem else ModelAccepted.DEPLOYING
        accepted = reason.condition(now, message=words or f"no workload yet of engine {', '.join(absent)}")
        answers = ModelReady.WAITING_FOR_MODEL.condition(now)
    else:
        kept = missing(seen, copied=True)
        accepted = ModelAccepted.ACCEPTED.condition(now, message=f"{kept}; the copy of before stays" if kept else "")
        if silent:
            deaf = [unheard(engine) for engine in seen.replica.spec.engines if engine.name in silent]
            reason = found[0].reason if found else ModelReady.MODEL_STARTING
            why = _sentence(words, f"no pod of engine {', '.join(silent)} answers", *deaf, ill)
            answers = reason.condition(now, message=why)
        elif unpicked and seen.replica.spec.is_split:
            answers = ModelReady.PICKER_NOT_READY.condition(now, message=_sentence(unpicked, ill))
        elif detour:
            refused = any(map(is_refused, seen.routes))
            reason = ModelReady.ROUTE_REFUSED if refused else ModelReady.MODEL_STARTING
            answers = reason.condition(now, message=detour)
        else:
            answers = ModelReady.SERVING.condition(now)
    needed = unpicked if seen.replica.spec.is_split else ""
    lacks = _sentence(words, *(engine.lacks for engine in engines), needed, detour)
    if problem:
        why = problem.reason.condition(now)
    elif absent or answers.status != "True":
        why = accepted if absent else answers
    elif needed:
        why = _unpicked_reason(seen).condition(now)
    else:
        why = (found[0].reason if found else ModelReady.MODEL_STARTING).condition(now)
    cordoned = seen.nodes.cordoned(seen.pods)
    # Without its picker a replica serves all the same, in mode Unified.
    whole = Ready.AVAILABLE.condition(now, message=_sentence(cordoned, _spread(seen, unpicked), unpicked and ill))
    if lacks:
        whole = not_ready(KIND, why, _sentence(lacks, ill, cordoned))
    return status(
        (accepted, *_transfer(seen), *_picking(seen, unpicked), answers, whole),
        held=_held(seen),
        unschedulable_since=_unschedulable_since(seen),
        paths="ModelAPIs" if seen.around.filters(seen.replica) else "All",
    )


def _transfer(seen: Observed) -> tuple[Condition, ...]:
    if not seen.replica.spec.is_split:
        return ()
    lacking = untransferred(seen.replica)
    found = CacheTransfer.NOT_CONFIGURED if lacking else CacheTransfer.CONFIGURED
    return (found.condition(seen.now, message=lacking),)


def _picking(seen: Observed, unpicked: str) -> tuple[Condition, ...]:
    if seen.picker_policy is None:
        had = any(each.type == PickerReady.__name__ for each in seen.replica.conditions)
        return (PickerReady.NOT_NEEDED.condition(seen.now),) if had else ()
    reason = _unpicked_reason(seen) if unpicked else PickerReady.PICKING
    return (reason.condition(seen.now, message=_spread(seen, unpicked)),)


def _spread(seen: Observed, unpicked: str) -> str:
    """Return what becomes of requests that no picker is asked about; empty when one is."""
    if not unpicked or seen.replica.spec.is_split:
        return unpicked
    return f"{unpicked}; requests are spread over the pods without it"


def _unpicked_reason(seen: Observed) -> PickerReady:
    """Return why no picker answers: nobody asks it, it has answered before, or is on its way for the first time."""
    if seen.picker_refusal:
        return PickerReady.NOT_ASKED
    had = {PickerReady.AWAY.reason, PickerReady.PICKING.reason}
    return PickerReady.AWAY if any(each.reason in had for each in seen.replica.conditions) else PickerReady.STARTING


def status(
    conditions: tuple[Condition, ...],
    *,
    held: tuple[HeldNodes, ...] = (),
    unschedulable_since: datetime | None = None,
    paths: Literal["ModelAPIs", "All"] | None = None,
) -> ModelReplicaStatus:
    return ModelReplicaStatus(
        conditions=conditions, held_nodes=held, unschedulable_since=unschedulable_since, paths=paths
    )


def _unschedulable_since(seen: Observed) -> datetime | None:
    """By our own clock, and since the first time that it was seen: that of the cluster may be wrong."""
    if not any(map(_is_unschedulable, seen.pods)):
        return None
    last = seen.replica.status
    return (last.unschedulable_since if last else None) or seen.now


def _is_unschedulable(pod: Manifest) -> bool:
    """Whether a pod that is to have a node for itself has found none."""
    awaits = section(pod, "spec").get("resourceClaims") and not is_terminating(pod)
    return bool(awaits) and condition(pod, "PodScheduled").status == "False"


def _held(seen: Observed) -> tuple[HeldNodes, ...]:
    """Pools on more of whose nodes the replica has pods than its spec asks for."""
    asked = charges(read(seen.replica).engines)
    pools = Counter(section(pod, "spec", "nodeSelector").get(labels.POOL, "") for pod in seen.pods if _has_node(pod))
    return tuple(
        HeldNodes(pool=pool, nodes=nodes) for pool, nodes in sorted(pools.items()) if nodes > asked.get(pool, 0)
    )


def _has_node(pod: Manifest) -> bool:
    """Whether a pod has a node for itself: one that claims devices does, until its containers have ended."""
    spec, phase = section(pod, "spec"), section(pod, "status").get("phase")
    return bool(spec.get("nodeName") and spec.get("resourceClaims")) and phase not in {"Succeeded", "Failed"}


def _sentence(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _unrouted(seen: Observed) -> str:
    """Return why no requests reach the replica by its route; empty when they do.

    Where the operator has changed the route of a replica that serves, to its picker or past it, requests go by the one
    before until the gateway has taken the change.
    """
    if not seen.routes:
        return "there is no route to the replica yet"
    [route, *_] = seen.routes
    generation = seen.replica.metadata.generation
    serves = any(
        each.type == ModelReady.__name__ and each.status == "True" and each.observed_generation == generation
        for each in seen.replica.conditions
    )
    return "" if serves and is_pending(route) else unrouted(route)


def _unpicked(seen: Observed) -> str:
    """Why nobody says where a request goes; empty when somebody does, or nobody has to."""
    if seen.picker_refusal:
        return f"the cluster's gateway does not ask the endpoint picker: {seen.picker_refusal}"
    if seen.picker_policy is None or seen.picker_answers:
        return ""
    return "no pod of the endpoint picker is ready"
