"""Every reason of every kind, found by what a condition says; and how `Ready` borrows them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from kubeloop import conditions
from kubeloop.condition_types import WARNING, Condition, ConditionType, Ready
from kubeloop.words import sentence
from modelplane_operator.api import KINDS


@cache
def _reasons(kind: str) -> Mapping[tuple[str, str], ConditionType]:
    types = (of for one in KINDS if one.definition.kind == kind for of in one.definition.conditions)
    return {(one.type, one.reason): one for of in types for one in of}


def find(kind: str, condition: Condition | conditions.Condition) -> ConditionType | None:
    """What a condition of an object of that kind says; None for what this version of the operator does not say.

    `Ready` also says reasons of other conditions: of the one that keeps it from being true.
    """
    known = _reasons(kind)
    named = known.get((condition.type, condition.reason))
    return named or next((one for (_, reason), one in known.items() if reason == condition.reason), None)


def is_warning(kind: str, condition: Condition | conditions.Condition) -> bool:
    """Whether a condition says what does not mend by itself."""
    reason = find(kind, condition)
    return reason is not None and reason.severity == WARNING


def not_ready(kind: str, cause: Condition, message: str | None = None) -> Condition:
    """That an object is not Ready, for what another of its conditions says; `Creating` while that is but a step."""
    return cause.model_copy(
        update={
            "type": Ready.__name__,
            "status": "False",
            "reason": cause.reason if is_warning(kind, cause) else Ready.CREATING.reason,
            "message": sentence((cause.message if message is None else message) or ""),
        }
    )
