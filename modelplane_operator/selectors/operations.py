"""Functions on numbers, texts, quantities, versions and optionals.

Each raises EvaluationError where CEL has no result. Functions whose work grows with their arguments take `charge`
first, and charge for the work before they do it.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from modelplane_operator.selectors import quantity, semver
from modelplane_operator.selectors.quantity import Quantity
from modelplane_operator.selectors.semver import Semver
from modelplane_operator.selectors.values import (
    INT64_MAX,
    INT64_MIN,
    NOTHING,
    UINT64_MAX,
    Charge,
    EvaluationError,
    Optional,
    UInt,
    order,
)

Implementation: TypeAlias = Callable[..., Any]
"""Function of a row in `functions`. It takes the arguments, and `charge` before them if the row begins with `!`."""
Items: TypeAlias = tuple[Any, ...]
"""Elements of a list."""

# Maximum number of characters or elements of a computed string or list.
MAX_SIZE = 65_536


def check_size(count: int) -> None:
    """Raise EvaluationError if a computed value would be too large."""
    if count > MAX_SIZE:
        raise EvaluationError(f"a computed value has more than {MAX_SIZE} elements")


# --- numbers ---


def int_of_64_bits(value: int) -> int:
    """Return the number. Raise EvaluationError if it overflows."""
    if INT64_MIN <= value <= INT64_MAX:
        return value
    raise EvaluationError("the number overflows 64 bits")


def uint_of_64_bits(value: int) -> UInt:
    """Return the unsigned number. Raise EvaluationError if it overflows."""
    if 0 <= value <= UINT64_MAX:
        return UInt(value)
    raise EvaluationError("the unsigned number overflows 64 bits")


def quotient(a: int, b: int) -> int:
    """Return the quotient, rounded toward zero."""
    if b == 0:
        raise EvaluationError("division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    """Return the remainder, whose sign is that of the dividend, as in Go."""
    return a - b * quotient(a, b)


def float_quotient(a: float, b: float) -> float:
    """Return the quotient by IEEE 754, also for a zero divisor."""
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)


def _truncation(minimum: float, maximum: float) -> Implementation:
    """Return a conversion from double to integer that rejects values outside of the range."""

    def truncated(value: float) -> int:
        """Return the integer part. Raise EvaluationError for a value out of range."""
        if not minimum <= value <= maximum:  # NaN is outside of every range
            raise EvaluationError("the number overflows 64 bits")
        return int(value)

    return truncated


# The doubles next to the limits; the API server rejects the limits themselves.
int_from_double = _truncation(math.nextafter(-(2.0**63), 0), math.nextafter(2.0**63, 0))
uint_from_double = _truncation(0, math.nextafter(2.0**64, 0))


def parser_of(pattern: str, kind: str, convert: Callable[[str], Any]) -> Implementation:
    """Return a parser that checks the text against a pattern first."""
    form = re.compile(pattern, re.ASCII)

    def parse(text: str) -> Any:
        """Parse a text. Raise EvaluationError if it does not match the pattern."""
        if form.fullmatch(text) is None:
            raise EvaluationError(f'"{text[:40]}" is not {kind}')
        return convert(text)

    return parse


def double_from(text: str) -> float:
    """Return the double of a text. Raise EvaluationError if it is too large."""
    value = float(text)
    if math.isinf(value) and "n" not in text.lower():
        raise EvaluationError(f"{text[:40]} is too large for a double")
    return value


TRUTHS = {**dict.fromkeys(["1", "t", "T", "true", "TRUE", "True"], True),
           **dict.fromkeys(["0", "f", "F", "false", "FALSE", "False"], False)}  # fmt: skip
"""Texts that bool() accepts, those of Go's ParseBool."""


