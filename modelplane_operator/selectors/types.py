"""The static types of selectors, and the rule that makes one assignable to another.

`assignable` is CEL's rule: `dyn` and `any` are assignable to everything, type parameters are bound on the way (and
widened when a later use is more general), and `null` is assignable to the types that the API server's library calls
nullable.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from modelplane_operator.selectors.values import UInt


@dataclass(frozen=True, slots=True)
class Type:
    """A type by name, with parameters for list, map and optional."""

    name: str
    """CEL's name of the type, or the name of a type parameter."""
    parameters: "tuple[Type, ...]" = ()
    """Types of elements, keys and values; empty for others."""
    is_parameter: bool = False
    """True for a type parameter, which the check binds to a type."""

    def __str__(self) -> str:
        """Return the type as messages name it."""
        if self.is_parameter:
            return "anything"
        return f"{self.name}({', '.join(map(str, self.parameters))})" if self.parameters else self.name


DYN, ANY = Type("dyn"), Type("any")
BOOL, INT, UINT, DOUBLE = Type("bool"), Type("int"), Type("uint"), Type("double")
STRING, BYTES, NULL = Type("string"), Type("bytes"), Type("null")
QUANTITY, SEMVER, DEVICE = Type("Quantity"), Type("Semver"), Type("Device")
_NULLABLE = frozenset({"Quantity", "Semver", "Device", "optional"})
"""Types to which `null` is assignable."""


def list_of(element: Type) -> Type:
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("optional", (value,))


def parameter(name: str) -> Type:
    return Type(name, is_parameter=True)


DEVICE_FIELDS: Mapping[str, Type] = {
    "driver": STRING,
    "allowMultipleAllocations": BOOL,
    "attributes": map_of(STRING, map_of(STRING, ANY)),
    "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
}
"""Fields of the variable `device`."""

Bindings: TypeAlias = Mapping[Type, Type]
"""Types bound to type parameters. A bound type can itself contain bound parameters."""


def is_dynamic(type_: Type) -> bool:
    """True if the type is only known at evaluation."""
    return type_ in (DYN, ANY)


def is_concrete(type_: Type) -> bool:
    """True if a value of this type has no other type at evaluation. Elements of lists and maps do not matter."""
    return not is_dynamic(type_) and not type_.is_parameter and type_ != NULL


def assignable(bindings: Bindings, froms: Iterable[Type], tos: Iterable[Type]) -> Bindings | None:
    """Return the bindings with which each of the first types is assignable to its partner; None if there are none."""
    # A copy: an overload that does not fit must leave no bindings.
    attempt = dict(bindings)
    return attempt if all(_is_assignable(attempt, a, b) for a, b in zip(froms, tos, strict=True)) else None


def substitute(bindings: Bindings, type_: Type, *, free: Type | None = None) -> Type:
    """Replace bound type parameters in a type, and unbound ones by `free` if it is given."""
    if type_.is_parameter:
        if type_ in bindings:
            return substitute(bindings, bindings[type_], free=free)
        return free or type_
    if not type_.parameters:
        return type_
    return Type(type_.name, tuple(substitute(bindings, p, free=free) for p in type_.parameters))


def most_general(first: Type, second: Type) -> Type:
    """Return the more general of two types that are assignable to each other."""
    return first if _is_more_general(first, second) else second


def _is_assignable(bindings: dict[Type, Type], a: Type, b: Type) -> bool:
    """True if `a` is assignable to `b`. Type parameters are bound on the way."""
    if b.is_parameter:
        bound = b in bindings
        if _bind_parameter(bindings, a, b):
            return True
        if bound:
            return False
    if a.is_parameter:
        return _bind_parameter(bindings, b, a)
    if is_dynamic(a) or is_dynamic(b):
        return True
    if NULL in (a, b):
        return a == b or (b if a == NULL else a).name in _NULLABLE
    same = a.name == b.name and len(a.parameters) == len(b.parameters)
    return same and all(_is_assignable(bindings, x, y) for x, y in zip(a.parameters, b.parameters, strict=True))


def _bind_parameter(bindings: dict[Type, Type], type_: Type, variable: Type) -> bool:
    """Bind a type parameter to a type, or widen its binding. Return False if it is not possible."""
    if type_ == variable:
        return True
    bound = bindings.get(variable)
    if bound is None:
        if _occurs(bindings, variable, type_):
            return False
        bindings[variable] = type_
        return True
    if type_ == bound:
        return True
    if not _is_assignable(bindings, type_, bound):
        return False
    general = most_general(type_, bound)
    if not _occurs(bindings, variable, general):
        bindings[variable] = general
    return True


def _occurs(bindings: Bindings, variable: Type, type_: Type) -> bool:
    """True if the type parameter is part of the type, so that binding it would be circular."""
    if variable == type_:
        return True
    if type_.is_parameter:
        return type_ in bindings and _occurs(bindings, variable, bindings[type_])
    return any(_occurs(bindings, variable, p) for p in type_.parameters)


def _is_more_general(first: Type, second: Type) -> bool:
    """True if the first type is at least as general as the second."""
    if is_dynamic(first) or first.is_parameter:
        return True
    if is_dynamic(second) or second.is_parameter:
        return False
    if first.name != second.name or len(first.parameters) != len(second.parameters):
        return False
    return all(_is_more_general(x, y) for x, y in zip(first.parameters, second.parameters, strict=True))


def parameters_of(type_: Type) -> Iterable[Type]:
    """Yield the type parameters within a type."""
    if type_.is_parameter:
        yield type_
    for parameter in type_.parameters:
        yield from parameters_of(parameter)


def unwrap_optional(type_: Type) -> tuple[Type, bool]:
    """Return the type within an optional, and True; another type unchanged, and False."""
    wrapped = type_.name == "optional" and not type_.is_parameter
    return (type_.parameters[0], True) if wrapped else (type_, False)


def element_types(range_: Type, *, two: bool) -> tuple[Type, ...]:
    """Return the types of a macro's variables over a list or map."""
    match range_.name, range_.parameters:
        case "list", (element,):
            return (INT, element) if two else (element,)
        case "map", (key, value):
            return (key, value) if two else (key,)
        case _:
            return (DYN, DYN) if two else (DYN,)


LITERAL_TYPES: dict[type, Type] = {
    bool: BOOL,
    int: INT,
    UInt: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    type(None): NULL,
}
"""Static types by Python type of a literal."""
TYPE_NAMES = frozenset({"bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type", "dyn"})
"""Names of types, which CEL also accepts as values."""
KEYS = frozenset({"bool", "int", "uint", "double", "string"})
"""Types that the keys of a map can have."""
