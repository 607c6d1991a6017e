"""The worst that a selector can cost, in the API server's units.

The API server refuses a selector whose estimate exceeds LIMIT, and a value whose size nobody knows (a computed
text, say) costs without bound wherever its size matters; so `string(x) != string(y)` is refused there, and has to be
here. The estimate follows the declared limits of a device: 64 characters in an attribute, 32 attributes and capacities.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from modelplane_operator.selectors import types as t
from modelplane_operator.selectors.compile import Program
from modelplane_operator.selectors.functions import Overload
from modelplane_operator.selectors.syntax import (
    Bind,
    Call,
    Comprehension,
    Expr,
    Fold,
    Ident,
    ListOf,
    Literal,
    Logic,
    MapOf,
    Select,
)

LIMIT = 1_000_000

_BOUNDLESS = 2**64 - 1
_LIST, _MAP = 10, 30  # what making one costs
_SCALARS = frozenset({"bool", "int", "uint", "double"})
_TEXTS = frozenset({"string", "bytes"})


@dataclass(frozen=True, slots=True)
class Size:
    """How many characters, elements or entries a value may have."""

    least: int
    most: int

    def __or__(self, other: "Size") -> "Size":
        return Size(min(self.least, other.least), max(self.most, other.most))

    def __add__(self, other: "Size") -> "Size":
        return Size(_capped(self.least + other.least), _capped(self.most + other.most))

    def __mul__(self, other: "Size") -> "Size":
        return Size(_capped(self.least * other.least), _capped(self.most * other.most))

    def cost(self, each: float) -> int:
        """What going through it costs at most, at so much for each."""
        return _capped(math.ceil(self.most * each))


UNKNOWN = Size(0, _BOUNDLESS)
_TRAVERSAL, _REGEX = 0.1, 0.25  # of a character of a text, and of a regular expression


def _capped(number: int) -> int:
    return min(number, _BOUNDLESS)


@dataclass(frozen=True, slots=True)
class _Entries:
    """How large the keys and values of a container are."""

    key: Size
    value: Size

    def __or__(self, other: "_Entries") -> "_Entries":
        return _Entries(self.key | other.key, self.value | other.value)


_Path: TypeAlias = tuple[str, ...]
_EACH_KEY, _EACH_VALUE = "@keys", "@values"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known about an expression: its cost, and how large its value may be."""

    cost: int
    type: t.Type
    size: Size | None = None
    entries: _Entries | None = None
    path: _Path = ()
    number: int | None = None  # a literal integer's value

    @property
    def bound(self) -> Size:
        """The size as far as it is known: given, declared by the device, or 1 for a scalar."""
        return self.size or _declared(self.path) or (Size(1, 1) if _is_scalar(self.type) else UNKNOWN)


# The declared limits, by path: names of fields, or each key or value of a map. Attributes count the same however they
# are reached; a domain's map that is reached by a field instead of an index has no declared size, an oversight of the
# API server's that we share.
_DECLARED: dict[_Path, int] = {
    ("device", "driver"): 63,
    ("device", "allowMultipleAllocations"): 1,
    ("device", "attributes"): 32,
    ("device", "attributes", _EACH_KEY): 63,
    ("device", "attributes", _EACH_VALUE): 32,
    ("device", "attributes", _EACH_VALUE, _EACH_KEY): 32,
    ("device", "attributes", _EACH_VALUE, _EACH_VALUE): 64,
    ("device", "capacity"): 32,
    ("device", "capacity", _EACH_KEY): 63,
    ("device", "capacity", _EACH_VALUE): 32,
    ("device", "capacity", _EACH_VALUE, _EACH_KEY): 32,
    ("device", "capacity", _EACH_VALUE, _EACH_VALUE): 0,
}


def _declared(path: _Path) -> Size | None:
    if len(path) == 4 and path[:3] == ("device", "attributes", _EACH_VALUE) and path[3] != _EACH_KEY:
        path = (*path[:3], _EACH_VALUE)
    most = _DECLARED.get(path)
    return Size(0, most) if most is not None else None


