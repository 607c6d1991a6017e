"""Estimate the cost of each function beyond its operands, and the size of its result.

`cost` visits the tree and calls `call_estimate` for every overload that a call may have. The rules repeat those of
the API server, including the ones that are too high or too low: a selector must be accepted here exactly if it is
accepted there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from modelplane_operator.selectors import types as t
from modelplane_operator.selectors.functions import Overload
from modelplane_operator.selectors.sizes import (
    BOUNDLESS,
    EACH_VALUE,
    MAKE_LIST,
    REGEX,
    TEXTS,
    TRAVERSAL,
    UNKNOWN,
    Entries,
    Estimate,
    Path,
    Size,
    cap,
    declared_size,
)


@dataclass(frozen=True, slots=True)
class Estimated:
    """A call with the estimates of its operands, the target first."""

    function: str
    operands: list[Estimate]
    """Estimates of its operands, which already include their own costs."""

    def size(self, position: int) -> Size:
        """Return the maximum size of an operand."""
        return self.operands[position].bound


_Rule: TypeAlias = Callable[[Estimated, Overload], Estimate]
"""Rule that returns the estimate of a call for one overload, without the costs of its operands."""


def result_of(cost: int, size: Size | None = None, entries: Entries | None = None, path: Path = ()) -> Estimate:
    """Return an estimate of dynamic type."""
    return Estimate(cost, t.DYN, size, entries, path)


def call_estimate(call: Estimated, overload: Overload) -> Estimate:
    """Return the estimate of a call. A function without a rule costs 1."""
    rule = _RULES.get(call.function)
    return rule(call, overload) if rule is not None else result_of(1)


def _traversal_rule(position: int, *, keeps_size: bool = False) -> _Rule:
    """Return the rule of a function that reads one text; with `keeps_size` the result is as large as that text."""

    def rule(call: Estimated, _: Overload) -> Estimate:
        """Estimate a pass over the text."""
        size = call.size(position)
        return result_of(size.cost(TRAVERSAL), size if keeps_size else None)

    return rule


def _estimate_equality(call: Estimated, overload: Overload) -> Estimate:
    """Estimate `==` and `!=`. Comparing two quantities or two versions costs 1."""
    first, second = call.operands
    if call.function == "_==_" and first.type == second.type and first.type in (t.QUANTITY, t.SEMVER):
        return result_of(1)
    return _estimate_comparison(call, overload)


def _estimate_comparison(call: Estimated, overload: Overload) -> Estimate:
    """Estimate an order or equality. Two texts are compared up to the end of the shorter one."""
    if not all(p.name in TEXTS or p.is_parameter for p in overload.parameters):
        return result_of(1)
    return result_of(Size(0, min(call.size(0).most, call.size(1).most)).cost(TRAVERSAL))


def _estimate_addition(call: Estimated, overload: Overload) -> Estimate:
    """Estimate `+`: the result of texts and lists is as large as both operands."""
    kind = overload.parameters[0].name
    if kind not in (*TEXTS, "list"):
        return result_of(1)
    first, second = call.operands
    size = first.bound + second.bound
    entries = first.entries | second.entries if first.entries and second.entries else None
    return result_of(1 if kind == "list" else size.cost(TRAVERSAL), size, entries)


def _estimate_conditional(call: Estimated, _: Overload) -> Estimate:
    """Estimate `? :`. Only one branch is evaluated, so `cost` adds the costs of the operands itself."""
    yes, no = call.operands[1:]
    return result_of(0, yes.bound | no.bound, yes.entries | no.entries if yes.entries and no.entries else None)


def _estimate_index(call: Estimated, overload: Overload) -> Estimate:
    """Estimate an index access. The result is a part of the device if the container is one."""
    container = call.operands[0]
    size = container.entries.value if container.entries else None
    plain = overload.parameters[0].name in ("list", "map")
    return result_of(1, size if plain else None, path=(*container.path, EACH_VALUE) if container.path and plain else ())


def _match_rule(*, result: bool) -> _Rule:
    """Return the rule of regular expressions: text times pattern."""

    def rule(call: Estimated, overload: Overload) -> Estimate:
        """Estimate a match. Functions with these names that are no methods have no rule in the API server."""
        if not overload.method:
            return result_of(1)
        text, pattern = call.size(0), call.size(1)
        cost = cap((text + Size(1, 1)).cost(TRAVERSAL) * pattern.cost(REGEX))
        return result_of(cost, Size(0, text.most) if result else None)

    return rule


def _estimate_scan(call: Estimated, _: Overload) -> Estimate:
    """Estimate a function that visits all elements, and compares texts by their length."""
    items = call.operands[0]
    if not items.type.parameters:
        return result_of(items.bound.cost(TRAVERSAL))
    element = items.type.parameters[0]
    each = 1
    if element.name in TEXTS:
        path = (*items.path, EACH_VALUE) if items.path else ()
        each = cap(1 + (declared_size(path) or UNKNOWN).cost(TRAVERSAL))
    return result_of(cap(items.bound.most * each))


def _estimate_replace(call: Estimated, _: Overload) -> Estimate:
    """Estimate replace(), with the bounds of the result's size."""
    text, old, new = call.size(0), call.size(1), call.size(2)
    if old.least == 0:
        most = cap(cap(text.most + 1) * new.most + text.most)
    elif new.most <= old.least:
        most = text.most
    else:
        most = cap(math.ceil(text.most / old.least) * new.most)
    return result_of(text.cost(2 * TRAVERSAL), Size(_min_size_after_replace(text, old, new), most))


