"""Functions on lists."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

from modelplane_operator.selectors.operations import Implementation, Items, by_text, check_size, position
from modelplane_operator.selectors.values import Charge, EvaluationError, UInt, Value, equal


def concatenate(charge: Charge, a: Any, b: Any) -> Any:
    """Join two texts, bytes or lists. Raise EvaluationError if the result is too large."""
    check_size(len(a) + len(b))
    charge(by_text(len(a) + len(b)))
    return a + b


def contains(charge: Charge, item: Value, items: Items) -> bool:
    """True if a list has an element equal to the item."""
    charge(len(items))
    return any(_is_same(item, other, charge) for other in items)


def _is_same(a: Value, b: Value, charge: Charge) -> bool:
    """True if the values are equal. Values that cannot be compared are not."""
    try:
        return equal(a, b, charge)
    except EvaluationError:
        charge(0)  # raises again if the budget was the reason
        return False


def contains_all(charge: Charge, items: Items, others: Items) -> bool:
    """True if each of the others has an equal element in the list."""
    return all(contains(charge, other, items) for other in others)


def positions(charge: Charge, items: Items, item: Value) -> list[int]:
    """Return the indices of all elements equal to the item."""
    charge(len(items))
    return [i for i, other in enumerate(items) if _is_same(other, item, charge)]


def distinct(charge: Charge, items: Items) -> Items:
    """Return the elements without duplicates, in their order."""
    result: list[Value] = []
    for item in items:
        if not contains(charge, item, tuple(result)):
            result.append(item)
    return tuple(result)


def flatten(charge: Charge, items: Items, levels: int = 1) -> Items:
    """Flatten nested lists, by one level by default. Raise EvaluationError for a negative number of levels."""
    if levels < 0:
        raise EvaluationError("flatten() needs a level of at least 0")
    flat: list[Any] = []
    for item in items:
        charge(1)
        if isinstance(item, tuple) and levels:
            # No list is nested deeper than its text.
            flat.extend(flatten(charge, cast("Items", item), min(levels, 100) - 1))
        else:
            flat.append(item)
        check_size(len(flat))
    return tuple(flat)


def range_of(charge: Charge, count: int) -> Items:
    """Return the numbers from 0 to `count` - 1."""
    check_size(count)
    charge(max(count, 0))
    return tuple(range(count))


def slice_of(items: Items, start: int, end: int) -> Items:
    """Return the elements from `start` up to, but not including, `end`. Raise EvaluationError for invalid indices."""
    if start > end:
        raise EvaluationError(f"slice({start}, {end}) has no length")
    return items[position(items, start, end=len(items)) : position(items, end, end=len(items))]


def element(items: Items, index: int) -> Any:
    """Return an element of a list. Raise EvaluationError if the index is out of range."""
    if not 0 <= index < len(items):
        raise EvaluationError(f"index {index} is out of range: the list has {len(items)} elements")
    return items[index]


def sort_by(charge: Charge, items: Items, keys: Items) -> Items:
    """Return the items in the order of their keys. Raise EvaluationError unless all keys are of one orderable type."""
    if type(items) is not tuple:
        raise EvaluationError("only a list can be sorted")
    if not _have_same_type(keys) or (keys and type(keys[0]) not in _ORDERED):
        raise EvaluationError("only elements of one type, all of it orderable, can be sorted")
    charge(len(items) * 4)
    return tuple(items[i] for i in sorted(range(len(items)), key=keys.__getitem__))


_ORDERED = (bool, int, UInt, float, str, bytes)
"""Python types of values that can be sorted and compared by min() and max()."""


def _have_same_type(items: Items) -> bool:
    """True if all elements have one type, also for an empty list. bool and int differ here."""
    types: set[type] = set(map(type, items))
    return len(types) <= 1


def is_sorted(charge: Charge, items: Items) -> bool:
    """True if no element is smaller than its predecessor."""
    charge(len(items))
    return all(type(a) is type(b) and not b < a for a, b in pairwise(items))


def extreme(name: str, pick: Callable[[Items], Any]) -> Implementation:
    """Return an implementation of min() or max()."""

    def extreme(charge: Charge, items: Items) -> Any:
        """Return the smallest or the largest element. Raise EvaluationError for an empty or mixed list."""
        charge(len(items))
        if not items:
            raise EvaluationError(f"{name}() of an empty list")
        if not _have_same_type(items) or type(items[0]) not in _ORDERED:
            raise EvaluationError(f"{name}() needs elements of one type that can be ordered")
        return pick(items)

    return extreme


def total_of(make: Callable[[Any], Any], kind: type) -> Implementation:
    """Return an implementation of sum() for one type of numbers."""

    def total(charge: Charge, items: Items) -> Any:
        """Return the sum. Raise EvaluationError for mixed types or an overflow."""
        charge(len(items))
        if any(type(item) is not kind for item in items):
            raise EvaluationError("sum() needs numbers of one type")
        return make(sum(items))

    return total
