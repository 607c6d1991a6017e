"""What checked expressions are made of: closures that compute a value from a frame.

Each function here takes the closures of the operands and answers the closure of the whole. Errors are exceptions, which
&&, || and the macros absorb where CEL does.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

from modelplane_operator.selectors import lists
from modelplane_operator.selectors import types as t
from modelplane_operator.selectors.functions import Overload
from modelplane_operator.selectors.values import (
    KINDS,
    NOTHING,
    DomainMap,
    EvaluationError,
    Malformed,
    Optional,
    OutOfBudget,
    a_kind,
    equal,
)

# How many steps one evaluation may take; the longest useful selector we know takes about 100. The API server's own
# limit is 1,000,000 units, which here would be a second.
BUDGET = 100_000
NAMED = 6  # of what a device has


class Frame:
    """One evaluation: the device, the values of variables, and how many steps are left."""

    __slots__ = ("device", "left", "variables")

    def __init__(self, device: Mapping[str, Any], variables: int) -> None:
        self.device = device
        self.variables: list[Any] = [None] * variables
        self.left = BUDGET

    @property
    def spent(self) -> int:
        """One at least, whatever the expression is."""
        return BUDGET - self.left + 1

    def spend(self, steps: int) -> None:
        """Take steps off what is left; raises OutOfBudget."""
        self.left -= steps
        if self.left < 0:
            raise OutOfBudget(f"the selector takes more than {BUDGET} steps on this device")


Run: TypeAlias = Callable[[Frame], Any]

MISSING = object()
_RUNTIME: dict[str, frozenset[type]] = {}
for _type, _name in KINDS.items():
    _name = {"quantity": "Quantity", "version": "Semver"}.get(_name, _name)
    _RUNTIME[_name] = _RUNTIME.get(_name, frozenset()) | {_type}


# --- reading values ---


def read(value: Any) -> Any:
    if value.__class__ is Malformed:
        raise EvaluationError(value.reason)
    return value


def find(mapping: Mapping[Any, Any], key: Any) -> Any:
    """The value of a key, or MISSING; raises EvaluationError for what can be no key, and for a malformed value."""
    if type(key) is str:
        if isinstance(mapping, DomainMap):
            return mapping[key]
        return read(mapping.get(key, MISSING))
    if not _can_be_key(key):
        raise EvaluationError(f"{a_kind(key)} cannot be the key of a map")
    # Python finds True under 1.
    value = mapping.get(key, MISSING)
    if value is not MISSING and isinstance(key, bool) is not any(isinstance(k, bool) for k in mapping):
        return MISSING
    return read(value)


def _can_be_key(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def truth(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise EvaluationError(f"{a_kind(value)} is not a condition")


def _list_index(key: Any) -> int:
    if isinstance(key, float) and key.is_integer():
        return int(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return int(key)
    raise EvaluationError(f"{a_kind(key)} is no index of a list")


def _present(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Optional):
        raise EvaluationError(f"? needs an optional value, not {a_kind(value)}")
    return (value.value,) if value.present else ()


# --- fields and entries ---


def _instead(there: Mapping[str, Any]) -> str:
    """What a device has instead, for whoever has mistyped a name."""
    some = sorted(there)[:NAMED]
    more = f" and {len(there) - NAMED} more" if len(there) > NAMED else ""
    return f": it has {', '.join(some)}{more}" if some else ""


def entry(path: tuple[str, str, str], missing: str) -> Run:
    what, domain, identifier = path

    def run(frame: Frame) -> Any:
        of_domain = frame.device[what][domain]
        value = of_domain.get(identifier, MISSING)
        if value is MISSING:
            raise EvaluationError(f"{missing}{_instead(of_domain)}")
        if value.__class__ is Malformed:
            raise EvaluationError(value.reason)
        return value

    return run


def field_of(operand: Run, key: str, missing: str) -> Run:
    """A field of a map; `missing` is what to say when it has none."""

    def run(frame: Frame) -> Any:
        mapping = operand(frame)
        if not isinstance(mapping, Mapping):
            raise EvaluationError(f"{a_kind(mapping)} has no field {key}")
        found = find(cast("Mapping[Any, Any]", mapping), key)
        if found is MISSING:
            raise EvaluationError(missing)
        return found

    return run


def has_entry(value: Any, key: str) -> bool:
    if isinstance(value, Optional):
        return value.present and has_entry(value.value, key)
    if not isinstance(value, Mapping):
        raise EvaluationError(f"{a_kind(value)} has no field {key}")
    mapping = cast("Mapping[Any, Any]", value)
    return key in mapping or isinstance(mapping, DomainMap)


def optional_entry(value: Any, key: Any) -> Optional:
    if isinstance(value, Optional):
        return optional_entry(value.value, key) if value.present else NOTHING
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        number = _list_index(key)
        return Optional(present=True, value=items[number]) if 0 <= number < len(items) else NOTHING
    if isinstance(value, Mapping):
        found = find(cast("Mapping[Any, Any]", value), key)
        return NOTHING if found is MISSING else Optional(present=True, value=found)
    raise EvaluationError(f"{a_kind(value)} has no entry {key}")


def constant(value: Any) -> Run:
    """The same for every device."""
    return lambda _: value


def index(container: Run, index: Run) -> Run:
    def run(frame: Frame) -> Any:
        value, key = container(frame), index(frame)
        if isinstance(value, tuple):
            return lists.element(cast("tuple[Any, ...]", value), _list_index(key))
        if isinstance(value, Mapping):
            found = find(cast("Mapping[Any, Any]", value), key)
            if found is MISSING:
                raise EvaluationError(f"there is no {key}")
            return found
        if isinstance(value, Optional):
            return optional_entry(value, key)
        raise EvaluationError(f"{a_kind(value)} has no entry {key}")

    return run


def optional_index(container: Run, index: Run) -> Run:
    """`container[?index]`."""
    return lambda frame: optional_entry(container(frame), index(frame))


def membership(item: Run, container: Run) -> Run:
    def run(frame: Frame) -> bool:
        value, within = item(frame), container(frame)
        if isinstance(within, tuple):
            return lists.contains(frame.spend, value, cast("tuple[Any, ...]", within))
        if isinstance(within, Mapping):
            return _in_map(value, cast("Mapping[Any, Any]", within))
        raise EvaluationError(f"in needs a list or a map, not {a_kind(within)}")

    return run


def _in_map(key: Any, mapping: Mapping[Any, Any]) -> bool:
    return _can_be_key(key) and key in mapping and find(mapping, key) is not MISSING


# --- operators ---


def chain(terms: list[Run], *, conjunction: bool) -> Run:
    """&& or ||: the first term that decides, whatever the others do; an error only when none does."""
    return lambda frame: settled(terms, frame, decisive=not conjunction)


def settled(terms: Iterable[Run], frame: Frame, *, decisive: bool) -> bool:
    """What the first term says that decides, or else the opposite; raises the first error when none decides."""
    failure: EvaluationError | None = None
    for term in terms:
        try:
            if truth(term(frame)) is decisive:
                return decisive
        except OutOfBudget:
            raise
        except EvaluationError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return not decisive


def conditional(condition: Run, yes: Run, no: Run) -> Run:
    return lambda frame: yes(frame) if truth(condition(frame)) else no(frame)


def equals(a: Run, b: Run) -> Run:
    def run(frame: Frame) -> bool:
        one, other = a(frame), b(frame)
        if type(one) is str and type(other) is str:
            return one == other
        return equal(one, other, frame.spend)

    return run


def differs(a: Run, b: Run) -> Run:
    def run(frame: Frame) -> bool:
        one, other = a(frame), b(frame)
        try:
            return not equal(one, other, frame.spend)
        except OutOfBudget:
            raise
        except EvaluationError:
            return True  # what cannot be equal differs

    return run


def or_optional(optional: Run, other: Run) -> Run:
    """The optional value if it is there, else the other one."""

    def run(frame: Frame) -> Optional:
        value = as_optional(optional(frame))
        return value if value.present else as_optional(other(frame))

    return run


def or_value(optional: Run, other: Run) -> Run:
    """What is in the optional value, else the other value."""

    def run(frame: Frame) -> Any:
        value = as_optional(optional(frame))
        return value.value if value.present else other(frame)

    return run


def as_optional(value: Any) -> Optional:
    if isinstance(value, Optional):
        return value
    raise EvaluationError(f"{a_kind(value)} is not optional")


# --- calls ---


def dispatch(name: str, overloads: tuple[Overload, ...], args: list[Run], *, certain: bool) -> Run:
    """A call; of the overloads the one that fits the values, unless there is but one and it certainly does."""
    if len(overloads) == 1 and certain:
        return _direct(overloads[0], args)
    known: dict[tuple[type, ...], Overload] = {}

    def call(frame: Frame) -> Any:
        values = [arg(frame) for arg in args]
        types = tuple(map(type, values))
        chosen = known.get(types)
        if chosen is None:
            chosen = known[types] = _chosen(name, overloads, values)
        return chosen.implementation(frame.spend, *values) if chosen.spends else chosen.implementation(*values)

    return call


def _direct(overload: Overload, runs: list[Run]) -> Run:
    call = overload.implementation
    match runs:
        case _ if overload.spends:
            return lambda frame: call(frame.spend, *[run(frame) for run in runs])
        case [one]:
            return lambda frame: call(one(frame))
        case [one, other]:
            return lambda frame: call(one(frame), other(frame))
        case _:
            return lambda frame: call(*[run(frame) for run in runs])


def _chosen(name: str, overloads: Iterable[Overload], values: list[Any]) -> Overload:
    for overload in overloads:
        if all(map(_accepts, overload.parameters, values)):
            return overload
    types = [a_kind(value) for value in values]
    what = f"{name}()" if name[0] not in "_@!-" else name.strip("_@")
    raise EvaluationError(f"{what} cannot be applied to {' and '.join(types)}")


def _accepts(parameter: t.Type, value: Any) -> bool:
    return parameter.is_parameter or t.is_dynamic(parameter) or type(value) in _RUNTIME[parameter.name]


# --- lists and maps ---


def list_of(elements: list[tuple[Run, bool]]) -> Run:
    """A list of what the closures compute; those marked are optional values, and left out when absent."""

    def run(frame: Frame) -> tuple[Any, ...]:
        items: list[Any] = []
        for element, optional in elements:
            value = element(frame)
            items.extend(_present(value) if optional else (value,))
        return tuple(items)

    return run


def map_of(entries: list[tuple[Run, Run, bool]]) -> Run:
    """A map of keys and values; the values marked are optional, and their keys left out when absent."""

    def run(frame: Frame) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for key, value, optional in entries:
            name, held = _as_key(key(frame)), value(frame)
            for item in _present(held) if optional else (held,):
                made[name] = item
        return made

    return run


def _as_key(value: Any) -> Any:
    if _can_be_key(value):
        return value
    raise EvaluationError(f"{a_kind(value)} cannot be the key of a map")


SPECIAL: dict[str, Callable[..., Run]] = {
    "_==_": equals,
    "_!=_": differs,
    "_?_:_": conditional,
    "_[_]": index,
    "_[?_]": optional_index,
    "@in": membership,
    "or": or_optional,
    "orValue": or_value,
}
"""Calls that have no overloads, or whose arguments need not all be computed."""
