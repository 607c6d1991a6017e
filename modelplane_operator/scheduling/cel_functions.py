"""What a selector may call: one row per overload, read from the signature that a user would write.

`string.contains(string) -> bool` is a method, `quantity(string) -> Quantity` a function, `_+_(int, int) -> int` an
operator; one capital letter stands for any type. A row whose signature starts with `!` does work in proportion to its
arguments: its implementation gets `spend` first and charges for it before doing it.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import re2

from modelplane_operator.scheduling import cel_types as t
from modelplane_operator.scheduling import quantity, semver
from modelplane_operator.scheduling.cel_values import (
    INT64_MAX,
    INT64_MIN,
    NOTHING,
    UINT64_MAX,
    EvaluationError,
    Optional,
    Spend,
    UInt,
    Value,
    equal,
    order,
)
from modelplane_operator.scheduling.quantity import Quantity
from modelplane_operator.scheduling.semver import Semver

Implementation: TypeAlias = Callable[..., Any]
Items: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Overload:
    """One way to call a function."""

    name: str
    method: bool
    parameters: tuple[t.Type, ...]
    result: t.Type
    implementation: Implementation
    spends: bool

    def __str__(self) -> str:
        arguments = [str(p) for p in self.parameters]
        if self.method:
            return f"{arguments[0]}.{self.name}({', '.join(arguments[1:])})"
        return f"{self.name}({', '.join(arguments)})"


# The most characters or elements that a computed string or list may have.
MAX_SIZE = 65_536


def _sized(count: int) -> None:
    if count > MAX_SIZE:
        raise EvaluationError(f"a computed value has more than {MAX_SIZE} elements")


# --- numbers ---


def _int(value: int) -> int:
    if INT64_MIN <= value <= INT64_MAX:
        return value
    raise EvaluationError("the number overflows 64 bits")


def _uint(value: int) -> UInt:
    if 0 <= value <= UINT64_MAX:
        return UInt(value)
    raise EvaluationError("the unsigned number overflows 64 bits")


def _quotient(a: int, b: int) -> int:
    if b == 0:
        raise EvaluationError("division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return a - b * _quotient(a, b)


def _float_quotient(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)


def _truncated(least: float, most: float) -> Implementation:
    def truncated(value: float) -> int:
        if not least <= value <= most:  # neither is NaN
            raise EvaluationError("the number overflows 64 bits")
        return int(value)

    return truncated


# The doubles next to the limits; the API server refuses the limits themselves.
_int_of = _truncated(math.nextafter(-(2.0**63), 0), math.nextafter(2.0**63, 0))
_uint_of = _truncated(0, math.nextafter(2.0**64, 0))


def _parsed(pattern: str, kind: str, convert: Callable[[str], Any]) -> Implementation:
    form = re.compile(pattern, re.ASCII)

    def parse(text: str) -> Any:
        if form.fullmatch(text) is None:
            raise EvaluationError(f'"{text[:40]}" is not {kind}')
        return convert(text)

    return parse


_TRUTHS = {**dict.fromkeys(["1", "t", "T", "true", "TRUE", "True"], True),
           **dict.fromkeys(["0", "f", "F", "false", "FALSE", "False"], False)}  # fmt: skip


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    digits, _, exponent = f"{value:.17e}".partition("e")
    shortest = next(text for p in range(18) if float(text := f"{value:.{p}e}") == value)
    digits, _, exponent = shortest.partition("e")
    power = int(exponent)
    if -4 <= power < 21:  # noqa: PLR2004
        places = max(len(digits.lstrip("-").replace(".", "")) - 1 - power, 0)
        return f"{value:.{places}f}"
    return f"{digits}e{'-' if power < 0 else '+'}{abs(power):02d}"


def _compared(accept: Callable[[int], bool]) -> Implementation:
    def compare(a: Any, b: Any) -> bool:
        outcome = order(a, b)
        if outcome is None:
            raise EvaluationError("NaN cannot be ordered")
        return accept(outcome)

    return compare


# --- strings ---


def _at(text: str | Items, index: int, *, end: int) -> int:
    if not 0 <= index <= end:
        raise EvaluationError(f"index {index} is out of range: the size is {len(text)}")
    return index


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not part:
        return start
    return -1 if start >= len(text) else text.find(part, _at(text, start, end=len(text)))


def _last_index_of(text: str, part: str, start: int | None = None) -> int:
    if start is None:
        return text.rfind(part)
    if not part:
        return start
    return -1 if start >= len(text) else text.rfind(part, 0, _at(text, start, end=len(text)) + len(part))


def _replace(spend: Spend, text: str, old: str, new: str, count: int = -1) -> str:
    found = text.count(old)
    found = found if count < 0 else min(found, count)
    size = len(text) + found * max(len(new) - len(old), 0)
    _sized(size)
    spend(_by_text(size))
    return text.replace(old, new, count)


def _split(spend: Spend, text: str, separator: str, count: int = -1) -> Items:
    spend(_by_text(len(text)))
    if count in (0, 1):
        return (text,) if count else ()
    if not separator:
        characters = list(text)
        return tuple(characters if count < 0 else [*characters[: count - 1], *filter(None, [text[count - 1 :]])])
    return tuple(text.split(separator, -1 if count < 0 else count - 1))


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is None:
        return text[_at(text, start, end=len(text)) :]
    if start > end:
        raise EvaluationError(f"the substring from {start} to {end} has no length")
    return text[_at(text, start, end=len(text)) : _at(text, end, end=len(text))]


def _join(spend: Spend, items: Items, separator: str = "") -> str:
    if not all(type(item) is str for item in items):
        raise EvaluationError("join() needs strings")
    size = sum(map(len, items)) + len(separator) * len(items)
    _sized(size)
    spend(_by_text(size))
    return separator.join(items)


def _case(shift: str) -> Implementation:
    ascii_only = {ord(c): ord(getattr(c, shift)()) for c in map(chr, range(128))}
    return lambda text: text.translate(ascii_only)


_QUOTED = str.maketrans({"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v",
                         "\\": r"\\", '"': r"\""})  # fmt: skip
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"


def _by_text(characters: int) -> int:
    return 1 + characters // 64


# --- regular expressions: RE2, as in the API server; it takes time in proportion to the text, whatever the pattern ---


@lru_cache(maxsize=512)
def regex(pattern: str) -> Any:
    """The compiled pattern; raises EvaluationError."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be compiled"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise EvaluationError(f"the regular expression is not valid: {text}") from None


