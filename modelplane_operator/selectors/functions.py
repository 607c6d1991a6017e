"""Functions of selectors: a row per overload, parsed from the signature that a user would write.

`string.contains(string) -> bool` is a method, `quantity(string) -> Quantity` a function, and `_+_(int, int) -> int` an
operator. A capital letter stands for any type. A signature with `!` marks a function whose work grows with its
arguments; its implementation gets `spend` as the first argument.
"""
# The signatures give the lambdas below their types, in a language that pyright does not read.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import re
from dataclasses import dataclass

from modelplane_operator.selectors import lists, regexes
from modelplane_operator.selectors import operations as op
from modelplane_operator.selectors import types as t
from modelplane_operator.selectors.operations import Implementation
from modelplane_operator.selectors.quantity import Quantity
from modelplane_operator.selectors.values import NOTHING, UInt


@dataclass(frozen=True, slots=True)
class Overload:
    """A signature of a function, with its implementation."""

    name: str
    """Name of the function; operators have CEL's names, such as `_+_`."""
    method: bool
    """True for a method, whose first parameter is the receiver."""
    parameters: tuple[t.Type, ...]
    result: t.Type
    implementation: Implementation
    """Function that computes the result from the arguments. It raises EvaluationError if there is none."""
    spends: bool
    """True if the implementation takes `spend` as the first argument."""

    def __str__(self) -> str:
        """Return the call as a user would write it, for hints."""
        arguments = [str(p) for p in self.parameters]
        if self.method:
            return f"{arguments[0]}.{self.name}({', '.join(arguments[1:])})"
        return f"{self.name}({', '.join(arguments)})"


_COMPARISONS = {"<": lambda o: o < 0, "<=": lambda o: o <= 0, ">": lambda o: o > 0, ">=": lambda o: o >= 0}
"""Operators, each with the test of the order (-1, 0 or 1) that it accepts."""
_ORDERED_PAIRS = ["bool, bool", "int, int", "int, double", "int, uint", "uint, uint", "uint, double", "uint, int",
                  "double, double", "double, int", "double, uint", "string, string", "bytes, bytes"]  # fmt: skip
"""Types that can be compared by order. CEL also compares numbers of different types."""
_DOUBLE = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?i:inf|infinity)|(?i:nan)"
"""Texts that Go's ParseFloat accepts in decimal notation."""
_SUMMABLE = [("int", op.int_of_64_bits, int), ("uint", op.uint_of_64_bits, UInt), ("double", float, float)]
"""Types of numbers, each with the check of the sum and the Python type."""
_COMPARABLE = ["int", "uint", "double", "bool", "string", "bytes"]
"""Types of elements that can be sorted."""

