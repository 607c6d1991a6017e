"""Sizes and costs of expressions, from the limits that the API server declares."""

import math
from dataclasses import dataclass
from typing import TypeAlias

from modelplane_operator.selectors import types as t

BOUNDLESS = 2**64 - 1
"""Size or cost without a maximum."""
MAKE_LIST, MAKE_MAP = 10, 30  # cost of creating one
_SCALARS = frozenset({"bool", "int", "uint", "double"})
TEXTS = frozenset({"string", "bytes"})


@dataclass(frozen=True, slots=True)
class Size:
    """The range of the number of characters, elements or entries of a value."""

    least: int
    most: int
    """Maximum number; BOUNDLESS if there is none."""

    def __or__(self, other: "Size") -> "Size":
        """Return a range for a value that is one of the two."""
        return Size(min(self.least, other.least), max(self.most, other.most))

    def __add__(self, other: "Size") -> "Size":
        """Return the range of a concatenation."""
        return Size(cap(self.least + other.least), cap(self.most + other.most))

    def __mul__(self, other: "Size") -> "Size":
        """Return the range of a number of pairs."""
        return Size(cap(self.least * other.least), cap(self.most * other.most))

    def cost(self, each: float) -> int:
        """Return the maximum cost of iterating over it, with this cost per element."""
        return cap(math.ceil(self.most * each))


UNKNOWN = Size(0, BOUNDLESS)
"""Size of a value that nothing limits."""
TRAVERSAL, REGEX = 0.1, 0.25  # cost per character of a text, and of a regular expression


def cap(number: int) -> int:
    """Return the number, or BOUNDLESS if it is larger. The API server computes with 64 bits, and saturates."""
    return min(number, BOUNDLESS)


@dataclass(frozen=True, slots=True)
class Entries:
    """The sizes of a container's keys and values."""

    key: Size
    """Size of each key; for a list, that of an index."""
    value: Size
    """Size of each value or element."""

    def __or__(self, other: "Entries") -> "Entries":
        return Entries(self.key | other.key, self.value | other.value)


Path: TypeAlias = tuple[str, ...]
"""Names of fields from `device` on, with EACH_KEY and EACH_VALUE for entries of maps."""
EACH_KEY, EACH_VALUE = "@keys", "@values"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of an expression: its cost, and the size of its value."""

    cost: int
    """Maximum cost of computing the value."""
    type: t.Type
    size: Size | None = None
    """Range of the size, if it is known."""
    entries: Entries | None = None
    """Sizes of keys and values, for a container."""
    path: Path = ()
    """Path of the value within the device; empty if it is not part of it."""
    number: int | None = None  # the value of a literal integer

    @property
    def bound(self) -> Size:
        """Return the size, the limit that the device declares, or 1 for a scalar; otherwise unknown."""
        return self.size or declared_size(self.path) or (Size(1, 1) if _is_scalar(self.type) else UNKNOWN)


# The declared limits, by path: names of fields, or each key or value of a map. Attributes count the same for every kind
# of access. A domain's map that is accessed by a field instead of an index has no declared size, an oversight of the
# API server that is copied here.
_DECLARED: dict[Path, int] = {
    ("device", "driver"): 63,
    ("device", "allowMultipleAllocations"): 1,
    ("device", "attributes"): 32,
    ("device", "attributes", EACH_KEY): 63,
    ("device", "attributes", EACH_VALUE): 32,
    ("device", "attributes", EACH_VALUE, EACH_KEY): 32,
    ("device", "attributes", EACH_VALUE, EACH_VALUE): 64,
    ("device", "capacity"): 32,
    ("device", "capacity", EACH_KEY): 63,
    ("device", "capacity", EACH_VALUE): 32,
    ("device", "capacity", EACH_VALUE, EACH_KEY): 32,
    ("device", "capacity", EACH_VALUE, EACH_VALUE): 0,
}


def declared_size(path: Path) -> Size | None:
    """Return the declared maximum size of a path; None if there is none."""
    if len(path) == 4 and path[:3] == ("device", "attributes", EACH_VALUE) and path[3] != EACH_KEY:
        path = (*path[:3], EACH_VALUE)
    most = _DECLARED.get(path)
    return Size(0, most) if most is not None else None


def _is_scalar(type_: t.Type) -> bool:
    """True for values without a size, and optionals of them."""
    return type_.name in _SCALARS or (type_.name == "optional" and _is_scalar(type_.parameters[0]))


def union(sizes: list[Size]) -> Size:
    """Return the smallest range that contains all sizes; zero without any."""
    union = sizes[0] if sizes else Size(0, 0)
    for size in sizes[1:]:
        union |= size
    return union
