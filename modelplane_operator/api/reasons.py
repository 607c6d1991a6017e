"""Every reason of every kind, found by what a condition says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from modelplane_operator.api import KINDS
from modelplane_operator.api.conditions import Condition, ConditionType


@cache
def _reasons(kind: str) -> Mapping[tuple[str, str], ConditionType]:
    types = (of for one in KINDS if one.definition.kind == kind for of in one.definition.conditions)
    return {(one.type, one.reason): one for of in types for one in of}


def find(kind: str, condition: Condition) -> ConditionType | None:
    """What a condition of an object of that kind says; None for what this version of the operator does not say.

    `Ready` also says reasons of other conditions: of the one that keeps it from being true.
    """
    known = _reasons(kind)
    named = known.get((condition.type, condition.reason))
    return named or next((one for (_, reason), one in known.items() if reason == condition.reason), None)