_ROWS: list[tuple[str, Implementation]] = [
    # Standard operators; `&&`, `||` and selection are not calls.
    ("!_(bool) -> bool", lambda a: not a),
    ("-_(double) -> double", lambda a: -a),
    ("-_(int) -> int", lambda a: op.int_of_64_bits(-a)),
    ("! _+_(bytes, bytes) -> bytes", lists.concatenate),
    ("_+_(double, double) -> double", lambda a, b: a + b),
    ("_+_(int, int) -> int", lambda a, b: op.int_of_64_bits(a + b)),
    ("! _+_(list(A), list(A)) -> list(A)", lists.concatenate),
    ("! _+_(string, string) -> string", lists.concatenate),
    ("_+_(uint, uint) -> uint", lambda a, b: op.uint_of_64_bits(int(a) + int(b))),
    ("_-_(double, double) -> double", lambda a, b: a - b),
    ("_-_(int, int) -> int", lambda a, b: op.int_of_64_bits(a - b)),
    ("_-_(uint, uint) -> uint", lambda a, b: op.uint_of_64_bits(int(a) - int(b))),
    ("_*_(double, double) -> double", lambda a, b: a * b),
    ("_*_(int, int) -> int", lambda a, b: op.int_of_64_bits(a * b)),
    ("_*_(uint, uint) -> uint", lambda a, b: op.uint_of_64_bits(int(a) * int(b))),
    ("_/_(double, double) -> double", op.float_quotient),
    ("_/_(int, int) -> int", lambda a, b: op.int_of_64_bits(op.quotient(a, b))),
    ("_/_(uint, uint) -> uint", lambda a, b: op.uint_of_64_bits(op.quotient(a, b))),
    ("_%_(int, int) -> int", op.remainder),
    ("_%_(uint, uint) -> uint", lambda a, b: op.uint_of_64_bits(op.remainder(a, b))),
    *[(f"_{sign}_({pair}) -> bool", op.comparison(accept))
      for sign, accept in _COMPARISONS.items() for pair in _ORDERED_PAIRS],
    ("! @in(A, list(A)) -> bool", lists.contains),
    ("@in(A, map(A, B)) -> bool", lambda key, mapping: key in mapping),
    ("_[_](list(A), int) -> A", lists.element),
    # Sizes and conversions.
    *[row for kind in ("bytes", "list(A)", "map(A, B)", "string")
      for row in ((f"size({kind}) -> int", len), (f"{kind}.size() -> int", len))],
    ("bool(bool) -> bool", op.itself),
    ("bool(string) -> bool", op.parser_of("|".join(op.TRUTHS), "a truth value", op.TRUTHS.__getitem__)),
    ("bytes(bytes) -> bytes", op.itself),
    ("bytes(string) -> bytes", lambda text: text.encode()),
    ("double(double) -> double", op.itself),
    ("double(int) -> double", float),
    ("double(string) -> double", op.parser_of(_DOUBLE, "a number", op.double_from)),
    ("double(uint) -> double", float),
    ("dyn(A) -> dyn", op.itself),
    ("int(int) -> int", op.itself),
    ("int(double) -> int", op.int_from_double),
    ("int(string) -> int", op.parser_of(r"[+-]?[0-9]{1,30}", "an integer", lambda text: op.int_of_64_bits(int(text)))),
    ("int(uint) -> int", lambda a: op.int_of_64_bits(int(a))),
    ("string(string) -> string", op.itself),
    ("string(bool) -> string", lambda a: "true" if a else "false"),
    ("string(bytes) -> string", op.decode_text),
    ("string(double) -> string", op.float_text),
    ("string(int) -> string", str),
    ("string(uint) -> string", lambda a: str(int(a))),
    ("uint(uint) -> uint", op.itself),
    ("uint(double) -> uint", lambda a: UInt(op.uint_from_double(a))),
    ("uint(int) -> uint", op.uint_of_64_bits),
    (
        "uint(string) -> uint",
        op.parser_of(r"[0-9]{1,30}", "a natural number", lambda text: op.uint_of_64_bits(int(text))),
    ),
    # Strings and regular expressions.
    ("string.contains(string) -> bool", lambda a, b: b in a),
    ("string.endsWith(string) -> bool", str.endswith),
    ("string.startsWith(string) -> bool", str.startswith),
    ("! matches(string, string) -> bool", regexes.matches),
    ("! string.matches(string) -> bool", regexes.matches),
    ("! string.find(string) -> string", regexes.find),
    ("! string.findAll(string) -> list(string)", regexes.find_all),
    ("! string.findAll(string, int) -> list(string)", regexes.find_all),
    ("string.charAt(int) -> string", lambda text, i: text[op.position(text, i, end=len(text)) :][:1]),
    ("string.indexOf(string) -> int", op.index_of),
    ("string.indexOf(string, int) -> int", op.index_of),
    ("string.lastIndexOf(string) -> int", op.last_index_of),
    ("string.lastIndexOf(string, int) -> int", op.last_index_of),
    ("string.lowerAscii() -> string", op.case("lower")),
    ("string.upperAscii() -> string", op.case("upper")),
    ("! string.replace(string, string) -> string", op.replace),
    ("! string.replace(string, string, int) -> string", op.replace),
    ("! string.split(string) -> list(string)", op.split),
    ("! string.split(string, int) -> list(string)", op.split),
    ("string.substring(int) -> string", op.substring),
    ("string.substring(int, int) -> string", op.substring),
    ("string.trim() -> string", lambda text: text.strip(op.SPACE)),
    ("! list(string).join() -> string", op.join),
    ("! list(string).join(string) -> string", op.join),
    ("strings.quote(string) -> string", lambda text: f'"{text.translate(op.QUOTED)}"'),
    # Lists and sets.
    *[(f"! list({kind}).isSorted() -> bool", lists.is_sorted) for kind in _COMPARABLE],
    *[(f"! list({kind}).sum() -> {kind}", lists.total_of(make, type_))
      for kind, make, type_ in _SUMMABLE],
    *[(f"! list({kind}).max() -> {kind}", lists.extreme("max", max)) for kind in _COMPARABLE],
    *[(f"! list({kind}).min() -> {kind}", lists.extreme("min", min)) for kind in _COMPARABLE],
    ("! list(A).indexOf(A) -> int", lambda spend, *sought: min(lists.positions(spend, *sought), default=-1)),
    ("! list(A).lastIndexOf(A) -> int", lambda spend, *sought: max(lists.positions(spend, *sought), default=-1)),
    ("list(A).slice(int, int) -> list(A)", lists.slice_of),
    ("! list(list(A)).flatten() -> list(A)", lists.flatten),
    ("! list(dyn).flatten(int) -> list(dyn)", lists.flatten),
    *[(f"! list({kind}).sort() -> list({kind})", lambda spend, items: lists.sort_by(spend, items, items))
      for kind in _COMPARABLE],
    *[(f"! list(A).@sortBy(list({kind})) -> list(A)", lists.sort_by) for kind in _COMPARABLE],
    ("! lists.range(int) -> list(int)", lists.range_of),
    ("list(A).reverse() -> list(A)", lambda items: items[::-1]),
    ("! list(A).distinct() -> list(A)", lists.distinct),
    ("! sets.contains(list(A), list(A)) -> bool", lists.contains_all),
    ("! sets.equivalent(list(A), list(A)) -> bool",
     lambda spend, a, b: lists.contains_all(spend, a, b) and lists.contains_all(spend, b, a)),
    ("! sets.intersects(list(A), list(A)) -> bool",
     lambda spend, a, b: any(lists.contains(spend, item, b) for item in a)),
    # Optionals.
    ("optional.of(A) -> optional(A)", op.some),
    ("optional.ofNonZeroValue(A) -> optional(A)", op.of_non_zero),
    ("optional.none() -> optional(A)", lambda: NOTHING),
    ("optional(A).value() -> A", op.value),
    ("optional(A).hasValue() -> bool", lambda optional: optional.present),
    ("list(A).first() -> optional(A)", lambda items: op.some(items[0]) if items else NOTHING),
    ("list(A).last() -> optional(A)", lambda items: op.some(items[-1]) if items else NOTHING),
    ("optional.unwrap(list(optional(A))) -> list(A)", op.unwrap),
    ("list(optional(A)).unwrapOpt() -> list(A)", op.unwrap),
    # Quantities and versions.
    ("quantity(string) -> Quantity", op.read_quantity),
    ("isQuantity(string) -> bool", op.is_quantity),
    ("sign(Quantity) -> int", lambda q: q.sign),
    ("Quantity.isInteger() -> bool", lambda q: q.as_integer() is not None),
    ("Quantity.asInteger() -> int", op.as_integer),
    ("Quantity.asApproximateFloat() -> double", Quantity.as_float),
    ("Quantity.add(Quantity) -> Quantity", lambda a, b: a + b),
    ("Quantity.add(int) -> Quantity", lambda a, b: a + op.pieces(b)),
    ("Quantity.sub(Quantity) -> Quantity", lambda a, b: a - b),
    ("Quantity.sub(int) -> Quantity", lambda a, b: a - op.pieces(b)),
    ("semver(string) -> Semver", op.read_semver),
    ("semver(string, bool) -> Semver", op.read_semver),
    ("isSemver(string) -> bool", op.is_semver),
    ("isSemver(string, bool) -> bool", op.is_semver),
    ("Semver.major() -> int", lambda v: v.major),
    ("Semver.minor() -> int", lambda v: v.minor),
    ("Semver.patch() -> int", lambda v: v.patch),
    *[row for kind in ("Quantity", "Semver") for row in (
        (f"{kind}.compareTo({kind}) -> int", lambda a, b: a.compare(b)),
        (f"{kind}.isGreaterThan({kind}) -> bool", lambda a, b: a.compare(b) > 0),
        (f"{kind}.isLessThan({kind}) -> bool", lambda a, b: a.compare(b) < 0),
    )],
    # Checked like other calls, but evaluated in `compile`: their operands are not plain values, or not all computed.
    *[(f"_{sign}_(A, A) -> bool", op.itself) for sign in ("==", "!=")],
    ("_?_:_(bool, A, A) -> A", op.itself),
    ("_[_](map(A, B), A) -> B", op.itself),
    ("_[_](optional(list(A)), int) -> optional(A)", op.itself),
    ("_[_](optional(map(A, B)), A) -> optional(B)", op.itself),
    ("_[?_](list(A), int) -> optional(A)", op.itself),
    ("_[?_](optional(list(A)), int) -> optional(A)", op.itself),
    ("_[?_](map(A, B), A) -> optional(B)", op.itself),
    ("_[?_](optional(map(A, B)), A) -> optional(B)", op.itself),
    ("optional(A).or(optional(A)) -> optional(A)", op.itself),
    ("optional(A).orValue(A) -> A", op.itself),
]  # fmt: skip


