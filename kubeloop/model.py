"""The base of API types: a frozen pydantic model, with schema keywords that pydantic does not know.

One declaration serves three purposes: pydantic parses objects with it, `crd.py` renders the CustomResourceDefinition
from it, and `reference.py` writes the documentation from it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from textwrap import dedent
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from kubeloop.objects import Manifest


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL validation rule: an expression that must hold, and the message when it does not."""

    expression: str
    message: str
    field: str = ""
    """The field below the validated one that the rejection names."""
    is_missing_field: bool = False
    """True if the rule is violated because that field is missing."""
    telling: str = ""
    """An expression for a message with more detail than `message`, such as the name of the item in question."""
    optional_old: bool = False
    """True if `oldSelf` is an optional, which is empty when the object is created."""

    def to_manifest(self) -> Manifest:
        return {
            "rule": self.expression,
            "message": self.message,
            **({"messageExpression": self.telling} if self.telling else {}),
            **({"fieldPath": f".{self.field}"} if self.field else {}),
            **({"reason": "FieldValueRequired"} if self.is_missing_field else {}),
            **({"optionalOldSelf": True} if self.optional_old else {}),
        }


def require(field: str, unless: str, message: str) -> Rule:
    """Return a rule that requires a field unless the expression `unless` holds."""
    return Rule(f"{unless} || has(self.{field})", message, field=field, is_missing_field=True)


@dataclass(frozen=True, slots=True)
class Extra:
    """Schema keywords that pydantic does not know, for one field, list item or map value."""

    keywords: Mapping[str, Any]

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> Manifest:
        return {**handler(core_schema), **self.keywords}


def must(*rules: Rule) -> Extra:
    """Return the keywords for rules on the value of one field. Rules on a full object are its model's `rules`."""
    return Extra({"x-kubernetes-validations": [rule.to_manifest() for rule in rules]})


def list_map(*keys: str) -> Extra:
    """Return the keywords for a list with these keys: duplicates are rejected, and server-side apply merges by item."""
    return Extra({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)})


ATOMIC = Extra({"x-kubernetes-list-type": "atomic"})
"""A list that server-side apply replaces as one value."""
AT_LEAST_ONE_PROPERTY = Extra({"minProperties": 1})
"""An object that must not be empty."""


def _complete_schema(schema: Manifest, model: type[Model]) -> None:
    """Add the CEL rules and field descriptions, which pydantic leaves out, to a schema."""
    if model.rules:
        schema["x-kubernetes-validations"] = [rule.to_manifest() for rule in model.rules]
    descriptions = {
        name: description for base in reversed(model.__mro__) for name, description in _field_descriptions(base).items()
    }
    for name, field in model.model_fields.items():
        if name in descriptions:
            schema["properties"][field.alias or name]["description"] = descriptions[name]


@cache
def _field_descriptions(model: type) -> Mapping[str, str]:
    """Return the docstrings below the fields of a class.

    Pydantic can do this too, but does it for every class at import time.
    """
    if not issubclass(model, Model) or model.__pydantic_generic_metadata__["origin"]:
        return {}
    definition = cast(ast.ClassDef, ast.parse(dedent(getsource(model))).body[0])
    descriptions: dict[str, str] = {}
    for field, text in pairwise(definition.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                descriptions[name] = cleandoc(docstring)
            case _:
                pass
    return descriptions


class Model(BaseModel):
    """A frozen part of the API. An absent optional field is `None` (a list: empty), and stays absent when written.

    Unknown fields are ignored, so that objects stored by a newer version can be parsed; the API server rejects unknown
    fields of users. The docstring of a field is its description, also for `kubectl explain`.
    """

    model_config = ConfigDict(
        defer_build=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        frozen=True,
        json_schema_extra=_complete_schema,  # pyright: ignore[reportArgumentType]  # pydantic types the model too loosely
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    def to_manifest(self) -> Manifest:
        """Return the object in its JSON form, with only the fields that were set.

        Defaults stay out: the API server fills them in, and a user's object comes back unchanged.
        """
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
