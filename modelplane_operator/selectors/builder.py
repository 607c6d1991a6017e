"""From what the parser recognises to the tree, bottom-up: a method for each rule of the grammar, and the macros."""

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

MAX_DEPTH = 100  # the API server allows 250; nobody writes 20, and each level costs us stack


_RESERVED = frozenset({"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop",
                       "package", "namespace", "return", "var", "void", "while"})  # fmt: skip
_Part: TypeAlias = Any  # lark hands us tokens and what we built ourselves


def _is_token(part: _Part, *texts: str) -> bool:
    return isinstance(part, lark.Token) and part in texts


def _span(parts: list[_Part]) -> tuple[int, int]:
    first, last = parts[0], parts[-1]
    start: int | None = first.start_pos if isinstance(first, lark.Token) else first.start
    end: int | None = last.end_pos if isinstance(last, lark.Token) else last.end
    return start or 0, end or 0  # a token that was read has a place


def _deeper(at: int, *nodes: Expr) -> int:
    depth = 1 + max((node.depth for node in nodes), default=0)
    if depth > MAX_DEPTH:
        raise CompileError(f"the selector is nested more than {MAX_DEPTH} levels deep", at)
    return depth


class _Place(TypedDict):
    """The fields that every node has."""

    at: int
    start: int
    end: int
    depth: int