# Functions of the API server's library that are not supported, with a message for the user.
_NO_TIME = "dates and durations are not supported in selectors"
_NO_NETWORK = "network addresses and URLs are not supported in selectors"
_NO_AUTHORIZER = "a selector has no authorizer"
UNSUPPORTED: dict[str, str] = {
    **dict.fromkeys(
        ["duration", "timestamp", "getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek",
         "getHours", "getMinutes", "getSeconds", "getMilliseconds"], _NO_TIME),
    **dict.fromkeys(
        ["ip", "isIP", "ip.isCanonical", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast",
         "isLinkLocalUnicast", "isGlobalUnicast", "cidr", "isCIDR", "containsIP", "containsCIDR", "prefixLength",
         "masked", "url", "isURL", "getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "getQuery"],
        _NO_NETWORK),
    **dict.fromkeys(
        ["path", "group", "serviceAccount", "resource", "subresource", "namespace", "name", "check", "allowed",
         "reason", "errored", "error", "fieldSelector", "labelSelector"], _NO_AUTHORIZER),
    **dict.fromkeys(["validate", "format.named"], "named formats are not supported in selectors; use matches()"),
    "format": "format() is not supported in selectors; join strings with +",
    "type": "comparing types costs more than the API server allows",
}  # fmt: skip
"""Hints by function of the API server's library that selectors do not support."""

_TYPE = re.compile(r"(?P<name>[A-Za-z]+)(?:\((?P<inside>.*)\))?")
"""Type in a signature, with its parameters."""


def _split_types(text: str) -> list[str]:
    """Split a list of types at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text.replace(" ", ""):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]


def _parse_type(text: str) -> t.Type:
    """Parse a type. A single letter is a type parameter."""
    match = _TYPE.fullmatch(text)
    assert match is not None, text  # noqa: S101  (a row of the table above is misspelt)
    if len(match["name"]) == 1:
        return t.parameter(match["name"])
    return t.Type(match["name"], tuple(map(_parse_type, _split_types(match["inside"] or ""))))


_METHOD = re.compile(r"(bool|bytes|string|Quantity|Semver|(?:list|map|optional)\(.*?\)+)\.(@?\w+)\((.*)\)")
"""Signature of a method: the type of the receiver, the name and the types of the other arguments."""


def _parse_row(row: tuple[str, Implementation]) -> Overload:
    """Parse a row of the table."""
    signature, implementation = row
    spends = signature.startswith("! ")
    call, _, result = signature.removeprefix("! ").rpartition(" -> ")
    method = _METHOD.fullmatch(call)
    if method is not None:
        name, types = method[2], [method[1], *_split_types(method[3])]
    else:
        name, _, inside = call.removesuffix(")").partition("(")
        types = _split_types(inside)
    return Overload(
        name, method is not None, tuple(map(_parse_type, types)), _parse_type(result), implementation, spends
    )


OVERLOADS: dict[str, list[Overload]] = {}
for _overload in map(_parse_row, _ROWS):
    OVERLOADS.setdefault(_overload.name, []).append(_overload)
