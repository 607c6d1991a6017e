"""The static types of selectors and the rule by which one may stand for another.

`assignable` is CEL's: `dyn` and `any` fit everything, type parameters are bound on the way (and widened when a later
use is more general), `null` fits what the API server's library calls nullable.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from modelplane_operator.selectors.values import UInt


@dataclass(frozen=True, slots=True)
class Type:
    """A type by name, with parameters for list, map and optional."""

    name: str
    parameters: "tuple[Type, ...]" = ()
    is_parameter: bool = False

    def __str__(self) -> str:
        if self.is_parameter:
            return "anything"
        return f"{self.name}({', '.join(map(str, self.parameters))})" if self.parameters else self.name


DYN, ANY = Type("dyn"), Type("any")
BOOL, INT, UINT, DOUBLE = Type("bool"), Type("int"), Type("uint"), Type("double")
STRING, BYTES, NULL = Type("string"), Type("bytes"), Type("null")
QUANTITY, SEMVER, DEVICE = Type("Quantity"), Type("Semver"), Type("Device")
_NULLABLE = frozenset({"Quantity", "Semver", "Device", "optional"})


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

Bindings: TypeAlias = Mapping[Type, Type]


def is_dynamic(type_: Type) -> bool:
    """Whether anything may be done with it, to be found out at evaluation."""
    return type_ in (DYN, ANY)


def is_concrete(type_: Type) -> bool:
    """Whether a value of this type can be nothing else at evaluation (lists and maps: whatever they hold)."""
    return not is_dynamic(type_) and not type_.is_parameter and type_ != NULL


def assignable(bindings: Bindings, froms: Iterable[Type], tos: Iterable[Type]) -> Bindings | None:
    """The bindings under which each of the first types may stand for its partner; None when there are none."""
    attempt = dict(bindings)
    return attempt if all(_fits(attempt, a, b) for a, b in zip(froms, tos, strict=True)) else None


def substitute(bindings: Bindings, type_: Type, *, free: Type | None = None) -> Type:
    """The type with its bound parameters replaced, and the unbound ones by `free` when that is given."""
    if type_.is_parameter:
        if type_ in bindings:
            return substitute(bindings, bindings[type_], free=free)
        return free or type_
    if not type_.parameters:
        return type_
    return Type(type_.name, tuple(substitute(bindings, p, free=free) for p in type_.parameters))


def most_general(one: Type, other: Type) -> Type:
    """Of two types that fit each other, the one that says less."""
    return one if _says_less(one, other) else other


def _fits(bindings: dict[Type, Type], a: Type, b: Type) -> bool:
    if b.is_parameter:
        bound = b in bindings
        if _bind(bindings, a, b):
            return True
        if bound:
            return False
    if a.is_parameter:
        return _bind(bindings, b, a)
    if is_dynamic(a) or is_dynamic(b):
        return True
    if NULL in (a, b):
        return a == b or (b if a == NULL else a).name in _NULLABLE
    same = a.name == b.name and len(a.parameters) == len(b.parameters)
    return same and all(_fits(bindings, x, y) for x, y in zip(a.parameters, b.parameters, strict=True))


def _bind(bindings: dict[Type, Type], type_: Type, variable: Type) -> bool:
    """Let the variable stand for the type, or for something more general when it already stands for another."""
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
    if not _fits(bindings, type_, bound):
        return False
    general = most_general(type_, bound)
    if not _occurs(bindings, variable, general):
        bindings[variable] = general
    return True


def _occurs(bindings: Bindings, variable: Type, within: Type) -> bool:
    if variable == within:
        return True
    if within.is_parameter:
        return within in bindings and _occurs(bindings, variable, bindings[within])
    return any(_occurs(bindings, variable, p) for p in within.parameters)


def _says_less(one: Type, other: Type) -> bool:
    if is_dynamic(one) or one.is_parameter:
        return True
    if is_dynamic(other) or other.is_parameter:
        return False
    if one.name != other.name or len(one.parameters) != len(other.parameters):
        return False
    return all(_says_less(x, y) for x, y in zip(one.parameters, other.parameters, strict=True))


def parameters_of(type_: Type) -> Iterable[Type]:
    if type_.is_parameter:
        yield type_
    for parameter in type_.parameters:
        yield from parameters_of(parameter)


def unwrapped(type_: Type) -> tuple[Type, bool]:
    wrapped = type_.name == "optional" and not type_.is_parameter
    return (type_.parameters[0], True) if wrapped else (type_, False)


def element_types(range_: Type, *, two: bool) -> tuple[Type, ...]:
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
TYPE_NAMES = frozenset({"bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type", "dyn"})
KEYS = frozenset({"bool", "int", "uint", "double", "string"})
