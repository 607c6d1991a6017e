"""Estimate the maximum cost of a selector, in the API server's units.

The API server rejects a selector whose estimate exceeds LIMIT. A value of unknown size, such as a computed text, has no
maximum wherever its size matters. So `string(x) != string(y)` is rejected there and here. The estimate uses the
declared limits of a device: 64 characters per attribute, 32 attributes and capacities.
"""

from dataclasses import dataclass, field, replace
from typing import assert_never

from modelplane_operator.selectors import types as t
from modelplane_operator.selectors.call_costs import Estimated, call_estimate
from modelplane_operator.selectors.program import Program
from modelplane_operator.selectors.sizes import (
    EACH_KEY,
    EACH_VALUE,
    MAKE_LIST,
    MAKE_MAP,
    TEXTS,
    TRAVERSAL,
    UNKNOWN,
    Entries,
    Estimate,
    Size,
    cap,
    union,
)
from modelplane_operator.selectors.tree import (
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
"""Maximum cost that the API server accepts for a selector."""


def worst_cost(tree: Expr, program: Program) -> int:
    """Return the estimate for a checked selector."""
    return _Estimator(program).visit(tree).cost


@dataclass(slots=True)
class _Estimator:
    """A visitor that estimates all nodes of a tree."""

    program: Program
    """Types and overloads of the tree's nodes."""
    scope: dict[str, Estimate] = field(default_factory=dict[str, Estimate])
    """Estimates of the visible variables of macros."""

    def visit(self, node: Expr) -> Estimate:
        """Estimate a node: its cost, and the size of its value."""
        type_ = self.program.type_of(node)
        match node:
            case Literal(value=value):
                size = len(value) if isinstance(value, str | bytes) else 1
                number = value if type(value) is int else None
                return Estimate(0, type_, Size(size, size), number=number)
            case Ident(name=name):
                variable = self.scope.get(name)
                return replace(variable, cost=1) if variable is not None else Estimate(1, type_, path=(name,))
            case Select():
                return self._estimate_select(node, type_)
            case Call():
                return self._estimate_call(node, type_)
            case Logic():
                return Estimate(cap(sum(self.visit(term).cost for term in node.terms)), type_)
            case ListOf():
                return self._estimate_list(node, type_)
            case MapOf():
                return self._estimate_map(node, type_)
            case Comprehension():
                return self._estimate_comprehension(node, type_)
            case Bind():
                return self._estimate_bind(node, type_)
            case _:
                assert_never(node)

    def _estimate_select(self, node: Select, type_: t.Type) -> Estimate:
        """Estimate a field access. Fields of dynamic values are free, as in the API server."""
        operand = self.visit(node.operand)
        if node.tested:
            return Estimate(operand.cost, type_)
        if node.optional:
            return Estimate(cap(operand.cost + 1), type_)
        free = operand.type.name in ("any", "dyn", "optional")
        path = (*operand.path, node.field) if operand.path else ()
        return Estimate(cap(operand.cost + (not free)), type_, path=path)

    def _estimate_list(self, node: ListOf, type_: t.Type) -> Estimate:
        elements = [self.visit(element) for element in node.elements]
        size = Size(len(elements), len(elements))
        entries = Entries(Size(1, 1), union([element.bound for element in elements]))
        return Estimate(cap(MAKE_LIST + sum(e.cost for e in elements)), type_, size, entries)

    def _estimate_map(self, node: MapOf, type_: t.Type) -> Estimate:
        keys, values = [self.visit(key) for key in node.keys], [self.visit(value) for value in node.values]
        entries = Entries(union([k.bound for k in keys]), union([v.bound for v in values]))
        cost = MAKE_MAP + sum(e.cost for e in (*keys, *values))
        return Estimate(cap(cost), type_, Size(len(keys), len(keys)), entries)

    def _estimate_call(self, node: Call, type_: t.Type) -> Estimate:
        """Estimate a call: the most expensive overload, plus the operands."""
        overloads = self.program.overloads_of(node)
        name, method = overloads[0].name, overloads[0].method
        operands = [self.visit(operand) for operand in (node.operands if method else node.args)]
        if name == "dyn":
            return replace(_detach(operands[0]), cost=cap(operands[0].cost + 1), type=type_)
        call = Estimated(name, operands)
        estimates = [call_estimate(call, overload) for overload in overloads]
        own_cost = max(m.cost for m in estimates)
        sizes = [m.size for m in estimates if m.size is not None]
        result = estimates[-1]
        # Only one of the branches is evaluated.
        if name == "_?_:_":
            condition, yes, no = operands
            return replace(result, cost=cap(condition.cost + max(yes.cost, no.cost)), type=type_)
        cost = cap(own_cost + sum(operand.cost for operand in operands))
        return replace(result, cost=cost, type=type_, size=union(sizes) if sizes else None)

    def _estimate_comprehension(self, node: Comprehension, type_: t.Type) -> Estimate:
        """Estimate a macro: the body and the filter once per element, plus the macro's own cost."""
        items = self.visit(node.range)
        outer = dict(self.scope)
        self.scope.update(
            zip(node.variables, self._estimate_variables(items, two=len(node.variables) > 1), strict=True)
        )
        condition = self.visit(node.filter).cost if node.filter is not None else 0
        body = self.visit(node.body)
        self.scope = outer
        count = items.bound
        start, per_element, end = _FOLDS[node.fold]
        cost = cap(items.cost + start + count.most * cap(condition + body.cost + per_element) + end)
        entries = Entries(Size(1, 1), Size(0, 0) | body.bound) if node.fold is Fold.LIST else None
        creates_container = node.fold not in (Fold.ALL, Fold.EXISTS, Fold.EXISTS_ONE)
        size = count if creates_container else Size(1, 1)
        # The macro first maps to the keys, and then sorts by them.
        if node.fold is Fold.SORT_BY:
            per = 2 + TRAVERSAL * (body.type.name in TEXTS or t.is_dynamic(body.type))
            size = count * count
            cost = cap(cost + size.cost(per))
            entries = None
        return Estimate(cost, type_, size, entries)

    def _estimate_variables(self, items: Estimate, *, two: bool) -> list[Estimate]:
        """Return the estimates of a macro's variables."""
        entries, is_list = items.entries, items.type.name == "list"
        types = list(items.type.parameters) or [t.DYN]
        # With two variables over a domain, the API server uses the size of values for the first one, too.
        key_step = EACH_VALUE if two and len(items.path) == 3 else EACH_KEY
        key = Estimate(1, t.INT if is_list else types[0], entries.key if entries else None,
                       path=(*items.path, key_step) if items.path and not is_list else ())  # fmt: skip
        value = Estimate(1, types[-1], entries.value if entries else None,
                         path=(*items.path, EACH_VALUE) if items.path else ())  # fmt: skip
        return [key, value] if two else [value] if is_list else [key]

    def _estimate_bind(self, node: Bind, type_: t.Type) -> Estimate:
        """Estimate cel.bind, optMap or optFlatMap."""
        value = self.visit(node.value)
        outer = dict(self.scope)
        self.scope[node.variable] = replace(value, number=None) if node.through is None else Estimate(1, t.DYN)
        body = self.visit(node.body)
        self.scope = outer
        bound = MAKE_LIST + value.cost + body.cost
        if node.through is None:
            # The API server no longer knows the variable when it needs the size of the result.
            forgotten = isinstance(node.body, Ident)
            result = replace(body, size=None, entries=None) if forgotten else body
            return replace(_detach(result), cost=cap(bound))
        # These expand to: has it a value? then bind the value, which is computed a second time.
        some = bound + 1 + (node.through == "optMap")
        return Estimate(cap(value.cost + 1 + some), type_)


def _detach(estimate: Estimate) -> Estimate:
    """Return the estimate of a value that is passed on: it keeps its size, but is no longer part of the device."""
    bound = estimate.bound
    return replace(estimate, size=bound if bound != UNKNOWN else None, path=(), number=None)


# Cost of a macro: at the start, for each element in addition to the body, and at the end.
_FOLDS: dict[Fold, tuple[int, int, int]] = {
    Fold.ALL: (0, 3, 1),
    Fold.EXISTS: (0, 4, 1),
    Fold.EXISTS_ONE: (0, 2, 2),
    Fold.LIST: (MAKE_LIST, 12, 1),
    Fold.MAP_VALUES: (MAKE_MAP, 3, 1),
    Fold.MAP_ENTRIES: (MAKE_MAP, 2, 1),
    Fold.SORT_BY: (MAKE_LIST + MAKE_LIST + 2, 12, 1 + 1 + MAKE_LIST),
}
