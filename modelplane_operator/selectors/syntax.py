"""From the text of a selector to its syntax tree, or to an error that points at the place.

The grammar is cel-python's, read from that package without running any of its code (importing it changes the process's
recursion limit). It is amended where it differs from the language that the API server reads; see AMENDMENTS.
Trees are built bottom-up while parsing, so no depth of nesting can exhaust the stack here, and MAX_DEPTH protects
everything that walks a tree afterwards.
"""

import enum
import importlib.util
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, cast

import lark

from modelplane_operator.selectors.values import INT64_MAX, INT64_MIN, UINT64_MAX, UInt, Value

MAX_LENGTH = 10_240  # the API server's limit, in bytes
MAX_DEPTH = 100  # the API server allows 250; nobody writes 20, and each level costs us stack


class SelectorError(ValueError):
    """A selector that cannot be used: what is wrong, where, and what to write instead."""

    def __init__(self, message: str, text: str, position: int, hint: str = "") -> None:
        self.message = message
        self.position = position
        self.line = text.count("\n", 0, position) + 1
        self.column = position - (text.rfind("\n", 0, position) + 1) + 1
        self.hint = hint
        super().__init__(f"{self.line}:{self.column}: {message}{f'; {hint}' if hint else ''}")


class Fault(Exception):  # noqa: N818  (it becomes a SelectorError as soon as somebody knows the text)
    """A mistake at a position of the text being compiled."""

    def __init__(self, message: str, at: int, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.at, self.hint = message, at, hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What every node has: where it is (`at`: the place to point at; start and end: its text) and how deep it is."""

    at: int
    start: int
    end: int
    depth: int


@dataclass(frozen=True, slots=True)
class Literal(Node):
    value: Value


@dataclass(frozen=True, slots=True)
class Ident(Node):
    name: str


@dataclass(frozen=True, slots=True)
class Select(Node):
    """`operand.field`, `operand.?field`, or `has(operand.field)` when only tested."""

    operand: "Expr"
    field: str
    optional: bool = False
    tested: bool = False


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function, a method (with a target) or an operator (its name is spelled `_+_`, as CEL does)."""

    function: str
    target: "Expr | None"
    args: "tuple[Expr, ...]"

    @property
    def operands(self) -> "tuple[Expr, ...]":
        return self.args if self.target is None else (self.target, *self.args)


@dataclass(frozen=True, slots=True)
class Logic(Node):
    """A chain of && or of ||, flat however long it is."""

    conjunction: bool
    terms: "tuple[Expr, ...]"


@dataclass(frozen=True, slots=True)
class ListOf(Node):
    elements: "tuple[Expr, ...]"
    optional: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class MapOf(Node):
    keys: "tuple[Expr, ...]"
    values: "tuple[Expr, ...]"
    optional: tuple[bool, ...]


class Fold(enum.Enum):
    """What a macro over a list or map makes of its elements."""

    ALL = "all"
    EXISTS = "exists"
    EXISTS_ONE = "exists_one"
    LIST = "map"
    MAP_VALUES = "transformMap"
    MAP_ENTRIES = "transformMapEntry"
    SORT_BY = "sortBy"


@dataclass(frozen=True, slots=True)
class Comprehension(Node):
    """`range.all(x, body)` and its kin; two variables mean index or key, then value."""

    fold: Fold
    range: "Expr"
    variables: tuple[str, ...]
    filter: "Expr | None"
    body: "Expr"


@dataclass(frozen=True, slots=True)
class Bind(Node):
    """`cel.bind(variable, value, body)`; of an optional value (`optMap`, `optFlatMap`) when `through` says so."""

    variable: str
    value: "Expr"
    body: "Expr"
    through: str | None = None


Expr: TypeAlias = Literal | Ident | Select | Call | Logic | ListOf | MapOf | Comprehension | Bind


def children(node: Expr) -> Iterator[Expr]:
    """The expressions directly inside this one."""
    match node:
        case Literal() | Ident():
            return
        case Select():
            yield node.operand
        case Call():
            yield from node.operands
        case Logic():
            yield from node.terms
        case ListOf():
            yield from node.elements
        case MapOf():
            yield from node.keys
            yield from node.values
        case Comprehension():
            yield from (node.range, *filter(None, [node.filter]), node.body)
        case Bind():
            yield from (node.value, node.body)


def parse(text: str) -> Expr:
    """The tree of a selector; raises Fault."""
    if len(text.encode("utf-8", "replace")) > MAX_LENGTH:
        raise Fault(f"the selector is longer than {MAX_LENGTH} bytes", 0, "split it over several selectors")
    if not text.strip():
        raise Fault("the selector is empty", 0, 'write a condition, such as device.driver == "gpu.nvidia.com"')
    try:
        tree: Expr = _parser().parse(text)
        return tree
    except lark.exceptions.VisitError as error:
        raise error.orig_exc from None
    except lark.UnexpectedToken as error:
        raise _unexpected_token(error, text) from None
    except lark.UnexpectedCharacters as error:
        raise _unexpected_character(text, cast("int", error.pos_in_stream)) from None


# Amendments to cel-python's grammar. Each is something that the API server's parser reads differently:
# minus signs are operators (`8-1`), numbers need digits after the point, words end at a word boundary (`x iny` is no
# `x in y`), escapes are checked, `.?` and `[?` and `{?k: v}` are optional access, lists may end in a comma, and
# `!-x` is refused.
_AMENDMENTS = r"""
%override INT_LIT: /0x[0-9a-fA-F]+|[0-9]+/
%override UINT_LIT: /(?:0x[0-9a-fA-F]+|[0-9]+)[uU]/
%override FLOAT_LIT: /[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?/
%override BOOL_LIT: /(?:true|false)(?![_a-zA-Z0-9])/
%override NULL_LIT: /null(?![_a-zA-Z0-9])/
%override IDENT: /(?!(?:true|false|null|in)(?![_a-zA-Z0-9]))[_a-zA-Z][_a-zA-Z0-9]*/
%override STRING_LIT: /ESCAPED_OR_RAW/
%override MLSTRING_LIT: /TRIPLE_QUOTED/
%override BYTES_LIT: /[bB](?:TRIPLE_QUOTED|ESCAPED_OR_RAW)/
IN: /in(?![_a-zA-Z0-9])/

%override relation_in: relation IN
%override unary: member | "!"+ member | "-"+ member
%override member_dot: member "." ["?"] IDENT
%override member_index: member "[" ["?"] expr "]"
%override list_lit: "[" [element ("," element)* [","]] "]" | "[" "," "]"
%override map_lit: "{" [entry ("," entry)* [","]] "}" | "{" "," "}"
element: ["?"] expr
entry: ["?"] expr ":" expr
"""
_ESCAPE = r"""\\(?:[abfnrtv"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"""
_TRIPLE_QUOTED = "|".join(rf"{q}(?:{_ESCAPE}|[^\\])*?{q}|[rR]{q}(?s:.*?){q}" for q in ('"""', "'''"))
_ESCAPED_OR_RAW = "|".join(rf"{q}(?:{_ESCAPE}|[^{q}\\\n\r])*{q}|[rR]{q}[^{q}\n\r]*{q}" for q in ('"', "'"))
# Which token wins where several match at one place.
_PRIORITIES = [
    "MLSTRING_LIT",
    "BYTES_LIT",
    "STRING_LIT",
    "FLOAT_LIT",
    "UINT_LIT",
    "INT_LIT",
    "BOOL_LIT",
    "NULL_LIT",
    "IN",
]


@cache
def _parser() -> Any:  # a lark.Lark that answers what _Builder makes
    package = importlib.util.find_spec("celpy")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("cel-python is not installed", name="celpy")
    grammar = (Path(package.origin).parent / "cel.lark").read_text() + _AMENDMENTS
    grammar = grammar.replace("TRIPLE_QUOTED", _TRIPLE_QUOTED).replace("ESCAPED_OR_RAW", _ESCAPED_OR_RAW)
    for priority, terminal in enumerate(reversed(_PRIORITIES), start=1):
        grammar = re.sub(rf"^(%override )?{terminal} *:", rf"\1{terminal}.{priority} :", grammar, flags=re.MULTILINE)
    return lark.Lark(grammar, parser="lalr", start="expr", keep_all_tokens=True, maybe_placeholders=False,
                     transformer=_Builder())  # fmt: skip


def _unexpected_token(error: lark.UnexpectedToken, text: str) -> Fault:
    token = cast("lark.Token", error.token)
    if token.type == "$END":
        unclosed = _unclosed(text)
        if unclosed is not None:
            return Fault(f"the {text[unclosed]} is never closed", unclosed)
        return Fault("the selector ends too early", len(text.rstrip()), "complete the condition")
    at = token.start_pos or 0
    hint = {"=": "compare with ==", "and": "write &&", "or": "write ||", "not": "write !", "AND": "write &&"}.get(
        token, ""
    )
    return Fault(f"syntax error at {token!s}", at, hint)


_INSTEAD = {"=": "compare with ==", "&": "write &&", "|": "write ||", "and": "write &&", "or": "write ||",
            "not": "write !", '"': "close the string", "'": "close the string"}  # fmt: skip


def _unexpected_character(text: str, at: int) -> Fault:
    character = text[at]
    what = "a string that is never closed or has a wrong escape" if character in "\"'" else f"unexpected {character}"
    return Fault(what, at, _INSTEAD.get(character, ""))


def _unclosed(text: str) -> int | None:
    opened: list[int] = []
    for token in re.finditer(rf"{_TRIPLE_QUOTED}|{_ESCAPED_OR_RAW}|//[^\n]*|[(\[{{]|[)\]}}]", text):
        if token[0] in "([{":
            opened.append(token.start())
        elif token[0] in ")]}" and opened:
            opened.pop()
    return opened[-1] if opened else None


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
        raise Fault(f"the selector is nested more than {MAX_DEPTH} levels deep", at)
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


class _Builder(lark.Transformer[Any, Any]):
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
        raise Fault("message literals are not supported", parts[0].start, "a device has only plain values")

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
        value = _LITERALS[token.type](token)
        kind = _Unsigned if type(value) is int or isinstance(value, float) else Literal
        return kind(value, at=start, start=start, end=end, depth=1)


class _Unsigned(Literal):
    """A number whose minus sign, if any, has not been read yet."""

    __slots__ = ()


def _in_range(node: Expr) -> Expr:
    """A number becomes a literal once it is known that no more signs belong to it."""
    if isinstance(node, Literal) and type(node.value) is int and not INT64_MIN <= node.value <= INT64_MAX:
        raise Fault("the number has more than 64 bits", node.at)
    if isinstance(node, _Unsigned):
        return Literal(node.value, at=node.at, start=node.start, end=node.end, depth=node.depth)
    return node


def _refuse_reserved(name: lark.Token) -> None:
    if name in _RESERVED:
        raise Fault(f"{name} is a reserved word", name.start_pos or 0)


def _has(node: Expr, start: int, end: int) -> Expr:
    if not isinstance(node, Select) or node.optional:
        raise Fault(
            "has() needs a field selection", node.start,
            'write has(device.attributes["domain"].name), or "domain" in device.attributes',
        )  # fmt: skip
    return Select(node.operand, node.field, tested=True, at=node.at, start=start, end=end, depth=node.depth)


# --- macros: method calls that name a variable ---

_Macro: TypeAlias = Callable[[Expr, tuple[Expr, ...], _Place], Expr | None]


def _variable(node: Expr) -> str:
    if not isinstance(node, Ident):
        raise Fault("this must be the name of a variable", node.start)
    return node.name


def _over(fold: Fold, variables: int = 1, *, filtered: bool = False, keep: bool = False) -> _Macro:
    """A macro `range.name(variables..., [filter,] body)`; with `keep` the filtered element itself is the body."""

    def expand(target: Expr, args: tuple[Expr, ...], place: _Place) -> Expr:
        names = tuple(_variable(arg) for arg in args[:variables])
        if len(set(names)) < len(names):
            raise Fault(f"the variable {names[0]} is named twice", args[1].start)
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


# --- literals ---

_CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _integer(token: lark.Token) -> int:
    digits = str(token)
    if len(digits) > 30:
        raise Fault("the number has more than 64 bits", token.start_pos or 0)
    return int(digits, 16 if digits[:2] == "0x" else 10)


def _double(token: lark.Token) -> float:
    value = float(token)
    if math.isinf(value):
        raise Fault("the number is too large", token.start_pos or 0)
    return value


def _unsigned(token: lark.Token) -> UInt:
    value = _integer(lark.Token(token.type, token[:-1], start_pos=token.start_pos))
    if value > UINT64_MAX:
        raise Fault("the number has more than 64 bits", token.start_pos or 0)
    return UInt(value)


def _contents(token: str) -> tuple[str, bool]:
    """What is between the quotes, and whether escapes mean themselves there."""
    raw = token[0] in "rR"
    quoted = token[1:] if raw else token
    width = 3 if quoted[:3] in ('"""', "'''") else 1
    return quoted[width:-width].replace("\r\n", "\n").replace("\r", "\n"), raw


def _string(token: lark.Token) -> str:
    contents, raw = _contents(token)

    def character(escape: re.Match[str]) -> str:
        code = escape[0][1:]
        if code[0] in "xXuU01234567"[: 12 if len(code) > 1 else 0]:
            point = int(code, 8) if code[0].isdigit() else int(code[1:], 16)
            if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
                raise Fault(f"{escape[0]} is no character", (token.start_pos or 0) + escape.start())
            return chr(point)
        return _CONTROL.get(code, code)

    return contents if raw else re.sub(_ESCAPE, character, contents)


def _bytes(token: lark.Token) -> bytes:
    contents, raw = _contents(token[1:])

    def octets(escape: re.Match[str]) -> str:
        code = escape[0][1:]
        if code[0] in "uU":
            raise Fault(f"{escape[0]} cannot be written in bytes", (token.start_pos or 0) + escape.start())
        if code[0] in "xX":
            return chr(int(code[1:], 16) + _BYTE)
        if code[0].isdigit():
            return chr(int(code, 8) + _BYTE)
        return _CONTROL.get(code, code)

    # Bytes given by number travel as private characters until all else is encoded.
    escaped = contents if raw else re.sub(_ESCAPE, octets, contents)
    return b"".join(bytes([ord(c) - _BYTE]) if _BYTE <= ord(c) < _BYTE + 256 else c.encode() for c in escaped)


_BYTE = 0x10FF00

_LITERALS: dict[str, Callable[[lark.Token], Value]] = {
    "INT_LIT": _integer,
    "UINT_LIT": _unsigned,
    "FLOAT_LIT": _double,
    "STRING_LIT": _string,
    "MLSTRING_LIT": _string,
    "BYTES_LIT": _bytes,
    "BOOL_LIT": lambda token: str(token).startswith("t"),
    "NULL_LIT": lambda _: None,
}
