"""Closures that compute the values of checked expressions from a frame.

Each function takes the closures of the operands and returns the closure of the expression. Errors are exceptions, which
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

# Maximum steps of an evaluation; the longest useful selector that we know takes about 100. The API server's own
# limit is 1,000,000 units, which would take a second here.
BUDGET = 100_000
MAX_NAMES = 6  # maximum names of existing entries in a message


class Frame:
    """The state of an evaluation: the device, the values of variables, and the remaining steps."""

    __slots__ = ("device", "left", "variables")

    def __init__(self, device: Mapping[str, Any], variables: int) -> None:
        """Start an evaluation with all steps and with empty slots for so many variables."""
        self.device = device
        self.variables: list[Any] = [None] * variables
        self.left = BUDGET

    @property
    def spent(self) -> int:
        """Return the number of steps taken so far, at least 1."""
        return BUDGET - self.left + 1

    def spend(self, steps: int) -> None:
        """Subtract steps from the remaining ones. Raise OutOfBudget when there are none left."""
        self.left -= steps
        if self.left < 0:
            raise OutOfBudget(f"the selector takes more than {BUDGET} steps on this device")


Run: TypeAlias = Callable[[Frame], Any]
"""Closure that computes the value of an expression. It raises EvaluationError if CEL has no result."""

MISSING = object()
"""Marker for a missing entry, since None is the value null."""
_RUNTIME: dict[str, frozenset[type]] = {}
"""Python types of the values of each static type, to select an overload by values."""
for _type, _name in KINDS.items():
    _name = {"quantity": "Quantity", "version": "Semver"}.get(_name, _name)
    _RUNTIME[_name] = _RUNTIME.get(_name, frozenset()) | {_type}


# --- reading values ---


def read(value: Any) -> Any:
    """Return a value. Raise EvaluationError if it is malformed."""
    if value.__class__ is Malformed:
        raise EvaluationError(value.reason)
    return value


def find(mapping: Mapping[Any, Any], key: Any) -> Any:
    """Return the value of a key, or MISSING. Raise EvaluationError for an invalid key or a malformed value."""
    if type(key) is str:
        if isinstance(mapping, DomainMap):
            return mapping[key]
        return read(mapping.get(key, MISSING))
    if not _can_be_key(key):
        raise EvaluationError(f"{a_kind(key)} cannot be the key of a map")
    # In Python, True and 1 are the same key.
    value = mapping.get(key, MISSING)
    if value is not MISSING and isinstance(key, bool) is not any(isinstance(k, bool) for k in mapping):
        return MISSING
    return read(value)


def _can_be_key(value: Any) -> bool:
    """True for a type that CEL allows as a key of a map."""
    return isinstance(value, bool | int | float | str)


def truth(value: Any) -> bool:
    """Return a boolean. Raise EvaluationError for another type."""
    if value is True or value is False:
        return value
    raise EvaluationError(f"{a_kind(value)} is not a condition")


def _list_index(key: Any) -> int:
    """Return an index as int. Raise EvaluationError for another type."""
    if isinstance(key, float) and key.is_integer():
        return int(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return int(key)
    raise EvaluationError(f"{a_kind(key)} is no index of a list")


def _unwrap_present(value: Any) -> tuple[Any, ...]:
    """Return the value of an optional as a tuple, empty if it is absent."""
    if not isinstance(value, Optional):
        raise EvaluationError(f"? needs an optional value, not {a_kind(value)}")
    return (value.value,) if value.present else ()


# --- fields and entries ---


def _suggest_entries(entries: Mapping[str, Any], intro: str = "it has") -> str:
    """Return the existing entries or domains, as a hint for a mistyped name."""
    first = sorted(entries)[:MAX_NAMES]
    more = f" and {len(entries) - MAX_NAMES} more" if len(entries) > MAX_NAMES else ""
    return f": {intro} {', '.join(first)}{more}" if first else ""


def entry(path: tuple[str, str, str], missing: str) -> Run:
    """Return a closure that reads an attribute or a capacity of the device."""
    section, domain, identifier = path

    def run(frame: Frame) -> Any:
        """Read the entry. Raise EvaluationError if it is missing or malformed."""
        domain_entries = frame.device[section][domain]
        value = domain_entries.get(identifier, MISSING)
        if value is MISSING:
            other_domains = "" if domain_entries else _suggest_entries(frame.device[section], "the device has those of")
            raise EvaluationError(f"{missing}{other_domains or _suggest_entries(domain_entries)}")
        if value.__class__ is Malformed:
            raise EvaluationError(value.reason)
        return value

    return run


def field_of(operand: Run, key: str, missing: str) -> Run:
    """Return a closure that reads a field of a map. `missing` is the message if there is none."""

    def run(frame: Frame) -> Any:
        """Read the field. Raise EvaluationError if the operand is no map or has no such field."""
        mapping = operand(frame)
        if not isinstance(mapping, Mapping):
            raise EvaluationError(f"{a_kind(mapping)} has no field {key}")
        value = find(cast("Mapping[Any, Any]", mapping), key)
        if value is MISSING:
            raise EvaluationError(missing)
        return value

    return run


def has_entry(value: Any, key: str) -> bool:
    """True if a map, or an optional map, has the key. Domains always have every key."""
    if isinstance(value, Optional):
        return value.present and has_entry(value.value, key)
    if not isinstance(value, Mapping):
        raise EvaluationError(f"{a_kind(value)} has no field {key}")
    mapping = cast("Mapping[Any, Any]", value)
    return key in mapping or isinstance(mapping, DomainMap)


def optional_entry(value: Any, key: Any) -> Optional:
    """Return an entry of a list or map as an optional."""
    if isinstance(value, Optional):
        return optional_entry(value.value, key) if value.present else NOTHING
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        number = _list_index(key)
        return Optional(present=True, value=items[number]) if 0 <= number < len(items) else NOTHING
    if isinstance(value, Mapping):
        entry_value = find(cast("Mapping[Any, Any]", value), key)
        return NOTHING if entry_value is MISSING else Optional(present=True, value=entry_value)
    raise EvaluationError(f"{a_kind(value)} has no entry {key}")


def constant(value: Any) -> Run:
    """Return a closure with a constant value."""
    return lambda _: value


def index(container: Run, index: Run) -> Run:
    """Return a closure of `container[index]`."""

    def run(frame: Frame) -> Any:
        """Read an element or an entry. An optional container gives an optional entry."""
        value, key = container(frame), index(frame)
        if isinstance(value, tuple):
            return lists.element(cast("tuple[Any, ...]", value), _list_index(key))
        if isinstance(value, Mapping):
            entry_value = find(cast("Mapping[Any, Any]", value), key)
            if entry_value is MISSING:
                raise EvaluationError(f"there is no {key}")
            return entry_value
        if isinstance(value, Optional):
            return optional_entry(value, key)
        raise EvaluationError(f"{a_kind(value)} has no entry {key}")

    return run


def optional_index(container: Run, index: Run) -> Run:
    """Return a closure of `container[?index]`."""
    return lambda frame: optional_entry(container(frame), index(frame))


def membership(item: Run, container: Run) -> Run:
    """Return a closure of `item in container`."""

    def run(frame: Frame) -> bool:
        """Compare the item with the elements of a list, or look it up among the keys of a map."""
        value, container_value = item(frame), container(frame)
        if isinstance(container_value, tuple):
            return lists.contains(frame.spend, value, cast("tuple[Any, ...]", container_value))
        if isinstance(container_value, Mapping):
            mapping = cast("Mapping[Any, Any]", container_value)
            return _can_be_key(value) and value in mapping and find(mapping, value) is not MISSING
        raise EvaluationError(f"in needs a list or a map, not {a_kind(container_value)}")

    return run


# --- operators ---


def chain(terms: list[Run], *, conjunction: bool) -> Run:
    """Return a closure of && or ||: the first deciding term counts, whatever the others do; errors count only if
    none decides.
    """
    return lambda frame: evaluate_chain(terms, frame, decisive=not conjunction)


def evaluate_chain(terms: Iterable[Run], frame: Frame, *, decisive: bool) -> bool:
    """Return the result of a chain of terms: the first deciding one, otherwise the opposite.

    Raise the first error if none decides.
    """
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
    """Return a closure of `? :`, which evaluates one branch only."""
    return lambda frame: yes(frame) if truth(condition(frame)) else no(frame)


def equals(a: Run, b: Run) -> Run:
    """Return a closure of `==`, with a shortcut for texts."""

    def run(frame: Frame) -> bool:
        """Compare both values. Two texts are compared without charging steps."""
        first, second = a(frame), b(frame)
        if type(first) is str and type(second) is str:
            return first == second
        return equal(first, second, frame.spend)

    return run


def differs(a: Run, b: Run) -> Run:
    """Return a closure of `!=`."""

    def run(frame: Frame) -> bool:
        """Compare both values. Where `==` raises an error, the values differ."""
        first, second = a(frame), b(frame)
        try:
            return not equal(first, second, frame.spend)
        except OutOfBudget:
            raise
        except EvaluationError:
            return True  # values that cannot be compared differ

    return run


def or_optional(optional: Run, other: Run) -> Run:
    """Return a closure of the optional if it is present, otherwise of the other one."""

    def run(frame: Frame) -> Optional:
        """Return the first optional that is present. The other one is computed only if necessary."""
        value = as_optional(optional(frame))
        return value if value.present else as_optional(other(frame))

    return run


def or_value(optional: Run, other: Run) -> Run:
    """Return a closure of the optional's value if it is present, otherwise of the other value."""

    def run(frame: Frame) -> Any:
        """Return the value, or compute the other one."""
        value = as_optional(optional(frame))
        return value.value if value.present else other(frame)

    return run


