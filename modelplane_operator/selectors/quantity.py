"""Kubernetes quantities: `80Gi`, `1.5k`, `100m`, `2e3`.

A quantity is exactly `number * 10**exponent`. Two properties of Kubernetes' representation are visible to selectors, so
they are stored: whether it fits the narrow form (64 bits, not finer than nano), since only that converts to an integer,
and the family of suffixes for printing.
"""

import enum
import re
from dataclasses import dataclass

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
NANO = -9
"""Exponent of the finest unit; Kubernetes rounds anything finer, away from zero."""

# No device has a larger capacity, and arithmetic would take memory in proportion to 10**exponent.
MAX_EXPONENT = 100
MAX_DIGITS = 100

_NUMBER_AND_SUFFIX = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?P<point>\.?)(?P<fraction>[0-9]*)(?P<suffix>[A-Za-z]*|[eE][+-]?[0-9]+)", re.ASCII
)
_BINARY_SHIFT = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
"""Powers of two by binary suffix."""
_DECIMAL_EXPONENT = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
"""Powers of ten by decimal suffix."""

# Digits of the narrow form: in decimal, and with a binary suffix (which costs about 3 digits per 10 bits).
_NARROW_DIGITS = 18
_NARROW_DIGITS_BINARY = {10: 11, 20: 8, 30: 5, 40: 2, 50: -1, 60: -4}


class Suffixes(enum.Enum):
    """The family of suffixes with which a quantity was written and is printed."""

    BINARY = "binary"
    """Powers of 1024: `Ki`, `Mi` and so on."""
    DECIMAL = "decimal"
    """Powers of 1000: `m`, `k`, `M` and so on, or none."""
    EXPONENT = "exponent"
    """Scientific notation: `2e3`."""


class QuantityError(ValueError):
    """The text is not a quantity. The message is for users."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A number of bytes, cores or pieces, compared by value regardless of the notation."""

    number: int
    """Exact integer factor."""
    exponent: int
    """Power of ten."""
    suffixes: Suffixes = Suffixes.DECIMAL
    """Family of suffixes for printing."""
    narrow: bool = True
    """True if the value fits 64 bits and is not finer than nano."""

    def compare(self, other: "Quantity") -> int:
        """Return -1, 0 or 1 when this is less than, equal to or more than the other."""
        own_number, other_number, _ = _align(self, other)
        return (own_number > other_number) - (own_number < other_number)

    def __eq__(self, other: object) -> bool:
        """True if both have the same value: `1Gi` equals `1024Mi`."""
        return isinstance(other, Quantity) and self.compare(other) == 0

    def __lt__(self, other: "Quantity") -> bool:
        return self.compare(other) < 0

    def __hash__(self) -> int:
        """Return a hash of the value, which equal quantities share regardless of their exponents."""
        return hash(_without_trailing_zeros(self.number, self.exponent))

    def __add__(self, other: "Quantity") -> "Quantity":
        """Add exactly. The result is narrow if both operands are, and it fits."""
        own_number, other_number, exponent = _align(self, other)
        suffixes = self.suffixes if self.number else other.suffixes
        if not self.number or not other.number:
            # Adding zero keeps the other's form. isInteger() can observe that the form stays narrow.
            nonzero = self if self.number else other
            return Quantity(nonzero.number, nonzero.exponent, suffixes, narrow=self.narrow and other.narrow)
        fits = all(INT64_MIN <= n <= INT64_MAX for n in (own_number, other_number, own_number + other_number))
        return Quantity(own_number + other_number, exponent, suffixes, narrow=self.narrow and other.narrow and fits)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return self + Quantity(-other.number, other.exponent, other.suffixes, other.narrow)

    @property
    def sign(self) -> int:
        """Return -1, 0 or 1."""
        return (self.number > 0) - (self.number < 0)

    def as_integer(self) -> int | None:
        """Return the value as a 64-bit integer; None if Kubernetes would not convert it (also `1.0` and `100000Gi`)."""
        if not self.narrow or self.exponent < 0:
            return None
        value = self.number * 10**self.exponent
        return value if INT64_MIN <= value <= INT64_MAX else None

    def as_float(self) -> float:
        """Return the value as a double, with Kubernetes' rounding."""
        return float(self.number) * float(f"1e{self.exponent}") if self.exponent else float(self.number)

    def __str__(self) -> str:
        """Return the canonical text: the largest suffix that leaves no fraction."""
        if not self.number:
            return "0"
        number, exponent = _without_trailing_zeros(self.number, self.exponent)
        if self.suffixes is Suffixes.BINARY and exponent >= 0 and abs(number * 10**exponent) >= 1024:
            return _format_binary(number * 10**exponent)
        number, exponent = number * 10 ** (exponent % 3), exponent - exponent % 3
        if self.suffixes is Suffixes.EXPONENT:
            return f"{number}e{exponent}" if exponent else str(number)
        suffix = next((s for s, e in _DECIMAL_EXPONENT.items() if e == exponent), None)
        return f"{number}{suffix}" if suffix is not None else f"{number}e{exponent}"


