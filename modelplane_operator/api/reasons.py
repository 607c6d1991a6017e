"""Every reason of every kind, found by what a condition says; and how `Ready` borrows them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from kubeloop import conditions
from kubeloop.condition_types import WARNING, Condition, ConditionType, Ready
from kubeloop.words import sentence
from modelplane_operator.api import KINDS

LONGEST: Final = 300
"""Longest message of `Ready` without a command in it, in characters. The rest stands in the other conditions."""

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "ModelReplica": ("ModelCache",),
    "ModelDeployment": ("ModelReplica",),
    "LLMInference": ("ModelDeployment", "ModelService"),
    "ModelService": ("ModelEndpoint",),
    "InferenceCluster": ("EKSCluster", "GKECluster", "ServingStack"),
}
"""Kinds whose reasons the `Ready` of a kind repeats."""


@cache
def _reasons(kind: str) -> Mapping[tuple[str, str], ConditionType]:
    types = (declared for item in KINDS if item.definition.kind == kind for declared in item.definition.conditions)
    return {(reason.type, reason.reason): reason for declared in types for reason in declared}


def find(kind: str, condition: Condition | conditions.Condition) -> ConditionType | None:
    """Return the declared reason of a condition; None for one that this version of the operator does not declare.

    `Ready` also has reasons of other conditions, of the object or of its parts: of the one that keeps it from being
    true.
    """
    reasons = _reasons(kind)
    own = reasons.get((condition.type, condition.reason)) or next(
        (declared for (_, reason), declared in reasons.items() if reason == condition.reason), None
    )
    return own or next((declared for part in PARTS.get(kind, ()) if (declared := find(part, condition))), None)


def is_warning(kind: str, condition: Condition | conditions.Condition) -> bool:
    """True if a condition says what does not mend by itself."""
    reason = find(kind, condition)
    return reason is not None and reason.severity == WARNING


def not_ready(kind: str, cause: Condition, message: str | None = None, *, reason: str = "") -> Condition:
    """Return the Ready condition of an object that is not ready because of `cause`, one of its conditions.

    `reason` is that of the part that fails, if it is a part. While the cause is but a step, the reason is `Creating`.
    """
    cause = cause.model_copy(update={"reason": reason}) if reason else cause
    declared = find(kind, cause)
    text = (cause.message if message is None else message) or (declared.meaning if declared else "")
    return cause.model_copy(
        update={
            "type": Ready.__name__,
            "status": "False",
            "reason": cause.reason if is_warning(kind, cause) else Ready.CREATING.reason,
            "message": sentence(_limit(text, cause.type)),
        }
    )


def _limit(message: str, condition_type: str) -> str:
    """Return the first clauses of a message, as many as LONGEST allows; the condition itself has the others.

    The first clause with a command is never dropped: people copy it, and names may make it long.
    """
    if len(message) <= LONGEST:
        return message
    clauses = message.split("; ")
    more = f"see {condition_type}" if condition_type != Ready.__name__ else "..."
    count = len(clauses)
    while count > 1 and len("; ".join((*clauses[:count], more))) > LONGEST:
        count -= 1
    first = clauses[:count]
    if count == 1:  # figures alone are no cause, so a part of the next clause follows them
        room = LONGEST - len(more) - 6
        start = message.partition("; its log says more")[0][:room]
        end = start.rfind(". ")
        if end > 0:
            start = start[:end]
        elif len(start) == room:
            start = f"{start[: start.rfind(' ')]} ..."
        first = [start]
    command = next((clause for clause in clauses[count:] if "kubectl " in clause), "")
    return "; ".join(filter(None, (*first, command, more)))
