"""Answers as documents for programs, and back: the fields of our dataclasses, named as Kubernetes names fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from types import UnionType
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

SCHEMA: Final = "cli.modelplane.ai/v1"
"""Fields are added, and never renamed or removed."""


def document(kind: str, value: Any) -> dict[str, Any]:
    """A dataclass, or several as `items`."""
    return {"apiVersion": SCHEMA, "kind": kind, **plain(value if is_dataclass(value) else {"items": value})}


def read(kind: type[T], said: Any) -> T:
    """The dataclass of which that is the document; what this version does not know is passed over."""
    return cast(T, _read(kind, said))


def plain(value: Any) -> Any:
    """What JSON has for it."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain({_camel(one.name): getattr(value, one.name) for one in fields(value)})
    match value:
        case dict():
            return {str(name): plain(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list() | tuple():
            return [plain(one) for one in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case datetime():
            return value.isoformat()
        case _:
            return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _read(kind: Any, said: Any) -> Any:
    if isinstance(kind, UnionType):
        return None if said is None else _read(next(one for one in get_args(kind) if one is not type(None)), said)
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], one) for one in said or ())
    if is_dataclass(kind):
        given, hints = cast(Mapping[str, Any], said), get_type_hints(kind)
        named = {one.name: given.get(_camel(one.name)) for one in fields(kind)}
        return cast(Any, kind)(**{name: _read(hints[name], one) for name, one in named.items()})
    return datetime.fromisoformat(said) if kind is datetime else said