def _is_scalar(type_: t.Type) -> bool:
    return type_.name in _SCALARS or (type_.name == "optional" and _is_scalar(type_.parameters[0]))


def worst_cost(tree: Expr, program: Program) -> int:
    """The estimate for a checked selector."""
    return _Estimator(program).visit(tree).cost


@dataclass(slots=True)
class _Estimator:
    program: Program
    scope: dict[str, Estimate] = field(default_factory=dict[str, Estimate])

    def visit(self, node: Expr) -> Estimate:
        type_ = self.program.type_of(node)
        match node:
            case Literal(value=value):
                size = len(value) if isinstance(value, str | bytes) else 1
                number = value if type(value) is int else None
                return Estimate(0, type_, Size(size, size), number=number)
            case Ident(name=name):
                known = self.scope.get(name)
                return replace(known, cost=1) if known is not None else Estimate(1, type_, path=(name,))
            case Select():
                return self._select(node, type_)
            case Call():
                return self._call(node, type_)
            case Logic():
                return Estimate(_capped(sum(self.visit(term).cost for term in node.terms)), type_)
            case ListOf():
                return self._list(node, type_)
            case MapOf():
                return self._map(node, type_)
            case Comprehension():
                return self._comprehension(node, type_)
            case Bind():
                return self._bind(node, type_)
            case _:
                assert_never(node)

    def _select(self, node: Select, type_: t.Type) -> Estimate:
        operand = self.visit(node.operand)
        if node.tested:
            return Estimate(operand.cost, type_)
        if node.optional:
            return Estimate(_capped(operand.cost + 1), type_)
        free = operand.type.name in ("any", "dyn", "optional")
        path = (*operand.path, node.field) if operand.path else ()
        return Estimate(_capped(operand.cost + (not free)), type_, path=path)

    def _list(self, node: ListOf, type_: t.Type) -> Estimate:
        elements = [self.visit(element) for element in node.elements]
        size = Size(len(elements), len(elements))
        entries = _Entries(Size(1, 1), _union([element.bound for element in elements]))
        return Estimate(_capped(_LIST + sum(e.cost for e in elements)), type_, size, entries)

    def _map(self, node: MapOf, type_: t.Type) -> Estimate:
        keys, values = [self.visit(key) for key in node.keys], [self.visit(value) for value in node.values]
        entries = _Entries(_union([k.bound for k in keys]), _union([v.bound for v in values]))
        cost = _MAP + sum(e.cost for e in (*keys, *values))
        return Estimate(_capped(cost), type_, Size(len(keys), len(keys)), entries)

    def _call(self, node: Call, type_: t.Type) -> Estimate:
        overloads = self.program.overloads_of(node)
        name, method = overloads[0].name, overloads[0].method
        operands = [self.visit(operand) for operand in (node.operands if method else node.args)]
        if name == "dyn":
            return replace(_passed_on(operands[0]), cost=_capped(operands[0].cost + 1), type=type_)
        call = _Estimated(name, operands)
        made = [_call_estimate(call, overload) for overload in overloads]
        own = max(m.cost for m in made)
        sizes = [m.size for m in made if m.size is not None]
        result = made[-1]
        if name == "_?_:_":
            condition, yes, no = operands
            return replace(result, cost=_capped(condition.cost + max(yes.cost, no.cost)), type=type_)
        cost = _capped(own + sum(operand.cost for operand in operands))
        return replace(result, cost=cost, type=type_, size=_union(sizes) if sizes else None)

    def _comprehension(self, node: Comprehension, type_: t.Type) -> Estimate:
        items = self.visit(node.range)
        outer = dict(self.scope)
        self.scope.update(zip(node.variables, self._elements(items, two=len(node.variables) > 1), strict=True))
        condition = self.visit(node.filter).cost if node.filter is not None else 0
        body = self.visit(node.body)
        self.scope = outer
        count = items.bound
        start, each, end = _FOLDS[node.fold]
        cost = _capped(items.cost + start + count.most * _capped(condition + body.cost + each) + end)
        entries = _Entries(Size(1, 1), Size(0, 0) | body.bound) if node.fold is Fold.LIST else None
        made = node.fold not in (Fold.ALL, Fold.EXISTS, Fold.EXISTS_ONE)
        size = count if made else Size(1, 1)
        if node.fold is Fold.SORT_BY:
            per = 2 + _TRAVERSAL * (body.type.name in _TEXTS or t.is_dynamic(body.type))
            size = count * count
            cost = _capped(cost + size.cost(per))
            entries = None
        return Estimate(cost, type_, size, entries)

    def _elements(self, items: Estimate, *, two: bool) -> list[Estimate]:
        entries, is_list = items.entries, items.type.name == "list"
        types = list(items.type.parameters) or [t.DYN]
        # Of two variables over a domain, the API server takes the first for as large as the second.
        key_step = _EACH_VALUE if two and len(items.path) == 3 else _EACH_KEY
        key = Estimate(1, t.INT if is_list else types[0], entries.key if entries else None,
                       path=(*items.path, key_step) if items.path and not is_list else ())  # fmt: skip
        value = Estimate(1, types[-1], entries.value if entries else None,
                         path=(*items.path, _EACH_VALUE) if items.path else ())  # fmt: skip
        return [key, value] if two else [value] if is_list else [key]

    def _bind(self, node: Bind, type_: t.Type) -> Estimate:
        value = self.visit(node.value)
        outer = dict(self.scope)
        self.scope[node.variable] = replace(value, number=None) if node.through is None else Estimate(1, t.DYN)
        body = self.visit(node.body)
        self.scope = outer
        bound = _LIST + value.cost + body.cost
        if node.through is None:
            # The API server has forgotten the variable by the time it wants to know how large the result is.
            forgotten = isinstance(node.body, Ident)
            result = replace(body, size=None, entries=None) if forgotten else body
            return replace(_passed_on(result), cost=_capped(bound))
        # These are written out as: has it a value? then bind the value, which is computed once more.
        some = bound + 1 + (node.through == "optMap")
        return Estimate(_capped(value.cost + 1 + some), type_)