@dataclass(frozen=True, slots=True)
class _Args:
    """The expressions between two brackets, and the brackets' place."""

    nodes: tuple[Expr, ...]
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    optional: bool
    nodes: tuple[Expr, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Half:
    """The left side of a binary operator, with the operator."""

    operator: lark.Token
    left: Expr
    start: int
    end: int


def _binary(_: object, parts: list[_Part]) -> Expr:
    if len(parts) == 1:
        return parts[0]
    half, right = cast("_Half", parts[0]), cast("Expr", parts[1])
    at = half.operator.start_pos or 0
    name = "@in" if half.operator == "in" else f"_{half.operator}_"
    depth = _deeper(at, half.left, right)
    return Call(name, None, (half.left, right), at=at, start=half.start, end=right.end, depth=depth)


def _half(_: object, parts: list[_Part]) -> _Half:
    return _Half(parts[1], parts[0], *_span(parts))


def _logic(_: object, parts: list[_Part]) -> Expr:
    if len(parts) == 1:
        return parts[0]
    left, operator, right = parts
    conjunction = operator == "&&"
    chained = isinstance(left, Logic) and left.conjunction is conjunction
    terms = (*left.terms, right) if chained else (left, right)
    depth = max(left.depth, _deeper(operator.start_pos, right)) if chained else _deeper(operator.start_pos, left, right)
    return Logic(conjunction, terms, at=operator.start_pos, start=left.start, end=right.end, depth=depth)


def _only(_: object, parts: list[_Part]) -> _Part:
    return parts[0]


class Builder(lark.Transformer[Any, Any]):
    """One method per rule of the grammar; each answers the node for what it is given."""

    conditionalor = conditionaland = _logic
    relation = addition = multiplication = _binary
    relation_lt = relation_le = relation_gt = relation_ge = relation_eq = relation_ne = relation_in = _half
    addition_add = addition_sub = multiplication_mul = multiplication_div = multiplication_mod = _half
    member = primary = _only

    def expr(self, parts: list[_Part]) -> Expr:
        if len(parts) == 1:
            return parts[0]
        condition, mark, yes, _, no = parts
        depth = _deeper(mark.start_pos, condition, yes, no)
        return Call("_?_:_", None, (condition, yes, no),
                    at=mark.start_pos, start=condition.start, end=no.end, depth=depth)  # fmt: skip

    def unary(self, parts: list[_Part]) -> Expr:
        node: Expr = parts[-1]
        operators: list[lark.Token] = parts[:-1]
        if operators and operators[0] == "-" and isinstance(node, _Unsigned):
            sign, at = operators.pop(), node.at
            node = Literal(-cast("float", node.value), at=at, start=sign.start_pos or 0, end=node.end, depth=1)
        node = _in_range(node)
        if len(operators) % 2 == 0:
            return node  # two of a kind undo each other, whatever they stand before
        at = operators[0].start_pos or 0
        name = "!_" if operators[0] == "!" else "-_"
        return Call(name, None, (node,), at=at, start=at, end=node.end, depth=_deeper(at, node))

    def member_dot(self, parts: list[_Part]) -> Expr:
        operand, name = _in_range(parts[0]), parts[-1]
        return Select(operand, str(name), any(_is_token(p, "?") for p in parts[1:-1]),
                      at=name.start_pos, start=operand.start, end=name.end_pos,
                      depth=_deeper(name.start_pos, operand))  # fmt: skip

    def member_dot_arg(self, parts: list[_Part]) -> Expr:
        target, name = _in_range(parts[0]), parts[2]
        args = next((part.nodes for part in parts if isinstance(part, _Args)), ())
        at: int = name.start_pos
        depth = _deeper(at, target, *args)
        place: _Place = {"at": at, "start": target.start, "end": parts[-1].end_pos, "depth": depth}
        expand = _MACROS.get((str(name), len(args)))
        expanded = expand(target, args, place) if expand is not None else None
        return expanded or Call(str(name), target, args, **place)

    def member_index(self, parts: list[_Part]) -> Expr:
        operand, bracket, index = _in_range(parts[0]), parts[1], parts[-2]
        name = "_[?_]" if _is_token(parts[2], "?") else "_[_]"
        return Call(name, None, (operand, index), at=bracket.start_pos, start=operand.start, end=parts[-1].end_pos,
                    depth=_deeper(bracket.start_pos, operand, index))  # fmt: skip

    def member_object(self, parts: list[_Part]) -> Expr:
        raise CompileError("message literals are not supported", parts[0].start, "a device has only plain values")

    def exprlist(self, parts: list[_Part]) -> _Args:
        return _Args(tuple(part for part in parts if not isinstance(part, lark.Token)), *_span(parts))

    def ident(self, parts: list[_Part]) -> Expr:
        name: lark.Token = parts[-1]
        _refuse_reserved(name)
        start, end = _span(parts)
        return Ident(str(name), at=start, start=start, end=end, depth=1)

    dot_ident = ident

    def ident_arg(self, parts: list[_Part]) -> Expr:
        name: lark.Token = next(part for part in parts if isinstance(part, lark.Token) and part != ".")
        _refuse_reserved(name)
        args = next((part.nodes for part in parts if isinstance(part, _Args)), ())
        start, end = _span(parts)
        if name == "has" and len(args) == 1:
            return _has(args[0], start, end)
        return Call(str(name), None, args, at=start, start=start, end=end, depth=_deeper(start, *args))

    dot_ident_arg = ident_arg

    def paren_expr(self, parts: list[_Part]) -> Expr:
        # Counted as a level, so that our limit refuses what the API server's parser would.
        node, at = _in_range(parts[1]), parts[0].start_pos
        return replace(node, start=at, end=parts[2].end_pos, depth=_deeper(at, node))

    def element(self, parts: list[_Part]) -> _Entry:
        return _Entry(_is_token(parts[0], "?"), (parts[-1],), *_span(parts))

    def entry(self, parts: list[_Part]) -> _Entry:
        return _Entry(_is_token(parts[0], "?"), (parts[-3], parts[-1]), *_span(parts))

    def list_lit(self, parts: list[_Part]) -> Expr:
        entries = [part for part in parts if isinstance(part, _Entry)]
        nodes = tuple(entry.nodes[0] for entry in entries)
        start, end = _span(parts)
        return ListOf(nodes, tuple(entry.optional for entry in entries), at=start, start=start, end=end,
                      depth=_deeper(start, *nodes))  # fmt: skip

    def map_lit(self, parts: list[_Part]) -> Expr:
        entries = [part for part in parts if isinstance(part, _Entry)]
        keys, values = tuple(e.nodes[0] for e in entries), tuple(e.nodes[1] for e in entries)
        start, end = _span(parts)
        return MapOf(keys, values, tuple(entry.optional for entry in entries), at=start, start=start, end=end,
                     depth=_deeper(start, *keys, *values))  # fmt: skip

    def literal(self, parts: list[_Part]) -> Expr:
        token: lark.Token = parts[0]
        start, end = _span(parts)
        value = LITERALS[token.type](token)
        kind = _Unsigned if type(value) is int or isinstance(value, float) else Literal
        return kind(value, at=start, start=start, end=end, depth=1)


class _Unsigned(Literal):
    """A number whose minus sign, if any, has not been read yet."""

    __slots__ = ()


def _in_range(node: Expr) -> Expr:
    """A number becomes a literal once it is known that no more signs belong to it."""
    if isinstance(node, Literal) and type(node.value) is int and not INT64_MIN <= node.value <= INT64_MAX:
        raise CompileError("the number has more than 64 bits", node.at)
    if isinstance(node, _Unsigned):
        return Literal(node.value, at=node.at, start=node.start, end=node.end, depth=node.depth)
    return node


def _refuse_reserved(name: lark.Token) -> None:
    if name in _RESERVED:
        raise CompileError(f"{name} is a reserved word", name.start_pos or 0)


def _has(node: Expr, start: int, end: int) -> Expr:
    if not isinstance(node, Select) or node.optional:
        raise CompileError(
            "has() needs a field selection", node.start,
            'write has(device.attributes["domain"].name), or "domain" in device.attributes',
        )  # fmt: skip
    return Select(node.operand, node.field, tested=True, at=node.at, start=start, end=end, depth=node.depth)


# --- macros: method calls that name a variable ---

_Macro: TypeAlias = Callable[[Expr, tuple[Expr, ...], _Place], Expr | None]


def _variable(node: Expr) -> str:
    if not isinstance(node, Ident):
        raise CompileError("this must be the name of a variable", node.start)
    return node.name


def _over(fold: Fold, variables: int = 1, *, filtered: bool = False, keep: bool = False) -> _Macro:
    """A macro `range.name(variables..., [filter,] body)`; with `keep` the filtered element itself is the body."""

    def expand(target: Expr, args: tuple[Expr, ...], place: _Place) -> Expr:
        names = tuple(_variable(arg) for arg in args[:variables])
        if len(set(names)) < len(names):
            raise CompileError(f"the variable {names[0]} is named twice", args[1].start)
        condition = args[variables] if filtered or keep else None
        return Comprehension(fold, target, names, condition, args[0] if keep else args[-1], **place)

    return expand


def _bind(target: Expr, args: tuple[Expr, ...], place: _Place) -> Expr | None:
    if not (isinstance(target, Ident) and target.name == "cel"):
        return None
    return Bind(_variable(args[0]), args[1], args[2], **place)


def _opt_map(name: str) -> _Macro:
    def expand(target: Expr, args: tuple[Expr, ...], place: _Place) -> Expr:
        return Bind(_variable(args[0]), target, args[1], name, **place)

    return expand


_MACROS: dict[tuple[str, int], _Macro] = {
    ("all", 2): _over(Fold.ALL),
    ("all", 3): _over(Fold.ALL, 2),
    ("exists", 2): _over(Fold.EXISTS),
    ("exists", 3): _over(Fold.EXISTS, 2),
    ("exists_one", 2): _over(Fold.EXISTS_ONE),
    ("exists_one", 3): _over(Fold.EXISTS_ONE, 2),
    ("existsOne", 3): _over(Fold.EXISTS_ONE, 2),
    ("map", 2): _over(Fold.LIST),
    ("map", 3): _over(Fold.LIST, filtered=True),
    ("filter", 2): _over(Fold.LIST, keep=True),
    ("transformList", 3): _over(Fold.LIST, 2),
    ("transformList", 4): _over(Fold.LIST, 2, filtered=True),
    ("transformMap", 3): _over(Fold.MAP_VALUES, 2),
    ("transformMap", 4): _over(Fold.MAP_VALUES, 2, filtered=True),
    ("transformMapEntry", 3): _over(Fold.MAP_ENTRIES, 2),
    ("transformMapEntry", 4): _over(Fold.MAP_ENTRIES, 2, filtered=True),
    ("sortBy", 2): _over(Fold.SORT_BY),
    ("bind", 3): _bind,
    ("optMap", 2): _opt_map("optMap"),
    ("optFlatMap", 2): _opt_map("optFlatMap"),
}
