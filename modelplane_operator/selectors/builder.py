"""Build the syntax tree bottom-up: a method for each rule of the grammar, and the macros.

lark's parser calls a method of Builder as soon as it has reduced a rule, so the parts that a method gets are finished
nodes or tokens. Macros are expanded here, as in the API server: they bind variables, which a call cannot. Types and
overloads are checked later, by `compile`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypedDict, cast

import lark

from modelplane_operator.selectors.literals import LITERALS
from modelplane_operator.selectors.tree import (
    Bind,
    Call,
    CompileError,
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
from modelplane_operator.selectors.values import INT64_MAX, INT64_MIN

MAX_DEPTH = 100  # the API server allows 250; no one writes 20, and each level takes stack
"""Maximum nesting of a node. Later traversals recurse once per level."""


_RESERVED = frozenset({"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop",
                       "package", "namespace", "return", "var", "void", "while"})  # fmt: skip
"""Words that CEL keeps for later versions and does not accept as identifiers."""
_Part: TypeAlias = Any  # tokens of lark, or nodes that were built before


def _is_token(part: _Part, *texts: str) -> bool:
    """True if the part is a token with one of these texts. Nodes are never equal to a text."""
    return isinstance(part, lark.Token) and part in texts


def _span(parts: list[_Part]) -> tuple[int, int]:
    """Return the first position of the parts, and the position after the last one."""
    first, last = parts[0], parts[-1]
    start: int | None = first.start_pos if isinstance(first, lark.Token) else first.start
    end: int | None = last.end_pos if isinstance(last, lark.Token) else last.end
    return start or 0, end or 0  # every parsed token has a position


def _depth_above(at: int, *nodes: Expr) -> int:
    """Return the depth of a node with these children. Raise CompileError beyond the limit."""
    depth = 1 + max((node.depth for node in nodes), default=0)
    if depth > MAX_DEPTH:
        raise CompileError(f"the selector is nested more than {MAX_DEPTH} levels deep", at)
    return depth


class _Position(TypedDict):
    """The fields that every node has."""

    at: int
    start: int
    end: int
    depth: int
    """Nesting of the node, at most MAX_DEPTH."""


@dataclass(frozen=True, slots=True)
class _Args:
    """The expressions between two brackets, and the position of the brackets."""

    nodes: tuple[Expr, ...]
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    """An element of a list or an entry of a map."""

    optional: bool
    """True for an element or entry after `?`, which is left out if its value is absent."""
    nodes: tuple[Expr, ...]
    """Element of a list, or key and value of a map's entry."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Half:
    """The left operand of a binary operator, and the operator."""

    operator: lark.Token
    operand: Expr
    start: int
    end: int


def _build_binary(_: object, parts: list[_Part]) -> Expr:
    """Build a call of a binary operator."""
    if len(parts) == 1:
        return parts[0]
    half, right = cast("_Half", parts[0]), cast("Expr", parts[1])
    at = half.operator.start_pos or 0
    name = "@in" if half.operator == "in" else f"_{half.operator}_"
    depth = _depth_above(at, half.operand, right)
    return Call(name, None, (half.operand, right), at=at, start=half.start, end=right.end, depth=depth)


def _build_half(_: object, parts: list[_Part]) -> _Half:
    """Build the left half of a binary operation; the grammar has a rule of its own for it."""
    return _Half(parts[1], parts[0], *_span(parts))


def _build_logic(_: object, parts: list[_Part]) -> Expr:
    """Build a chain of && or ||. A chain of the same operator stays flat."""
    if len(parts) == 1:
        return parts[0]
    remaining, operator, right = parts
    conjunction = operator == "&&"
    # A long chain, such as a generated list of names, would reach MAX_DEPTH as a nested tree.
    chained = isinstance(remaining, Logic) and remaining.conjunction is conjunction
    terms = (*remaining.terms, right) if chained else (remaining, right)
    depth = (
        max(remaining.depth, _depth_above(operator.start_pos, right))
        if chained
        else _depth_above(operator.start_pos, remaining, right)
    )
    return Logic(conjunction, terms, at=operator.start_pos, start=remaining.start, end=right.end, depth=depth)


def _first(_: object, parts: list[_Part]) -> _Part:
    """Return the only part, for rules without a meaning of their own."""
    return parts[0]