def _passed_on(estimate: Estimate) -> Estimate:
    """The estimate of what hands a value on: as large, but no longer part of the device."""
    known = estimate.bound
    return replace(estimate, size=known if known != UNKNOWN else None, path=(), number=None)


def _union(sizes: list[Size]) -> Size:
    union = sizes[0] if sizes else Size(0, 0)
    for size in sizes[1:]:
        union |= size
    return union


# What a macro costs: at the start, for each element beyond the body, and at the end.
_FOLDS: dict[Fold, tuple[int, int, int]] = {
    Fold.ALL: (0, 3, 1),
    Fold.EXISTS: (0, 4, 1),
    Fold.EXISTS_ONE: (0, 2, 2),
    Fold.LIST: (_LIST, 12, 1),
    Fold.MAP_VALUES: (_MAP, 3, 1),
    Fold.MAP_ENTRIES: (_MAP, 2, 1),
    Fold.SORT_BY: (_LIST + _LIST + 2, 12, 1 + 1 + _LIST),
}


# --- calls: what each costs beyond its operands, and how large its result is ---


@dataclass(frozen=True, slots=True)
class _Estimated:
    """A call whose operands (the target first) have been estimated."""

    function: str
    operands: list[Estimate]

    def size(self, position: int) -> Size:
        return self.operands[position].bound


_Rule: TypeAlias = Callable[[_Estimated, Overload], Estimate]


def _result(cost: int, size: Size | None = None, entries: _Entries | None = None, path: _Path = ()) -> Estimate:
    return Estimate(cost, t.DYN, size, entries, path)


