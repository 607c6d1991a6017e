"""Functions on lists."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

from modelplane_operator.selectors.operations import Implementation, Items, by_text, position, sized
from modelplane_operator.selectors.values import EvaluationError, Spend, UInt, Value, equal


def concatenate(spend: Spend, a: Any, b: Any) -> Any:
    """Join two texts, bytes or lists. Raise EvaluationError if the result is too large."""
    sized(len(a) + len(b))
    spend(by_text(len(a) + len(b)))
    return a + b


def contains(spend: Spend, item: Value, items: Items) -> bool:
    """True if a list has an element equal to the item."""
    spend(len(items))
    return any(_is_same(item, other, spend) for other in items)


def _is_same(a: Value, b: Value, spend: Spend) -> bool:
    """True if the values are equal. Values that cannot be compared are not."""
    try:
        return equal(a, b, spend)
    except EvaluationError:
        spend(0)  # raises again if the budget was the reason
        return False


def contains_all(spend: Spend, items: Items, others: Items) -> bool:
    return all(contains(spend, other, items) for other in others)


def positions(spend: Spend, items: Items, item: Value) -> list[int]:
    """Return the indices of all elements equal to the item."""
    spend(len(items))
    return [i for i, other in enumerate(items) if _is_same(other, item, spend)]


def distinct(spend: Spend, items: Items) -> Items:
    """Return the elements without duplicates, in their order."""
    result: list[Value] = []
    for item in items:
        if not contains(spend, item, tuple(result)):
            result.append(item)
    return tuple(result)


def flatten(spend: Spend, items: Items, levels: int = 1) -> Items:
    """Flatten nested lists, by one level by default. Raise EvaluationError for a negative number of levels."""
    if levels < 0:
        raise EvaluationError("flatten() needs a level of at least 0")
    flat: list[Any] = []
    for item in items:
        spend(1)
        if isinstance(item, tuple) and levels:
            # No list is nested deeper than its text.
            flat.extend(flatten(spend, cast("Items", item), min(levels, 100) - 1))
        else:
            flat.append(item)
        sized(len(flat))
    return tuple(flat)


def range_of(spend: Spend, count: int) -> Items:
    """Return the numbers from 0 to `count` - 1."""
    sized(count)
    spend(max(count, 0))
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


def sort_by(spend: Spend, items: Items, keys: Items) -> Items:
    """Return the items in the order of their keys. Raise EvaluationError unless all keys are of one orderable type."""
    if type(items) is not tuple:
        raise EvaluationError("only a list can be sorted")
    if not _have_same_type(keys) or (keys and type(keys[0]) not in _ORDERED):
        raise EvaluationError("only elements of one type, all of it orderable, can be sorted")
    spend(len(items) * 4)
    return tuple(items[i] for i in sorted(range(len(items)), key=keys.__getitem__))


_ORDERED = (bool, int, UInt, float, str, bytes)


def _have_same_type(items: Items) -> bool:
    types: set[type] = set(map(type, items))
    return len(types) <= 1


def is_sorted(spend: Spend, items: Items) -> bool:
    """True if no element is smaller than its predecessor."""
    spend(len(items))
    return all(type(a) is type(b) and not b < a for a, b in pairwise(items))


def extreme(name: str, pick: Callable[[Items], Any]) -> Implementation:
    def extreme(spend: Spend, items: Items) -> Any:
        """Return an implementation of min() or max()."""
        spend(len(items))
        if not items:
            raise EvaluationError(f"{name}() of an empty list")
        if not _have_same_type(items) or type(items[0]) not in _ORDERED:
            raise EvaluationError(f"{name}() needs elements of one type that can be ordered")
        return pick(items)

    return extreme


def total_of(make: Callable[[Any], Any], kind: type) -> Implementation:
    def total(spend: Spend, items: Items) -> Any:
        """Return an implementation of sum() for one type of numbers."""
        spend(len(items))
        if any(type(item) is not kind for item in items):
            raise EvaluationError("sum() needs numbers of one type")
        return make(sum(items))

    return total