class Builder(lark.Transformer[Any, Any]):
    """A transformer with a method for each rule of the grammar. Each returns a node."""

    conditionalor = conditionaland = _build_logic
    relation = addition = multiplication = _build_binary
    relation_lt = relation_le = relation_gt = relation_ge = relation_eq = relation_ne = relation_in = _build_half
    addition_add = addition_sub = multiplication_mul = multiplication_div = multiplication_mod = _build_half
    member = primary = _first

    def expr(self, parts: list[_Part]) -> Expr:
        """Build a conditional expression."""
        if len(parts) == 1:
            return parts[0]
        condition, mark, yes, _, no = parts
        depth = _depth_above(mark.start_pos, condition, yes, no)
        return Call("_?_:_", None, (condition, yes, no),
                    at=mark.start_pos, start=condition.start, end=no.end, depth=depth)  # fmt: skip

    def unary(self, parts: list[_Part]) -> Expr:
        """Apply minus and not. A minus before a number becomes part of the literal."""
        node: Expr = parts[-1]
        operators: list[lark.Token] = parts[:-1]
        if operators and operators[0] == "-" and isinstance(node, _Unsigned):
            sign, at = operators.pop(), node.at
            node = Literal(-cast("float", node.value), at=at, start=sign.start_pos or 0, end=node.end, depth=1)
        node = _finish_number(node)
        if len(operators) % 2 == 0:
            return node  # two equal signs cancel each other out, whatever their operand
        at = operators[0].start_pos or 0
        name = "!_" if operators[0] == "!" else "-_"
        return Call(name, None, (node,), at=at, start=at, end=node.end, depth=_depth_above(at, node))

    def member_dot(self, parts: list[_Part]) -> Expr:
        """Build a field access."""
        operand, name = _finish_number(parts[0]), parts[-1]
        return Select(operand, str(name), any(_is_token(p, "?") for p in parts[1:-1]),
                      at=name.start_pos, start=operand.start, end=name.end_pos,
                      depth=_depth_above(name.start_pos, operand))  # fmt: skip

    def member_dot_arg(self, parts: list[_Part]) -> Expr:
        """Build a method call, or expand a macro."""
        target, name = _finish_number(parts[0]), parts[2]
        args = next((part.nodes for part in parts if isinstance(part, _Args)), ())
        at: int = name.start_pos
        depth = _depth_above(at, target, *args)
        position: _Position = {"at": at, "start": target.start, "end": parts[-1].end_pos, "depth": depth}
        # A macro is recognized by its name and its number of arguments; `map(a)` is an ordinary call.
        expand = _MACROS.get((str(name), len(args)))
        expanded = expand(target, args, position) if expand is not None else None
        return expanded or Call(str(name), target, args, **position)

    def member_index(self, parts: list[_Part]) -> Expr:
        """Build an index access."""
        operand, bracket, index = _finish_number(parts[0]), parts[1], parts[-2]
        name = "_[?_]" if _is_token(parts[2], "?") else "_[_]"
        return Call(name, None, (operand, index), at=bracket.start_pos, start=operand.start, end=parts[-1].end_pos,
                    depth=_depth_above(bracket.start_pos, operand, index))  # fmt: skip

    def member_object(self, parts: list[_Part]) -> Expr:
        """Raise CompileError for a message literal, which the grammar has and a selector cannot use."""
        raise CompileError("message literals are not supported", parts[0].start, "a device has only plain values")

    def exprlist(self, parts: list[_Part]) -> _Args:
        """Collect arguments, without the commas between them."""
        return _Args(tuple(part for part in parts if not isinstance(part, lark.Token)), *_span(parts))

    def ident(self, parts: list[_Part]) -> Expr:
        """Build an identifier. Raise CompileError for a reserved word."""
        name: lark.Token = parts[-1]
        _require_unreserved(name)
        start, end = _span(parts)
        return Ident(str(name), at=start, start=start, end=end, depth=1)

    dot_ident = ident

    def ident_arg(self, parts: list[_Part]) -> Expr:
        """Build a function call."""
        name: lark.Token = next(part for part in parts if isinstance(part, lark.Token) and part != ".")
        _require_unreserved(name)
        args = next((part.nodes for part in parts if isinstance(part, _Args)), ())
        start, end = _span(parts)
        if name == "has" and len(args) == 1:
            field = args[0]
            if not isinstance(field, Select) or field.optional:
                raise CompileError(
                    "has() needs a field selection", field.start,
                    'write has(device.attributes["domain"].name), or "domain" in device.attributes',
                )  # fmt: skip
            return Select(field.operand, field.field, tested=True, at=field.at, start=start, end=end, depth=field.depth)
        return Call(str(name), None, args, at=start, start=start, end=end, depth=_depth_above(start, *args))

    dot_ident_arg = ident_arg

    def paren_expr(self, parts: list[_Part]) -> Expr:
        """Build a parenthesized expression: its content, with the brackets as a level."""
        # Counts as a level, so that our limit also covers what the API server's parser rejects.
        node, at = _finish_number(parts[1]), parts[0].start_pos
        return replace(node, start=at, end=parts[2].end_pos, depth=_depth_above(at, node))

    def element(self, parts: list[_Part]) -> _Entry:
        return _Entry(_is_token(parts[0], "?"), (parts[-1],), *_span(parts))

    def entry(self, parts: list[_Part]) -> _Entry:
        """Build an entry of a map. The colon is between its key and its value."""
        return _Entry(_is_token(parts[0], "?"), (parts[-3], parts[-1]), *_span(parts))

    def list_lit(self, parts: list[_Part]) -> Expr:
        """Build a list."""
        entries = [part for part in parts if isinstance(part, _Entry)]
        nodes = tuple(entry.nodes[0] for entry in entries)
        start, end = _span(parts)
        return ListOf(nodes, tuple(entry.optional for entry in entries), at=start, start=start, end=end,
                      depth=_depth_above(start, *nodes))  # fmt: skip

    def map_lit(self, parts: list[_Part]) -> Expr:
        """Build a map."""
        entries = [part for part in parts if isinstance(part, _Entry)]
        keys, values = tuple(e.nodes[0] for e in entries), tuple(e.nodes[1] for e in entries)
        start, end = _span(parts)
        return MapOf(keys, values, tuple(entry.optional for entry in entries), at=start, start=start, end=end,
                     depth=_depth_above(start, *keys, *values))  # fmt: skip

    def literal(self, parts: list[_Part]) -> Expr:
        """Build a literal."""
        token: lark.Token = parts[0]
        start, end = _span(parts)
        value = LITERALS[token.type](token)
        # -9223372036854775808 fits 64 bits, but its digits without the sign do not.
        kind = _Unsigned if type(value) is int or isinstance(value, float) else Literal
        return kind(value, at=start, start=start, end=end, depth=1)