def _call_estimate(call: _Estimated, overload: Overload) -> Estimate:
    rule = _RULES.get(call.function)
    return rule(call, overload) if rule is not None else _result(1)


def _traverse(position: int, *, keeps_size: bool = False) -> _Rule:
    def rule(call: _Estimated, _: Overload) -> Estimate:
        size = call.size(position)
        return _result(size.cost(_TRAVERSAL), size if keeps_size else None)

    return rule


def _equality(call: _Estimated, overload: Overload) -> Estimate:
    one, other = call.operands
    if call.function == "_==_" and one.type == other.type and one.type in (t.QUANTITY, t.SEMVER):
        return _result(1)
    return _comparison(call, overload)


def _comparison(call: _Estimated, overload: Overload) -> Estimate:
    if not all(p.name in _TEXTS or p.is_parameter for p in overload.parameters):
        return _result(1)
    return _result(Size(0, min(call.size(0).most, call.size(1).most)).cost(_TRAVERSAL))


def _addition(call: _Estimated, overload: Overload) -> Estimate:
    kind = overload.parameters[0].name
    if kind not in (*_TEXTS, "list"):
        return _result(1)
    one, other = call.operands
    size = one.bound + other.bound
    entries = one.entries | other.entries if one.entries and other.entries else None
    return _result(1 if kind == "list" else size.cost(_TRAVERSAL), size, entries)


def _conditional(call: _Estimated, _: Overload) -> Estimate:
    yes, no = call.operands[1:]
    return _result(0, yes.bound | no.bound, yes.entries | no.entries if yes.entries and no.entries else None)


def _index(call: _Estimated, overload: Overload) -> Estimate:
    container = call.operands[0]
    size = container.entries.value if container.entries else None
    plain = overload.parameters[0].name in ("list", "map")
    return _result(1, size if plain else None, path=(*container.path, _EACH_VALUE) if container.path and plain else ())


def _membership(call: _Estimated, overload: Overload) -> Estimate:
    return _result(call.size(1).cost(1) if overload.parameters[1].name == "list" else 1)


def _matching(*, result: bool) -> _Rule:
    def rule(call: _Estimated, overload: Overload) -> Estimate:
        if not overload.method:
            return _result(1)
        text, pattern = call.size(0), call.size(1)
        cost = _capped((text + Size(1, 1)).cost(_TRAVERSAL) * pattern.cost(_REGEX))
        return _result(cost, Size(0, text.most) if result else None)

    return rule


def _containing(call: _Estimated, _: Overload) -> Estimate:
    return _result(_capped(call.size(0).cost(_TRAVERSAL) * call.size(1).cost(_TRAVERSAL)))


def _scanning(call: _Estimated, _: Overload) -> Estimate:
    items = call.operands[0]
    if not items.type.parameters:
        return _result(items.bound.cost(_TRAVERSAL))
    element = items.type.parameters[0]
    each = 1
    if element.name in _TEXTS:
        path = (*items.path, _EACH_VALUE) if items.path else ()
        each = _capped(1 + (_declared(path) or UNKNOWN).cost(_TRAVERSAL))
    return _result(_capped(items.bound.most * each))


def _replacing(call: _Estimated, _: Overload) -> Estimate:
    text, old, new = call.size(0), call.size(1), call.size(2)
    if old.least == 0:
        most = _capped(_capped(text.most + 1) * new.most + text.most)
    elif new.most <= old.least:
        most = text.most
    else:
        most = _capped(math.ceil(text.most / old.least) * new.most)
    return _result(text.cost(2 * _TRAVERSAL), Size(_shortest_replaced(text, old, new), most))


def _shortest_replaced(text: Size, old: Size, new: Size) -> int:
    if old.most == 0:
        return _capped((text.least + 1) * new.least + text.least)
    if old.most <= new.least:
        return text.least
    return _capped(math.ceil(text.least / old.most) * new.least)


