"""The values of selectors, their equality and order, and evaluation errors.

Python's types represent CEL's: bool, int (64 bits, checked at creation), float, str, bytes, None, tuple (list) and dict
(map); the others are defined here. In Python True == 1, but not in CEL; hence `equal`.
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
    """An unsigned 64-bit number, which CEL distinguishes from int."""


@dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """A value that may be absent."""

    present: bool
    value: Any = None
    """The value; None if it is absent, or if the value is null."""


NOTHING = Optional(present=False)
"""The absent optional."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A value of a device that cannot be parsed. Only reading it is an error."""

    reason: str
    """Message of the error that reading it raises."""


class DomainMap(dict[str, dict[str, Any]]):
    """A device's attributes or capacity by domain. An unknown domain is empty."""

    def __missing__(self, key: str) -> dict[str, Any]:
        """Return an empty domain, as the API server does, so that only a missing id is an error."""
        return {}


Value: TypeAlias = (
    bool | int | UInt | float | str | bytes | tuple[Any, ...] | Mapping[Any, Any] | Quantity | Semver | Optional | None
)
"""Values that an expression can have."""

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
"""Names of types in messages, by Python type."""
_NUMBERS = frozenset({int, UInt, float})
"""Types that are compared by value with each other."""
_INCOMPARABLE = frozenset({Quantity, Semver})
"""Types for which `==` with another type is an error instead of False."""
MAX_SHOWN = 32  # maximum characters of a text in a message

Charge: TypeAlias = Callable[[int], None]  # charges steps to the current evaluation; raises OutOfBudget


class EvaluationError(Exception):
    """The selector has no result for this device. The message is the reason."""


class OutOfBudget(EvaluationError):  # noqa: N818
    """The evaluation took more steps than any reasonable selector. Unlike other errors, && and || do not absorb it."""


def kind(value: Value) -> str:
    """Return the name of the value's type, for messages."""
    return KINDS[type(value)]


def a_kind(value: Value) -> str:
    """Return the name of the type with its article."""
    name = kind(value)
    return f"an {name}" if name[0] in "io" else f"a {name}"


def equal(first: Value, second: Value, charge: "Charge") -> bool:
    """Compare by CEL's rules: numbers by value whatever their type; values of different types differ.

    Raise EvaluationError if a quantity or version is compared with a value of another type on its right, as CEL does.
    """
    own_type, other_type = type(first), type(second)
    if own_type is tuple and other_type is tuple:
        return _equal_lists(cast("tuple[Any, ...]", first), cast("tuple[Any, ...]", second), charge)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return _equal_maps(first, second, charge)
    if own_type is Optional and other_type is Optional:
        return _equal_optionals(cast("Optional", first), cast("Optional", second), charge)
    if own_type is other_type or (own_type in _NUMBERS and other_type in _NUMBERS):
        return first == second
    if own_type in _INCOMPARABLE and second is not None:
        function = "semver" if own_type is Semver else "quantity"
        hint = f': write .compareTo({function}("{second[:MAX_SHOWN]}")) == 0' if isinstance(second, str) else ""
        raise EvaluationError(f"{a_kind(first)} cannot be compared with {a_kind(second)}{hint}")
    return False


def _equal_lists(first: tuple[Any, ...], second: tuple[Any, ...], charge: "Charge") -> bool:
    """True if the lists have equal elements in the same order."""
    return len(first) == len(second) and all(_equal_elements(a, b, charge) for a, b in zip(first, second, strict=True))


def _equal_maps(first: Mapping[Any, Any], second: Mapping[Any, Any], charge: "Charge") -> bool:
    """True if the maps have the same keys with equal values."""
    if len(first) != len(second):
        return False
    return all(key in second and _equal_elements(value, second[key], charge) for key, value in first.items())


def _equal_optionals(first: Optional, second: Optional, charge: "Charge") -> bool:
    """True if both are absent, or both have equal values."""
    return first.present is second.present and (not first.present or equal(first.value, second.value, charge))


def _equal_elements(first: Value | Malformed, second: Value | Malformed, charge: "Charge") -> bool:
    """Compare elements of lists and maps. Elements that cannot be compared count as equal, as in the API server."""
    charge(4)  # nested lists can share parts, and so be exponentially larger than their sources
    for value in (first, second):
        if isinstance(value, Malformed):
            raise EvaluationError(value.reason)
    try:
        return equal(cast("Value", first), cast("Value", second), charge)
    except OutOfBudget:
        raise
    except EvaluationError:
        return True  # the API server's lists and maps only differ if elements certainly differ


def order(first: Any, second: Any) -> int | None:
    """Return -1, 0 or 1; None if one of them is NaN."""
    if first < second:
        return -1
    return 1 if first > second else 0 if first == second else None