class _Unsigned(Literal):
    """A number literal that may still get a minus sign."""

    __slots__ = ()


def _finish_number(node: Expr) -> Expr:
    """Return the node; a number becomes a final literal, after its range was checked."""
    if isinstance(node, Literal) and type(node.value) is int and not INT64_MIN <= node.value <= INT64_MAX:
        raise CompileError("the number has more than 64 bits", node.at)
    if isinstance(node, _Unsigned):
        return Literal(node.value, at=node.at, start=node.start, end=node.end, depth=node.depth)
    return node


def _require_unreserved(name: lark.Token) -> None:
    """Raise CompileError for a reserved word."""
    if name in _RESERVED:
        raise CompileError(f"{name} is a reserved word", name.start_pos or 0)


# --- macros: method calls that bind a variable ---

_Macro: TypeAlias = Callable[[Expr, tuple[Expr, ...], _Position], Expr | None]
"""Expansion of a call, given its target, arguments and position; None if the call is no macro after all."""


def _variable_name(node: Expr) -> str:
    """Return the name of a variable. Raise CompileError for another expression."""
    if not isinstance(node, Ident):
        raise CompileError("this must be the name of a variable", node.start)
    return node.name


def _fold_macro(fold: Fold, variables: int = 1, *, filtered: bool = False, keep: bool = False) -> _Macro:
    """Return a macro `range.name(variables..., [filter,] body)`; with `keep` the filtered element itself is the
    body.
    """

    def expand(target: Expr, args: tuple[Expr, ...], position: _Position) -> Expr:
        """Expand the macro. Raise CompileError for a duplicate variable."""
        names = tuple(_variable_name(arg) for arg in args[:variables])
        if len(set(names)) < len(names):
            raise CompileError(f"the variable {names[0]} is named twice", args[1].start)
        condition = args[variables] if filtered or keep else None
        return Comprehension(fold, target, names, condition, args[0] if keep else args[-1], **position)

    return expand


def _expand_bind(target: Expr, args: tuple[Expr, ...], position: _Position) -> Expr | None:
    """Expand `cel.bind`; return None for a method of this name on anything else."""
    if not (isinstance(target, Ident) and target.name == "cel"):
        return None
    return Bind(_variable_name(args[0]), args[1], args[2], **position)


def _opt_map_macro(name: str) -> _Macro:
    """Return the macro of optMap or optFlatMap, which binds the value of an optional."""

    def expand(target: Expr, args: tuple[Expr, ...], position: _Position) -> Expr:
        """Expand the macro to a binding through the optional."""
        return Bind(_variable_name(args[0]), target, args[1], name, **position)

    return expand


_MACROS: dict[tuple[str, int], _Macro] = {
    ("all", 2): _fold_macro(Fold.ALL),
    ("all", 3): _fold_macro(Fold.ALL, 2),
    ("exists", 2): _fold_macro(Fold.EXISTS),
    ("exists", 3): _fold_macro(Fold.EXISTS, 2),
    ("exists_one", 2): _fold_macro(Fold.EXISTS_ONE),
    ("exists_one", 3): _fold_macro(Fold.EXISTS_ONE, 2),
    ("existsOne", 3): _fold_macro(Fold.EXISTS_ONE, 2),
    ("map", 2): _fold_macro(Fold.LIST),
    ("map", 3): _fold_macro(Fold.LIST, filtered=True),
    ("filter", 2): _fold_macro(Fold.LIST, keep=True),
    ("transformList", 3): _fold_macro(Fold.LIST, 2),
    ("transformList", 4): _fold_macro(Fold.LIST, 2, filtered=True),
    ("transformMap", 3): _fold_macro(Fold.MAP_VALUES, 2),
    ("transformMap", 4): _fold_macro(Fold.MAP_VALUES, 2, filtered=True),
    ("transformMapEntry", 3): _fold_macro(Fold.MAP_ENTRIES, 2),
    ("transformMapEntry", 4): _fold_macro(Fold.MAP_ENTRIES, 2, filtered=True),
    ("sortBy", 2): _fold_macro(Fold.SORT_BY),
    ("bind", 3): _expand_bind,
    ("optMap", 2): _opt_map_macro("optMap"),
    ("optFlatMap", 2): _opt_map_macro("optFlatMap"),
}
"""Macros by name and number of arguments."""