def _splitting(call: _Estimated, _: Overload) -> Estimate:
    text = call.size(0)
    count = call.operands[2].number if len(call.operands) > 2 else None
    most = text.most if count is None else count % 2**64
    return _result(text.cost(2 * _TRAVERSAL), Size(0, most))


def _joining(call: _Estimated, _: Overload) -> Estimate:
    items = call.operands[0]
    size = Size(0, 0)
    if items.type.parameters:
        path = (*items.path, _EACH_VALUE) if items.path else ()
        size = items.bound * (_declared(path) or UNKNOWN)
    if len(call.operands) > 1:
        gaps = Size(max(items.bound.least - 1, 0), max(items.bound.most - 1, 0))
        size += call.size(1) * gaps
    return _result(size.cost(_TRAVERSAL), size)


def _converting(least: Callable[[int], int], most: Callable[[int], int], kind: str) -> _Rule:
    def rule(call: _Estimated, overload: Overload) -> Estimate:
        if overload.parameters[0].name != kind:
            return _result(1)
        size = call.size(0)
        return _result(size.cost(_TRAVERSAL), Size(least(size.least), _capped(most(size.most))))

    return rule


def _allocating(size: Size, per: float) -> Estimate:
    return _result(_capped(size.cost(per) + 1 + _LIST), size)


def _literal(operand: Estimate, default: int) -> int:
    return default if operand.number is None else max(operand.number, 0)


def _slicing(call: _Estimated, _: Overload) -> Estimate:
    start, end = _literal(call.operands[1], 0), _literal(call.operands[2], call.size(0).most)
    length = (end - start) % 2**64
    return _allocating(Size(length, length), 1)


def _ranging(call: _Estimated, _: Overload) -> Estimate:
    count = _literal(call.operands[0], _BOUNDLESS)
    return _allocating(Size(count, count), 1)


def _flattening(call: _Estimated, _: Overload) -> Estimate:
    return _allocating(call.size(0), _literal(call.operands[1], _BOUNDLESS) if len(call.operands) > 1 else 1)


def _sorting(call: _Estimated, overload: Overload) -> Estimate:
    texts = overload.parameters[0].parameters[0].name in _TEXTS
    return _allocating(call.size(0) * call.size(0), 2 + _TRAVERSAL * texts)


def _set_operation(factor: float) -> _Rule:
    return lambda call, _: _result(_capped((call.size(0) * call.size(1)).cost(factor) + 1))


_RULES: dict[str, _Rule] = {
    "_==_": _equality,
    "_!=_": _equality,
    **dict.fromkeys(["_<_", "_<=_", "_>_", "_>=_"], _comparison),
    "_+_": _addition,
    "_?_:_": _conditional,
    "_[_]": _index,
    "@in": _membership,
    "startsWith": _traverse(1),
    "endsWith": _traverse(1),
    "contains": _containing,
    "matches": _matching(result=False),
    "find": _matching(result=True),
    "findAll": _matching(result=True),
    **dict.fromkeys(["lowerAscii", "upperAscii", "substring", "trim"], _traverse(0, keeps_size=True)),
    **dict.fromkeys(["quantity", "isQuantity", "semver", "isSemver"], _traverse(0)),
    **dict.fromkeys(["isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"], _scanning),
    "replace": _replacing,
    "split": _splitting,
    "join": _joining,
    "strings.quote": _converting(lambda n: n + 2, lambda n: n * 2 + 2, "string"),
    "bytes": _converting(lambda n: n, lambda n: n * 4, "string"),
    "string": _converting(lambda n: n // 4, lambda n: n, "bytes"),
    "slice": _slicing,
    "lists.range": _ranging,
    "reverse": lambda call, _: _allocating(call.size(0), 1),
    "flatten": _flattening,
    "distinct": lambda call, _: _allocating(call.size(0) * call.size(0), 2),
    "sort": _sorting,
    "sets.contains": _set_operation(1),
    "sets.intersects": _set_operation(1),
    "sets.equivalent": _set_operation(2),
}