def _min_size_after_replace(text: Size, old: Size, new: Size) -> int:
    """Return the minimum size of replace()'s result."""
    if old.most == 0:
        return cap((text.least + 1) * new.least + text.least)
    if old.most <= new.least:
        return text.least
    return cap(math.ceil(text.least / old.most) * new.least)


def _estimate_split(call: Estimated, _: Overload) -> Estimate:
    """Estimate split(). A negative count wraps to an unsigned number, so that the result has no bound."""
    text = call.size(0)
    count = call.operands[2].number if len(call.operands) > 2 else None
    most = text.most if count is None else count % 2**64
    return result_of(text.cost(2 * TRAVERSAL), Size(0, most))


def _estimate_join(call: Estimated, _: Overload) -> Estimate:
    """Estimate join(): the elements plus the separators between them."""
    items = call.operands[0]
    size = Size(0, 0)
    if items.type.parameters:
        path = (*items.path, EACH_VALUE) if items.path else ()
        size = items.bound * (declared_size(path) or UNKNOWN)
    if len(call.operands) > 1:
        gaps = Size(max(items.bound.least - 1, 0), max(items.bound.most - 1, 0))
        size += call.size(1) * gaps
    return result_of(size.cost(TRAVERSAL), size)


def _conversion_rule(least: Callable[[int], int], most: Callable[[int], int], kind: str) -> _Rule:
    """Return the rule of a conversion between texts and bytes; `least` and `most` convert the bounds of the size."""

    def rule(call: Estimated, overload: Overload) -> Estimate:
        """Estimate the conversion. Conversions from any other type cost 1."""
        if overload.parameters[0].name != kind:
            return result_of(1)
        size = call.size(0)
        return result_of(size.cost(TRAVERSAL), Size(least(size.least), cap(most(size.most))))

    return rule


def _estimate_copy(size: Size, per: float) -> Estimate:
    """Estimate a function that creates a list of this size, with a cost for each element."""
    return result_of(cap(size.cost(per) + 1 + MAKE_LIST), size)


def _literal_value(operand: Estimate, default: int) -> int:
    """Return the value of a literal integer, zero for a negative one, and the default for a computed number."""
    return default if operand.number is None else max(operand.number, 0)


def _estimate_slice(call: Estimated, _: Overload) -> Estimate:
    """Estimate slice(). An end before the start wraps, too: the API server subtracts unsigned numbers."""
    start, end = _literal_value(call.operands[1], 0), _literal_value(call.operands[2], call.size(0).most)
    length = (end - start) % 2**64
    return _estimate_copy(Size(length, length), 1)


def _estimate_range(call: Estimated, _: Overload) -> Estimate:
    """Estimate lists.range(). A computed number has no bound."""
    count = _literal_value(call.operands[0], BOUNDLESS)
    return _estimate_copy(Size(count, count), 1)


def _estimate_sort(call: Estimated, overload: Overload) -> Estimate:
    """Estimate sort(): every element may be compared with every other."""
    texts = overload.parameters[0].parameters[0].name in TEXTS
    return _estimate_copy(call.size(0) * call.size(0), 2 + TRAVERSAL * texts)


def _set_operation_rule(factor: float) -> _Rule:
    """Return the rule of a comparison of every element with every element of the other list."""
    return lambda call, _: result_of(cap((call.size(0) * call.size(1)).cost(factor) + 1))


_RULES: dict[str, _Rule] = {
    "_==_": _estimate_equality,
    "_!=_": _estimate_equality,
    **dict.fromkeys(["_<_", "_<=_", "_>_", "_>=_"], _estimate_comparison),
    "_+_": _estimate_addition,
    "_?_:_": _estimate_conditional,
    "_[_]": _estimate_index,
    "@in": lambda call, overload: result_of(call.size(1).cost(1) if overload.parameters[1].name == "list" else 1),
    "startsWith": _traversal_rule(1),
    "endsWith": _traversal_rule(1),
    "contains": lambda call, _: result_of(cap(call.size(0).cost(TRAVERSAL) * call.size(1).cost(TRAVERSAL))),
    "matches": _match_rule(result=False),
    "find": _match_rule(result=True),
    "findAll": _match_rule(result=True),
    **dict.fromkeys(["lowerAscii", "upperAscii", "substring", "trim"], _traversal_rule(0, keeps_size=True)),
    **dict.fromkeys(["quantity", "isQuantity", "semver", "isSemver"], _traversal_rule(0)),
    **dict.fromkeys(["isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"], _estimate_scan),
    "replace": _estimate_replace,
    "split": _estimate_split,
    "join": _estimate_join,
    "strings.quote": _conversion_rule(lambda n: n + 2, lambda n: n * 2 + 2, "string"),
    "bytes": _conversion_rule(lambda n: n, lambda n: n * 4, "string"),
    "string": _conversion_rule(lambda n: n // 4, lambda n: n, "bytes"),
    "slice": _estimate_slice,
    "lists.range": _estimate_range,
    "reverse": lambda call, _: _estimate_copy(call.size(0), 1),
    "flatten": lambda call, _: _estimate_copy(
        call.size(0), _literal_value(call.operands[1], BOUNDLESS) if len(call.operands) > 1 else 1
    ),
    "distinct": lambda call, _: _estimate_copy(call.size(0) * call.size(0), 2),
    "sort": _estimate_sort,
    "sets.contains": _set_operation_rule(1),
    "sets.intersects": _set_operation_rule(1),
    "sets.equivalent": _set_operation_rule(2),
}
