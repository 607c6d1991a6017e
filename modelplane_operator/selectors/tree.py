"""The syntax tree of a selector, and errors with a position.

`builder` creates the nodes, and `compile`, `cost` and `reasons` traverse them. Nodes are immutable and are identified
by identity: results of a traversal are stored by `id(node)`, since a hash of a node would visit all nodes below it.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from modelplane_operator.selectors.values import Value


class SelectorError(ValueError):
    """A selector that is invalid: the problem, its position, and a hint."""

    def __init__(self, message: str, text: str, position: int, hint: str = "") -> None:
        self.message = message
        self.position = position
        self.line = text.count("\n", 0, position) + 1
        self.column = position - (text.rfind("\n", 0, position) + 1) + 1
        self.hint = hint
        super().__init__(f"{self.line}:{self.column}: {message}{f'; {hint}' if hint else ''}")


class CompileError(Exception):
    """An error at a position of the text."""

    def __init__(self, message: str, at: int, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.at, self.hint = message, at, hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Base of all nodes.

    `at` is the position for errors, `start` and `end` delimit the text, `depth` is the nesting.
    """

    at: int
    """Position that an error about the node reports."""
    start: int
    """Position of the first character."""
    end: int
    """Position after the last character."""
    depth: int
    """Number of levels, including the node itself."""


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """Constant in the text."""

    value: Value


@dataclass(frozen=True, slots=True)
class Ident(Node):
    """Identifier, such as `device` or a macro's variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Select(Node):
    """Field access: `operand.field`, `operand.?field`, or `has(operand.field)` when only tested."""

    operand: "Expr"
    """Expression before the dot."""
    field: str
    """Name after the dot."""
    optional: bool = False
    """True for `.?`: the result is an optional."""
    tested: bool = False
    """True within `has()`: the result is a boolean."""


@dataclass(frozen=True, slots=True)
class Call(Node):
    """Call of a function, a method (with a target) or an operator (named `_+_`, as in CEL)."""

    function: str
    """Name of the function, method or operator."""
    target: "Expr | None"
    """Receiver of a method; None for functions and operators."""
    args: "tuple[Expr, ...]"
    """Arguments without the target."""

    @property
    def operands(self) -> "tuple[Expr, ...]":
        """Arguments, after the target if there is one."""
        return self.args if self.target is None else (self.target, *self.args)


@dataclass(frozen=True, slots=True)
class Logic(Node):
    """A chain of && or of ||, flat however long it is."""

    conjunction: bool
    """True for &&, False for ||."""
    terms: "tuple[Expr, ...]"


@dataclass(frozen=True, slots=True)
class ListOf(Node):
    """A list literal; elements marked as optional are left out when absent."""

    elements: "tuple[Expr, ...]"
    optional: tuple[bool, ...]
    """True for each element after `?`, in the order of the elements."""


@dataclass(frozen=True, slots=True)
class MapOf(Node):
    """A map literal; entries marked as optional are left out when absent."""

    keys: "tuple[Expr, ...]"
    values: "tuple[Expr, ...]"
    optional: tuple[bool, ...]
    """True for each entry after `?`, in the order of the keys."""


class Fold(enum.Enum):
    """The result that a macro over a list or map creates."""

    ALL = "all"
    EXISTS = "exists"
    EXISTS_ONE = "exists_one"
    LIST = "map"
    MAP_VALUES = "transformMap"
    MAP_ENTRIES = "transformMapEntry"
    SORT_BY = "sortBy"


@dataclass(frozen=True, slots=True)
class Comprehension(Node):
    """A macro like `range.all(x, body)`; two variables mean index or key, then value."""

    fold: Fold
    range: "Expr"
    """List or map to iterate over."""
    variables: tuple[str, ...]
    """Names of one or two variables."""
    filter: "Expr | None"
    """Condition of the elements to include; None for all."""
    body: "Expr"
    """Expression that is evaluated for each element."""


@dataclass(frozen=True, slots=True)
class Bind(Node):
    """Binding of a variable: `cel.bind(variable, value, body)`, or of an optional value if `through` is `optMap` or
    `optFlatMap`.
    """

    variable: str
    value: "Expr"
    """Value of the variable, or the optional with the value."""
    body: "Expr"
    """Expression in which the variable is visible."""
    through: str | None = None
    """Name of the macro over an optional; None for `cel.bind`."""


Expr: TypeAlias = Literal | Ident | Select | Call | Logic | ListOf | MapOf | Comprehension | Bind


def iterate_children(node: Expr) -> Iterator[Expr]:
    """Yield the direct children of a node."""
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


def size_of(node: Expr) -> int:
    """Return the number of nodes of a tree."""
    return 1 + sum(map(size_of, iterate_children(node)))


def is_written_out(node: Expr) -> bool:
    """True for a literal, or a list or map of nothing but literals."""
    return isinstance(node, Literal | ListOf | MapOf) and all(map(is_written_out, iterate_children(node)))


def is_plain(node: Expr) -> bool:
    """True for a literal, or a conversion of one."""
    match node:
        case Literal():
            return True
        case Call(function=function, target=None, args=(arg,)):
            return function in CONVERSIONS and is_plain(arg)
        case _:
            return False


CONVERSIONS = frozenset({"bool", "bytes", "double", "dyn", "int", "string", "uint"})
"""Functions that convert a value to another type."""