def _spend_on_match(spend: Spend, text: str, pattern: str) -> Any:
    spend(1 + len(text) * len(pattern) // 256)
    return regex(pattern)


def _matches(spend: Spend, text: str, pattern: str) -> bool:
    return _spend_on_match(spend, text, pattern).search(text) is not None


def _find(spend: Spend, text: str, pattern: str) -> str:
    found = _spend_on_match(spend, text, pattern).search(text)
    return found.group() if found is not None else ""


def _find_all(spend: Spend, text: str, pattern: str, count: int = -1) -> Items:
    compiled = _spend_on_match(spend, text, pattern)
    found: list[str] = []
    last_end = -1
    for match in compiled.finditer(text):
        if len(found) == count:
            break
        if match.end() > match.start() or match.start() != last_end:  # Go skips an empty match right after another
            found.append(match.group())
        last_end = match.end()
    return tuple(found)


# --- lists ---


def _concatenate(spend: Spend, a: Any, b: Any) -> Any:
    _sized(len(a) + len(b))
    spend(_by_text(len(a) + len(b)))
    return a + b


def contains(spend: Spend, item: Value, items: Items) -> bool:
    """Whether a list has an element equal to the item."""
    spend(len(items))
    return any(_same(item, other, spend) for other in items)


def _same(a: Value, b: Value, spend: Spend) -> bool:
    try:
        return equal(a, b, spend)
    except EvaluationError:
        spend(0)  # raises again when the budget was the reason
        return False


def _contains_all(spend: Spend, items: Items, others: Items) -> bool:
    return all(contains(spend, other, items) for other in others)


def _positions(spend: Spend, items: Items, item: Value) -> list[int]:
    spend(len(items))
    return [i for i, other in enumerate(items) if _same(other, item, spend)]


def _distinct(spend: Spend, items: Items) -> Items:
    kept: list[Value] = []
    for item in items:
        if not contains(spend, item, tuple(kept)):
            kept.append(item)
    return tuple(kept)


def _flatten(spend: Spend, items: Items, levels: int = 1) -> Items:
    if levels < 0:
        raise EvaluationError("flatten() needs a level of at least 0")
    flat: list[Value] = []
    for item in items:
        spend(1)
        if type(item) is tuple and levels:
            flat.extend(_flatten(spend, item, min(levels, 100) - 1))  # no list can be nested deeper than its text
        else:
            flat.append(item)
        _sized(len(flat))
    return tuple(flat)


def _range(spend: Spend, count: int) -> Items:
    _sized(count)
    spend(max(count, 0))
    return tuple(range(count))


def _slice(items: Items, start: int, end: int) -> Items:
    if start > end:
        raise EvaluationError(f"slice({start}, {end}) has no length")
    return items[_at(items, start, end=len(items)) : _at(items, end, end=len(items))]


def element(items: Items, index: int) -> Any:
    """One element of a list; raises EvaluationError when there is none."""
    if not 0 <= index < len(items):
        raise EvaluationError(f"index {index} is out of range: the list has {len(items)} elements")
    return items[index]


def sort_by(spend: Spend, items: Items, keys: Items) -> Items:
    """The items in the order of their keys, which must be of one orderable type."""
    if type(items) is not tuple:
        raise EvaluationError("only a list can be sorted")
    if len({type(key) for key in keys}) > 1 or (keys and type(keys[0]) not in _ORDERED):
        raise EvaluationError("only elements of one type, all of it orderable, can be sorted")
    spend(len(items) * 4)
    return tuple(items[i] for i in sorted(range(len(items)), key=keys.__getitem__))


_ORDERED = (bool, int, UInt, float, str, bytes)


def _is_sorted(spend: Spend, items: Items) -> bool:
    spend(len(items))
    return all(type(a) is type(b) and not b < a for a, b in zip(items, items[1:], strict=False))


def _extreme(name: str, pick: Callable[[Items], Any]) -> Implementation:
    def extreme(spend: Spend, items: Items) -> Any:
        spend(len(items))
        if not items:
            raise EvaluationError(f"{name}() of an empty list")
        if len({type(item) for item in items}) > 1 or type(items[0]) not in _ORDERED:
            raise EvaluationError(f"{name}() needs elements of one type that can be ordered")
        return pick(items)

    return extreme


def _sum(make: Callable[[Any], Any], kind: type) -> Implementation:
    def total(spend: Spend, items: Items) -> Any:
        spend(len(items))
        if any(type(item) is not kind for item in items):
            raise EvaluationError("sum() needs numbers of one type")
        return make(sum(items))

    return total


# --- quantities, versions, optionals ---


def _quantity(text: str) -> Quantity:
    try:
        return quantity.parse(text)
    except quantity.QuantityError as error:
        raise EvaluationError(str(error)) from None


def _is_quantity(text: str) -> bool:
    try:
        quantity.parse(text)
    except quantity.QuantityError:
        return False
    return True


def _as_integer(value: Quantity) -> int:
    number = value.as_integer()
    if number is None:
        raise EvaluationError(f"{value} is not an integer of 64 bits")
    return number


def _pieces(number: int) -> Quantity:
    return Quantity(number, 0, quantity.Suffixes.EXPONENT)


def _semver(text: str, normalize: bool = False) -> Semver:  # noqa: FBT001, FBT002  (CEL passes it by position)
    try:
        return semver.parse(text, normalize=normalize)
    except semver.SemverError as error:
        raise EvaluationError(str(error)) from None


def _is_semver(text: str, normalize: bool = False) -> bool:  # noqa: FBT001, FBT002
    try:
        semver.parse(text, normalize=normalize)
    except semver.SemverError:
        return False
    return True


def _value(optional: Optional) -> Any:
    if not optional.present:
        raise EvaluationError("the optional has no value")
    return optional.value


def _of_non_zero(value: Any) -> Optional:
    zero = value is None or (isinstance(value, bool | int | float | str | bytes | tuple | Mapping) and not value)
    return NOTHING if zero else Optional(present=True, value=value)


def _unwrap(items: Items) -> Items:
    if not all(isinstance(item, Optional) for item in items):
        raise EvaluationError("only optional values can be unwrapped")
    return tuple(item.value for item in items if item.present)


def _some(value: Any) -> Optional:
    return Optional(present=True, value=value)


def _itself(value: Any) -> Any:
    return value


# --- the table ---

_COMPARISONS = {"<": lambda o: o < 0, "<=": lambda o: o <= 0, ">": lambda o: o > 0, ">=": lambda o: o >= 0}
_ORDERED_PAIRS = ["bool, bool", "int, int", "int, double", "int, uint", "uint, uint", "uint, double", "uint, int",
                  "double, double", "double, int", "double, uint", "string, string", "bytes, bytes"]  # fmt: skip
_COMPARABLE = ["int", "uint", "double", "bool", "string", "bytes"]

_ROWS: list[tuple[str, Implementation]] = [
    # Standard operators. `&&`, `||`, `?:`, `==` and selection are not here: they do not evaluate all their operands.
    ("!_(bool) -> bool", lambda a: not a),
    ("-_(double) -> double", lambda a: -a),
    ("-_(int) -> int", lambda a: _int(-a)),
    ("! _+_(bytes, bytes) -> bytes", _concatenate),
    ("_+_(double, double) -> double", lambda a, b: a + b),
    ("_+_(int, int) -> int", lambda a, b: _int(a + b)),
    ("! _+_(list(A), list(A)) -> list(A)", _concatenate),
    ("! _+_(string, string) -> string", _concatenate),
    ("_+_(uint, uint) -> uint", lambda a, b: _uint(int(a) + int(b))),
    ("_-_(double, double) -> double", lambda a, b: a - b),
    ("_-_(int, int) -> int", lambda a, b: _int(a - b)),
    ("_-_(uint, uint) -> uint", lambda a, b: _uint(int(a) - int(b))),
    ("_*_(double, double) -> double", lambda a, b: a * b),
    ("_*_(int, int) -> int", lambda a, b: _int(a * b)),
    ("_*_(uint, uint) -> uint", lambda a, b: _uint(int(a) * int(b))),
    ("_/_(double, double) -> double", _float_quotient),
    ("_/_(int, int) -> int", lambda a, b: _int(_quotient(a, b))),
    ("_/_(uint, uint) -> uint", lambda a, b: _uint(_quotient(a, b))),
    ("_%_(int, int) -> int", _remainder),
    ("_%_(uint, uint) -> uint", lambda a, b: _uint(_remainder(a, b))),
    *[(f"_{sign}_({pair}) -> bool", _compared(accept))
      for sign, accept in _COMPARISONS.items() for pair in _ORDERED_PAIRS],
    ("! @in(A, list(A)) -> bool", contains),
    ("@in(A, map(A, B)) -> bool", lambda key, mapping: key in mapping),
    ("_[_](list(A), int) -> A", element),
    # Sizes and conversions.
    *[row for kind in ("bytes", "list(A)", "map(A, B)", "string")
      for row in ((f"size({kind}) -> int", len), (f"{kind}.size() -> int", len))],
    ("bool(bool) -> bool", _itself),
    ("bool(string) -> bool", _parsed("|".join(_TRUTHS), "a truth value", _TRUTHS.__getitem__)),
    ("bytes(bytes) -> bytes", _itself),
    ("bytes(string) -> bytes", lambda text: text.encode()),
    ("double(double) -> double", _itself),
    ("double(int) -> double", float),
    ("double(string) -> double",
     _parsed(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?i:inf|infinity)|(?i:nan)", "a number", float)),
    ("double(uint) -> double", float),
    ("dyn(A) -> dyn", _itself),
    ("int(int) -> int", _itself),
    ("int(double) -> int", _int_of),
    ("int(string) -> int", _parsed(r"[+-]?[0-9]{1,30}", "an integer", lambda text: _int(int(text)))),
    ("int(uint) -> int", lambda a: _int(int(a))),
    ("string(string) -> string", _itself),
    ("string(bool) -> string", lambda a: "true" if a else "false"),
    ("string(bytes) -> string", lambda a: _decoded(a)),
    ("string(double) -> string", _float_text),
    ("string(int) -> string", str),
    ("string(uint) -> string", lambda a: str(int(a))),
    ("uint(uint) -> uint", _itself),
    ("uint(double) -> uint", lambda a: UInt(_uint_of(a))),
    ("uint(int) -> uint", _uint),
    ("uint(string) -> uint", _parsed(r"[0-9]{1,30}", "an unsigned integer", lambda text: _uint(int(text)))),
    # Strings and regular expressions.
    ("string.contains(string) -> bool", lambda a, b: b in a),
    ("string.endsWith(string) -> bool", str.endswith),
    ("string.startsWith(string) -> bool", str.startswith),
    ("! matches(string, string) -> bool", _matches),
    ("! string.matches(string) -> bool", _matches),
    ("! string.find(string) -> string", _find),
    ("! string.findAll(string) -> list(string)", _find_all),
    ("! string.findAll(string, int) -> list(string)", _find_all),
    ("string.charAt(int) -> string", lambda text, i: text[_at(text, i, end=len(text)) :][:1]),
    ("string.indexOf(string) -> int", _index_of),
    ("string.indexOf(string, int) -> int", _index_of),
    ("string.lastIndexOf(string) -> int", _last_index_of),
    ("string.lastIndexOf(string, int) -> int", _last_index_of),
    ("string.lowerAscii() -> string", _case("lower")),
    ("string.upperAscii() -> string", _case("upper")),
    ("! string.replace(string, string) -> string", _replace),
    ("! string.replace(string, string, int) -> string", _replace),
    ("! string.split(string) -> list(string)", _split),
    ("! string.split(string, int) -> list(string)", _split),
    ("string.substring(int) -> string", _substring),
    ("string.substring(int, int) -> string", _substring),
    ("string.trim() -> string", lambda text: text.strip(_SPACE)),
    ("! list(string).join() -> string", _join),
    ("! list(string).join(string) -> string", _join),
    ("strings.quote(string) -> string", lambda text: f'"{text.translate(_QUOTED)}"'),
    # Lists and sets.
    *[(f"! list({kind}).isSorted() -> bool", _is_sorted) for kind in _COMPARABLE],
    *[(f"! list({kind}).sum() -> {kind}", _sum(make, type_))
      for kind, make, type_ in (("int", _int, int), ("uint", _uint, UInt), ("double", float, float))],
    *[(f"! list({kind}).max() -> {kind}", _extreme("max", max)) for kind in _COMPARABLE],
    *[(f"! list({kind}).min() -> {kind}", _extreme("min", min)) for kind in _COMPARABLE],
    ("! list(A).indexOf(A) -> int", lambda spend, items, item: min(_positions(spend, items, item), default=-1)),
    ("! list(A).lastIndexOf(A) -> int", lambda spend, items, item: max(_positions(spend, items, item), default=-1)),
    ("list(A).slice(int, int) -> list(A)", _slice),
    ("! list(list(A)).flatten() -> list(A)", _flatten),
    ("! list(dyn).flatten(int) -> list(dyn)", _flatten),
    *[(f"! list({kind}).sort() -> list({kind})", lambda spend, items: sort_by(spend, items, items))
      for kind in _COMPARABLE],
    *[(f"! list(A).@sortBy(list({kind})) -> list(A)", sort_by) for kind in _COMPARABLE],
    ("! lists.range(int) -> list(int)", _range),
    ("list(A).reverse() -> list(A)", lambda items: items[::-1]),
    ("! list(A).distinct() -> list(A)", _distinct),
    ("! sets.contains(list(A), list(A)) -> bool", _contains_all),
    ("! sets.equivalent(list(A), list(A)) -> bool",
     lambda spend, a, b: _contains_all(spend, a, b) and _contains_all(spend, b, a)),
    ("! sets.intersects(list(A), list(A)) -> bool", lambda spend, a, b: any(contains(spend, item, b) for item in a)),
    # Optionals. `or` and `orValue` evaluate their argument only when needed, and are not here for that reason.
    ("optional.of(A) -> optional(A)", _some),
    ("optional.ofNonZeroValue(A) -> optional(A)", _of_non_zero),
    ("optional.none() -> optional(A)", lambda: NOTHING),
    ("optional(A).value() -> A", _value),
    ("optional(A).hasValue() -> bool", lambda optional: optional.present),
    ("list(A).first() -> optional(A)", lambda items: _some(items[0]) if items else NOTHING),
    ("list(A).last() -> optional(A)", lambda items: _some(items[-1]) if items else NOTHING),
    ("optional.unwrap(list(optional(A))) -> list(A)", _unwrap),
    ("list(optional(A)).unwrapOpt() -> list(A)", _unwrap),
    # Quantities and versions.
    ("quantity(string) -> Quantity", _quantity),
    ("isQuantity(string) -> bool", _is_quantity),
    ("sign(Quantity) -> int", lambda q: q.sign),
    ("Quantity.isInteger() -> bool", lambda q: q.as_integer() is not None),
    ("Quantity.asInteger() -> int", _as_integer),
    ("Quantity.asApproximateFloat() -> double", Quantity.as_float),
    ("Quantity.add(Quantity) -> Quantity", lambda a, b: a + b),
    ("Quantity.add(int) -> Quantity", lambda a, b: a + _pieces(b)),
    ("Quantity.sub(Quantity) -> Quantity", lambda a, b: a - b),
    ("Quantity.sub(int) -> Quantity", lambda a, b: a - _pieces(b)),
    ("semver(string) -> Semver", _semver),
    ("semver(string, bool) -> Semver", _semver),
    ("isSemver(string) -> bool", _is_semver),
    ("isSemver(string, bool) -> bool", _is_semver),
    ("Semver.major() -> int", lambda v: v.major),
    ("Semver.minor() -> int", lambda v: v.minor),
    ("Semver.patch() -> int", lambda v: v.patch),
    *[row for kind in ("Quantity", "Semver") for row in (
        (f"{kind}.compareTo({kind}) -> int", lambda a, b: a.compare(b)),
        (f"{kind}.isGreaterThan({kind}) -> bool", lambda a, b: a.compare(b) > 0),
        (f"{kind}.isLessThan({kind}) -> bool", lambda a, b: a.compare(b) < 0),
    )],
    # Evaluated elsewhere, checked like any other.
    *[(f"_{sign}_(A, A) -> bool", _itself) for sign in ("==", "!=")],
    ("_?_:_(bool, A, A) -> A", _itself),
    ("_[_](map(A, B), A) -> B", _itself),
    ("_[_](optional(list(A)), int) -> optional(A)", _itself),
    ("_[_](optional(map(A, B)), A) -> optional(B)", _itself),
    ("_[?_](list(A), int) -> optional(A)", _itself),
    ("_[?_](optional(list(A)), int) -> optional(A)", _itself),
    ("_[?_](map(A, B), A) -> optional(B)", _itself),
    ("_[?_](optional(map(A, B)), A) -> optional(B)", _itself),
    ("optional(A).or(optional(A)) -> optional(A)", _itself),
    ("optional(A).orValue(A) -> A", _itself),
]  # fmt: skip


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvaluationError("the bytes are not UTF-8") from None


# What the API server's library has and we do not, with what to tell the user.
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
        ["path", "group", "serviceAccount", "resource", "subresource", "namespace", "name", "check", "allowed", "reason",
         "errored", "error", "fieldSelector", "labelSelector"], _NO_AUTHORIZER),
    **dict.fromkeys(["validate", "format.named"], "named formats are not supported in selectors; use matches()"),
    "format": "format() is not supported in selectors; join strings with +",
    "type": "comparing types costs more than the API server allows",
}  # fmt: skip

