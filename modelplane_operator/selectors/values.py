"""The values a selector computes with, their equality and order, and the ways a computation can fail.

Python's own types stand for CEL's: bool, int (64 bits, checked where it is made), float, str, bytes, None, tuple (list)
and dict (map); the rest has a type here. Python calls True and 1 equal, CEL does not, hence `equal`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeAlias, cast

from modelplane_operator.selectors.quantity import Quantity
from modelplane_operator.selectors.semver import Semver

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1


class UInt(int):
    """An unsigned 64-bit number, which CEL keeps apart from int."""


@dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """A value that may be absent."""

    present: bool
    value: Any = None


NOTHING = Optional(present=False)


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands where a device has a value that cannot be read; reading it is an error, having it is not."""

    reason: str


class DomainMap(dict[str, dict[str, Any]]):
    """A device's attributes or capacity by domain; an unknown domain reads as an empty one."""

    def __missing__(self, key: str) -> dict[str, Any]:
        return {}


Value: TypeAlias = (
    bool | int | UInt | float | str | bytes | tuple[Any, ...] | Mapping[Any, Any] | Quantity | Semver | Optional | None
)

KINDS: dict[type, str] = {
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    NoneType: "null",
    tuple: "list",
    dict: "map",
    DomainMap: "map",
    Quantity: "quantity",
    Semver: "version",
    Optional: "optional",
}
_NUMBERS = frozenset({int, UInt, float})
_INCOMPARABLE = frozenset({Quantity, Semver})
TOLD = 32  # characters of a text

Spend: TypeAlias = Callable[[int], None]  # charges steps to the evaluation under way; raises OutOfBudget


class EvaluationError(Exception):
    """The selector has no answer for this device; the message says why."""


class OutOfBudget(EvaluationError):  # noqa: N818
    """The evaluation took more steps than any reasonable selector; unlike other errors, && and || do not absorb it."""


def kind(value: Value) -> str:
    """The name of the value's type, for messages."""
    return KINDS[type(value)]


def a_kind(value: Value) -> str:
    """The same with its article."""
    name = kind(value)
    return f"an {name}" if name[0] in "io" else f"a {name}"


def equal(one: Value, other: Value, spend: "Spend") -> bool:
    """CEL equality: numbers by value whatever their type, different types differ.

    Raises EvaluationError where a quantity or version stands left of something else, as CEL does.
    """
    mine, theirs = type(one), type(other)
    if mine is tuple and theirs is tuple:
        return _equal_lists(cast("tuple[Any, ...]", one), cast("tuple[Any, ...]", other), spend)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _equal_maps(one, other, spend)
    if mine is Optional and theirs is Optional:
        return _equal_optionals(cast("Optional", one), cast("Optional", other), spend)
    if mine is theirs or (mine in _NUMBERS and theirs in _NUMBERS):
        return one == other
    if mine in _INCOMPARABLE and other is not None:
        raise EvaluationError(f"{a_kind(one)} cannot be compared with {a_kind(other)}{_how(one, other)}")
    return False


def _how(one: Value, other: Value) -> str:
    """What to write for a comparison with a text that was meant as the same."""
    if not isinstance(other, str):
        return ""
    return f': write .compareTo({"semver" if isinstance(one, Semver) else "quantity"}("{other[:TOLD]}")) == 0'


def _equal_lists(one: tuple[Any, ...], other: tuple[Any, ...], spend: "Spend") -> bool:
    return len(one) == len(other) and all(_equal_inside(a, b, spend) for a, b in zip(one, other, strict=True))


def _equal_maps(one: Mapping[Any, Any], other: Mapping[Any, Any], spend: "Spend") -> bool:
    if len(one) != len(other):
        return False
    return all(key in other and _equal_inside(value, other[key], spend) for key, value in one.items())


def _equal_optionals(one: Optional, other: Optional, spend: "Spend") -> bool:
    return one.present is other.present and (not one.present or equal(one.value, other.value, spend))


def _equal_inside(one: Value | Malformed, other: Value | Malformed, spend: "Spend") -> bool:
    spend(4)  # nested lists can share their parts, and so be exponentially larger than what they were made from
    for value in (one, other):
        if isinstance(value, Malformed):
            raise EvaluationError(value.reason)
    try:
        return equal(cast("Value", one), cast("Value", other), spend)
    except OutOfBudget:
        raise
    except EvaluationError:
        return True  # the API server's lists and maps differ only where elements are known to differ


def order(one: Any, other: Any) -> int | None:
    """-1, 0 or 1; None when one of them is not a number (NaN)."""
    if one < other:
        return -1
    return 1 if one > other else 0 if one == other else None
