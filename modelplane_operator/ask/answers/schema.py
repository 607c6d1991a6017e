"""Convert answers to documents for programs and back. Fields of dataclasses get names as in Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from types import UnionType
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

SCHEMA: Final = "cli.modelplane.ai/v1"
"""API version of the documents. Fields may be added, but never renamed or removed."""


def document(kind: str, value: Any) -> dict[str, Any]:
    """Return a dataclass, or a sequence of them as `items`, as a document."""
    return {"apiVersion": SCHEMA, "kind": kind, **plain(value if is_dataclass(value) else {"items": value})}


def read(kind: type[T], document: Any) -> T:
    """Return the dataclass of a document. Unknown fields are ignored."""
    return cast(T, _parse(kind, document))


def plain(value: Any) -> Any:
    """Return a value in the form of JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain({_camel_case(item.name): getattr(value, item.name) for item in fields(value)})
    match value:
        case dict():
            return {str(name): plain(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list() | tuple():
            return [plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case datetime():
            return value.isoformat()
        case _:
            return value


def _camel_case(name: str) -> str:
    """Return a field's name in camel case."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _parse(kind: Any, value: Any) -> Any:
    """Return a value of the given type from JSON."""
    if isinstance(kind, UnionType):
        return None if value is None else _parse(next(item for item in get_args(kind) if item is not type(None)), value)
    if get_origin(kind) is tuple:
        return tuple(_parse(get_args(kind)[0], item) for item in value or ())
    if is_dataclass(kind):
        data, hints = cast(Mapping[str, Any], value), get_type_hints(kind)
        values = {item.name: data.get(_camel_case(item.name)) for item in fields(kind)}
        return cast(Any, kind)(**{name: _parse(hints[name], item) for name, item in values.items()})
    return datetime.fromisoformat(value) if kind is datetime else value