def float_text(value: float) -> str:
    """Return a double as text, in Go's notation."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    # Go prints the fewest digits that still identify the double.
    shortest = next(text for p in range(18) if float(text := f"{value:.{p}e}") == value)
    digits, _, exponent = shortest.partition("e")
    power = int(exponent)
    if -4 <= power < 6:
        places = max(len(digits.lstrip("-").replace(".", "")) - 1 - power, 0)
        return f"{value:.{places}f}"
    return f"{digits}e{'-' if power < 0 else '+'}{abs(power):02d}"


def comparison(accept: Callable[[int], bool]) -> Implementation:
    """Return the implementation of a comparison operator."""

    def compare(a: Any, b: Any) -> bool:
        """Compare two values. Raise EvaluationError for NaN."""
        outcome = order(a, b)
        if outcome is None:
            raise EvaluationError("NaN cannot be ordered")
        return accept(outcome)

    return compare


# --- strings ---


def position(text: str | Items, index: int, *, end: int) -> int:
    """Return an index. Raise EvaluationError if it is out of range."""
    if not 0 <= index <= end:
        raise EvaluationError(f"index {index} is out of range: the size is {len(text)}")
    return index


def index_of(text: str, part: str, start: int = 0) -> int:
    """Return the index of the first occurrence from `start` on, or -1."""
    if not part:
        return start
    return -1 if start >= len(text) else text.find(part, position(text, start, end=len(text)))


def last_index_of(text: str, part: str, start: int | None = None) -> int:
    """Return the index of the last occurrence that begins at `start` or before, or -1."""
    if start is None:
        return text.rfind(part)
    if not part:
        return start
    return -1 if start >= len(text) else text.rfind(part, 0, position(text, start, end=len(text)) + len(part))


def replace(charge: Charge, text: str, old: str, new: str, count: int = -1) -> str:
    """Replace up to `count` occurrences, all if it is negative."""
    occurrences = text.count(old)
    occurrences = occurrences if count < 0 else min(occurrences, count)
    size = len(text) + occurrences * max(len(new) - len(old), 0)
    check_size(size)
    charge(by_text(size))
    return text.replace(old, new, count)


def split(charge: Charge, text: str, separator: str, count: int = -1) -> Items:
    """Split a text into at most `count` parts, all if it is negative."""
    charge(by_text(len(text)))
    if count in (0, 1):
        return (text,) if count else ()
    if not separator:
        characters = list(text)
        return tuple(characters if count < 0 else [*characters[: count - 1], *filter(None, [text[count - 1 :]])])
    return tuple(text.split(separator, -1 if count < 0 else count - 1))


def substring(text: str, start: int, end: int | None = None) -> str:
    """Return the characters from `start` up to, but not including, `end`. Raise EvaluationError for invalid indices."""
    if end is None:
        return text[position(text, start, end=len(text)) :]
    if start > end:
        raise EvaluationError(f"the substring from {start} to {end} has no length")
    return text[position(text, start, end=len(text)) : position(text, end, end=len(text))]


def join(charge: Charge, items: Items, separator: str = "") -> str:
    """Join strings. Raise EvaluationError for other types."""
    if not all(type(item) is str for item in items):
        raise EvaluationError("join() needs strings")
    size = sum(map(len, items)) + len(separator) * len(items)
    check_size(size)
    charge(by_text(size))
    return separator.join(items)


def case(shift: str) -> Implementation:
    """Return a function that converts ASCII letters only."""
    ascii_only = {ord(c): ord(getattr(c, shift)()) for c in map(chr, range(128))}

    def shifted(text: str) -> str:
        return text.translate(ascii_only)

    return shifted


QUOTED = str.maketrans({"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v",
                         "\\": r"\\", '"': r"\""})  # fmt: skip
"""Escapes that strings.quote() writes."""
SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""Characters that trim() removes: Unicode's white space according to Go."""


def by_text(characters: int) -> int:
    """Return the steps to charge for so many characters: Python copies a text much faster than it runs a closure."""
    return 1 + characters // 64


# --- quantities, versions, optionals ---


def read_quantity(text: str) -> Quantity:
    """Parse a quantity. Raise EvaluationError if it is invalid."""
    try:
        return quantity.parse(text)
    except quantity.QuantityError as error:
        raise EvaluationError(str(error)) from None


def is_quantity(text: str) -> bool:
    """True if the text is a quantity."""
    try:
        quantity.parse(text)
    except quantity.QuantityError:
        return False
    return True


def as_integer(value: Quantity) -> int:
    """Return a quantity as an integer. Raise EvaluationError if Kubernetes would not convert it."""
    number = value.as_integer()
    if number is None:
        raise EvaluationError(f"{value} is not an integer of 64 bits")
    return number


def pieces(number: int) -> Quantity:
    """Return an integer as a quantity, in the notation with exponents."""
    return Quantity(number, 0, quantity.Suffixes.EXPONENT)


def read_semver(text: str, normalize: bool = False) -> Semver:  # noqa: FBT001, FBT002  (CEL passes it by position)
    """Parse a version. Raise EvaluationError if it is invalid."""
    try:
        return semver.parse(text, normalize=normalize)
    except semver.SemverError as error:
        raise EvaluationError(str(error)) from None


def is_semver(text: str, normalize: bool = False) -> bool:  # noqa: FBT001, FBT002
    """True if the text is a version."""
    try:
        semver.parse(text, normalize=normalize)
    except semver.SemverError:
        return False
    return True


def value(optional: Optional) -> Any:
    """Return the value of an optional. Raise EvaluationError if it is absent."""
    if not optional.present:
        raise EvaluationError("the optional has no value")
    return optional.value


def of_non_zero(value: Any) -> Optional:
    """Return an optional that is absent for null, zero and empty values."""
    zero = value is None or (isinstance(value, bool | int | float | str | bytes | tuple | Mapping) and not value)
    return NOTHING if zero else Optional(present=True, value=value)


def unwrap(items: Items) -> Items:
    """Return the values of the optionals that are present."""
    if not all(isinstance(item, Optional) for item in items):
        raise EvaluationError("only optional values can be unwrapped")
    return tuple(item.value for item in items if item.present)


def some(value: Any) -> Optional:
    """Return a present optional."""
    return Optional(present=True, value=value)


def itself(value: Any) -> Any:
    """Return the argument, as conversions to the same type do."""
    return value


def decode_text(value: bytes) -> str:
    """Decode UTF-8. Raise EvaluationError for invalid bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvaluationError("the bytes are not UTF-8") from None
