"""Variables, and the macros over lists and maps."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from modelplane_operator.selectors.evaluate import Frame, Run, as_optional, evaluate_chain, read, truth
from modelplane_operator.selectors.values import NOTHING, EvaluationError, Optional, a_kind


@dataclass(frozen=True, slots=True)
class _Pending:
    """The value of a cel.bind() variable before its first use."""

    run: Run
    """Closure of the value."""


def bind(slot: int, value: Run, body: Run) -> Run:
    """Return a closure that binds a variable in the body."""
    # As in the API server, it is computed at its first use: an error in an unused variable does not count.
    pending = _Pending(value)

    def run(frame: Frame) -> Any:
        """Set the variable to its pending value, and evaluate the body."""
        frame.variables[slot] = pending
        return body(frame)

    return run


def variable(slot: int) -> Run:
    """Return a closure that reads a variable, and computes its value at the first use."""

    def run(frame: Frame) -> Any:
        value = frame.variables[slot]
        if value.__class__ is _Pending:
            value = frame.variables[slot] = value.run(frame)
        return value

    return run


def through(slot: int, optional: Run, body: Run, *, flat: bool) -> Run:
    """Return a closure of the body over the value of an optional, if there is one.

    With `flat` the body is itself optional.
    """

    def run(frame: Frame) -> Any:
        """Evaluate the body if the optional has a value."""
        value = as_optional(optional(frame))
        if not value.present:
            return NOTHING
        frame.variables[slot] = value.value
        result = body(frame)
        return result if flat else Optional(present=True, value=result)

    return run


Each: TypeAlias = Callable[[Frame], Iterable[Any]]
"""Closure that sets the variables for one element after another."""


def each_of(slots: list[int], items: Run, condition: Run | None, steps: int) -> Each:
    """Return a closure that sets the variables for each element that meets the condition, and yields the first
    variable.
    """
    two = len(slots) > 1

    def each(frame: Frame) -> Iterable[Any]:
        """Yield the first variable of each element that meets the condition."""
        for first, second in _pairs(items(frame), two=two):
            # Before the element is evaluated: nested macros multiply their elements.
            frame.spend(steps)
            frame.variables[slots[0]] = first
            if two:
                # The value of a malformed entry is an error only if a macro binds it.
                frame.variables[slots[1]] = read(second)
            if condition is None or truth(condition(frame)):
                yield first

    return each


def _pairs(container: Any, *, two: bool) -> Iterable[tuple[Any, Any]]:
    """Return the elements of a list, with their indices if `two`, or the entries of a map."""
    if isinstance(container, tuple):
        items = cast("tuple[Any, ...]", container)
        return enumerate(items) if two else ((item, None) for item in items)
    if isinstance(container, Mapping):
        return cast("Mapping[Any, Any]", container).items()
    raise EvaluationError(f"{a_kind(container)} has no elements")


def quantify(each: Each, body: Run, *, decisive: bool) -> Run:
    """Return a closure of all() or exists()."""
    return lambda frame: evaluate_chain((body for _ in each(frame)), frame, decisive=decisive)


def merge(maps: Iterable[Any]) -> dict[Any, Any]:
    """Merge maps. Raise EvaluationError for a duplicate key."""
    result: dict[Any, Any] = {}
    for entries in maps:
        if not isinstance(entries, Mapping):
            raise EvaluationError(f"transformMapEntry() needs a map, not {a_kind(entries)}")
        for key, value in cast("Mapping[Any, Any]", entries).items():
            if key in result:
                raise EvaluationError(f"transformMapEntry() makes the key {key} twice")
            result[key] = value
    return result