_TYPE = re.compile(r"(?P<name>[A-Za-z]+)(?:\((?P<inside>.*)\))?")


def _split_types(text: str) -> list[str]:
    """The types in a list of them, split at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for character in text.replace(" ", ""):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]


def _read_type(text: str) -> t.Type:
    match = _TYPE.fullmatch(text)
    assert match is not None, text  # noqa: S101  (a row of the table above is misspelt)
    if len(match["name"]) == 1:
        return t.parameter(match["name"])
    return t.Type(match["name"], tuple(map(_read_type, _split_types(match["inside"] or ""))))


_METHOD = re.compile(r"(bool|bytes|string|Quantity|Semver|(?:list|map|optional)\(.*?\)+)\.(@?\w+)\((.*)\)")


def _read(row: tuple[str, Implementation]) -> Overload:
    signature, implementation = row
    spends = signature.startswith("! ")
    call, _, result = signature.removeprefix("! ").rpartition(" -> ")
    method = _METHOD.fullmatch(call)
    if method is not None:
        name, types = method[2], [method[1], *_split_types(method[3])]
    else:
        name, _, inside = call.removesuffix(")").partition("(")
        types = _split_types(inside)
    return Overload(name, method is not None, tuple(map(_read_type, types)), _read_type(result), implementation, spends)


OVERLOADS: dict[str, list[Overload]] = {}
for _overload in map(_read, _ROWS):
    OVERLOADS.setdefault(_overload.name, []).append(_overload)