def as_optional(value: Any) -> Optional:
    """Return the value if it is an optional. Raise EvaluationError otherwise."""
    if isinstance(value, Optional):
        return value
    raise EvaluationError(f"{a_kind(value)} is not optional")


# --- calls ---


def dispatch(name: str, overloads: tuple[Overload, ...], args: list[Run], *, certain: bool) -> Run:
    """Return a closure of a call.

    The overload is selected by the values, unless there is only one and it certainly applies.
    """
    if len(overloads) == 1 and certain:
        implementation = overloads[0].implementation
        match args:  # the most frequent numbers of arguments come first
            case _ if overloads[0].spends:
                return lambda frame: implementation(frame.spend, *[arg(frame) for arg in args])
            case [first]:
                return lambda frame: implementation(first(frame))
            case [first, second]:
                return lambda frame: implementation(first(frame), second(frame))
            case _:
                return lambda frame: implementation(*[arg(frame) for arg in args])
    # The selection depends on the types alone, so it is cached for later devices.
    by_types: dict[tuple[type, ...], Overload] = {}

    def call(frame: Frame) -> Any:
        """Select the overload by the types of the values, and call it."""
        values = [arg(frame) for arg in args]
        types = tuple(map(type, values))
        chosen = by_types.get(types)
        if chosen is None:
            chosen = by_types[types] = _select_overload(name, overloads, values)
        return chosen.implementation(frame.spend, *values) if chosen.spends else chosen.implementation(*values)

    return call