def parse(text: str) -> Quantity:
    """Parse a quantity as Kubernetes does.

    Raise QuantityError for a text that Kubernetes rejects, for a suffix without a number (which Kubernetes reads as 0),
    and for more than MAX_DIGITS digits or an exponent beyond MAX_EXPONENT.
    """
    match = _NUMBER_AND_SUFFIX.fullmatch(text)
    if match is None or not (match["whole"] or match["fraction"]):
        raise QuantityError(f"{_shorten(text)} is not a quantity: write a number with a suffix, such as 79Gi or 1.5k")
    whole, fraction, suffix = match["whole"].lstrip("0"), match["fraction"], match["suffix"]
    negative = match["sign"] == "-"
    if len(whole) + len(fraction) > MAX_DIGITS:
        raise QuantityError(f"{_shorten(text)} is not a usable quantity: it has more than {MAX_DIGITS} digits")
    digits = int((whole or "0") + fraction)
    if suffix in _BINARY_SHIFT:
        return _parse_binary(whole, fraction, _BINARY_SHIFT[suffix], digits, negative=negative)
    if suffix in _DECIMAL_EXPONENT:
        exponent, suffixes = _DECIMAL_EXPONENT[suffix], Suffixes.DECIMAL
    elif suffix[0] in "eE" and len(suffix) > 1 and not suffix[1:].isalpha():
        exponent, suffixes = _parse_exponent(suffix[1:], text), Suffixes.EXPONENT
    else:
        suffix_list = ", ".join([*_BINARY_SHIFT, *filter(None, _DECIMAL_EXPONENT)])
        raise QuantityError(f"{_shorten(text)} is not a quantity: {suffix} is none of the suffixes {suffix_list}")
    exponent -= len(fraction)
    signed = -digits if negative else digits
    if max(len(whole), 1) + len(fraction) <= _NARROW_DIGITS and exponent >= NANO:
        return Quantity(signed, exponent, suffixes)
    return Quantity(*_round_to_nano(signed, exponent), suffixes, narrow=False)


def _parse_binary(integer: str, fraction: str, shift: int, digits: int, *, negative: bool) -> Quantity:
    """Return a quantity with a binary suffix. It saturates at 64 bits, as in Kubernetes."""
    sign = -1 if negative else 1
    if not fraction and max(len(integer), 1) <= _NARROW_DIGITS_BINARY[shift] and digits << shift <= INT64_MAX:
        return Quantity(sign * (digits << shift), 0, Suffixes.BINARY)
    number, exponent = _round_to_nano(digits << shift, -len(fraction))
    if number > INT64_MAX * 10**-exponent:
        number, exponent = INT64_MAX, 0  # binary quantities saturate, decimal ones do not
    return Quantity(sign * number, exponent, Suffixes.BINARY, narrow=False)


def _parse_exponent(text: str, quantity: str) -> int:
    """Return the exponent of scientific notation. Raise QuantityError beyond the limit."""
    # The length is checked first, since converting a thousand digits takes time.
    exponent = int(text) if len(text.lstrip("+-0")) <= len(str(MAX_EXPONENT)) else MAX_EXPONENT + 1
    if abs(exponent) > MAX_EXPONENT:
        raise QuantityError(f"{_shorten(quantity)} is not a usable quantity: its exponent is beyond {MAX_EXPONENT}")
    return exponent


def _round_to_nano(number: int, exponent: int) -> tuple[int, int]:
    """Return the value in billionths, rounded away from zero."""
    if not number:
        return 0, min(exponent, 0)
    if exponent >= NANO:
        return number * 10 ** (exponent - NANO), NANO
    quotient, remainder = divmod(abs(number), 10 ** (NANO - exponent))
    rounded = quotient + bool(remainder)
    return (rounded if number > 0 else -rounded), NANO


def _align(first: Quantity, second: Quantity) -> tuple[int, int, int]:
    """Return the numbers of two quantities for their common exponent, and the exponent."""
    exponent = min(first.exponent, second.exponent)
    return (
        first.number * 10 ** (first.exponent - exponent),
        second.number * 10 ** (second.exponent - exponent),
        exponent,
    )


def _without_trailing_zeros(number: int, exponent: int) -> tuple[int, int]:
    """Return the unique form of a value: the smallest number, with the largest exponent."""
    if not number:
        return 0, 0
    while number % 10 == 0:
        number, exponent = number // 10, exponent + 1
    return number, exponent


def _format_binary(value: int) -> str:
    """Return a number with the largest binary suffix that leaves no fraction."""
    power = 0
    suffixes = ["", *_BINARY_SHIFT]
    while value % 1024 == 0 and power < len(suffixes) - 1:
        value, power = value // 1024, power + 1
    return f"{value}{suffixes[power]}"


def _shorten(text: str, limit: int = 40) -> str:
    """Return a text in quotes, cut to so many characters."""
    return f'"{text}"' if len(text) <= limit else f'"{text[:limit]}..."'
