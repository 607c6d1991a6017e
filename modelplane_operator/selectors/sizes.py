"""How large the value of an expression may be, by what the API server declares, and what it costs."""

import math
from dataclasses import dataclass
from typing import TypeAlias

from modelplane_operator.selectors import types as t

BOUNDLESS = 2**64 - 1
MAKE_LIST, MAKE_MAP = 10, 30  # what making one costs
_SCALARS = frozenset({"bool", "int", "uint", "double"})
TEXTS = frozenset({"string", "bytes"})


@dataclass(frozen=True, slots=True)
class Size:
    """How many characters, elements or entries a value may have."""

    least: int
    most: int

    def __or__(self, other: "Size") -> "Size":
        return Size(min(self.least, other.least), max(self.most, other.most))

    def __add__(self, other: "Size") -> "Size":
        return Size(capped(self.least + other.least), capped(self.most + other.most))

    def __mul__(self, other: "Size") -> "Size":
        return Size(capped(self.least * other.least), capped(self.most * other.most))

    def cost(self, each: float) -> int:
        """What going through it costs at most, at so much for each."""
        return capped(math.ceil(self.most * each))


UNKNOWN = Size(0, BOUNDLESS)
TRAVERSAL, REGEX = 0.1, 0.25  # of a character of a text, and of a regular expression


def capped(number: int) -> int:
    return min(number, BOUNDLESS)


@dataclass(frozen=True, slots=True)
class Entries:
    """How large the keys and values of a container are."""

    key: Size
    value: Size

    def __or__(self, other: "Entries") -> "Entries":
        return Entries(self.key | other.key, self.value | other.value)


Path: TypeAlias = tuple[str, ...]
EACH_KEY, EACH_VALUE = "@keys", "@values"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known about an expression: its cost, and how large its value may be."""

    cost: int
    type: t.Type
    size: Size | None = None
    entries: Entries | None = None
    path: Path = ()
    number: int | None = None  # a literal integer's value

    @property
    def bound(self) -> Size:
        """The size as far as it is known: given, declared by the device, or 1 for a scalar."""
        return self.size or declared(self.path) or (Size(1, 1) if _is_scalar(self.type) else UNKNOWN)


# The declared limits, by path: names of fields, or each key or value of a map. Attributes count the same however they
# are reached; a domain's map that is reached by a field instead of an index has no declared size, an oversight of the
# API server's that we share.
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


def declared(path: Path) -> Size | None:
    if len(path) == 4 and path[:3] == ("device", "attributes", EACH_VALUE) and path[3] != EACH_KEY:
        path = (*path[:3], EACH_VALUE)
    most = _DECLARED.get(path)
    return Size(0, most) if most is not None else None


def _is_scalar(type_: t.Type) -> bool:
    return type_.name in _SCALARS or (type_.name == "optional" and _is_scalar(type_.parameters[0]))


def union(sizes: list[Size]) -> Size:
    union = sizes[0] if sizes else Size(0, 0)
    for size in sizes[1:]:
        union |= size
    return union