def _select_overload(name: str, overloads: Iterable[Overload], values: list[Any]) -> Overload:
    """Return the first overload that accepts the values. Raise EvaluationError if there is none."""
    for overload in overloads:
        if all(
            parameter.is_parameter or t.is_dynamic(parameter) or type(value) in _RUNTIME[parameter.name]
            for parameter, value in zip(overload.parameters, values, strict=False)
        ):
            return overload
    types = [a_kind(value) for value in values]
    subject = f"{name}()" if name[0] not in "_@!-" else name.strip("_@")
    raise EvaluationError(f"{subject} cannot be applied to {' and '.join(types)}")


# --- lists and maps ---


def list_of(elements: list[tuple[Run, bool]]) -> Run:
    """Return a closure of a list. Optional elements are left out when absent."""

    def run(frame: Frame) -> tuple[Any, ...]:
        items: list[Any] = []
        for element, optional in elements:
            value = element(frame)
            items.extend(_unwrap_present(value) if optional else (value,))
        return tuple(items)

    return run


def map_of(entries: list[tuple[Run, Run, bool]]) -> Run:
    """Return a closure of a map. Entries with optional values are left out when absent."""

    def run(frame: Frame) -> dict[Any, Any]:
        """Compute the entries. The last of several entries with one key counts."""
        result: dict[Any, Any] = {}
        for key, value, optional in entries:
            name = key(frame)
            if not _can_be_key(name):
                raise EvaluationError(f"{a_kind(name)} cannot be the key of a map")
            item_value = value(frame)
            for item in _unwrap_present(item_value) if optional else (item_value,):
                result[name] = item
        return result

    return run


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
"""Calls without overloads, or whose arguments need not all be computed."""
