"""The building block of the API: a frozen model, and what pydantic's JSON schema cannot say about one.

One declaration serves three readers: pydantic parses objects with it, `crd.py` renders the
CustomResourceDefinition from it, `reference.py` writes the documentation from it.
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
    """A CEL rule of the API server: the expression that must hold, and what to tell a person when it does not."""

    expression: str
    message: str
    field: str = ""
    """Which field below the one that is judged the refusal names."""
    lacking: bool = False
    """Whether that field is what is missing."""
    telling: str = ""
    """An expression that tells more than `message`: who is meant among many."""
    optional_old: bool = False
    """Whether `oldSelf` is an optional, without a value when the object is created."""

    def to_manifest(self) -> Manifest:
        return {
            "rule": self.expression,
            "message": self.message,
            **({"messageExpression": self.telling} if self.telling else {}),
            **({"fieldPath": f".{self.field}"} if self.field else {}),
            **({"reason": "FieldValueRequired"} if self.lacking else {}),
            **({"optionalOldSelf": True} if self.optional_old else {}),
        }


def needed(field: str, unless: str, message: str) -> Rule:
    """A field that must be there, unless something else holds."""
    return Rule(f"{unless} || has(self.{field})", message, field=field, lacking=True)


@dataclass(frozen=True, slots=True)
class Extra:
    """Schema keywords that pydantic does not know, for one field, list item or map value."""

    keywords: Mapping[str, Any]

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> Manifest:
        return {**handler(core_schema), **self.keywords}


def must(*rules: Rule) -> Extra:
    """Rules over the value of one field; rules over a whole object are its model's `rules`."""
    return Extra({"x-kubernetes-validations": [rule.to_manifest() for rule in rules]})


def list_map(*keys: str) -> Extra:
    """A list whose items are told apart by these keys: duplicates are refused, server-side apply merges by item."""
    return Extra({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)})


ATOMIC = Extra({"x-kubernetes-list-type": "atomic"})
AT_LEAST_ONE_PROPERTY = Extra({"minProperties": 1})


def _complete(schema: Manifest, model: type[Model]) -> None:
    """Add what pydantic leaves out: rules, and the text under each field."""
    if model.rules:
        schema["x-kubernetes-validations"] = [rule.to_manifest() for rule in model.rules]
    texts = {name: text for base in reversed(model.__mro__) for name, text in _texts(base).items()}
    for name, field in model.model_fields.items():
        if name in texts:
            schema["properties"][field.alias or name]["description"] = texts[name]


@cache
def _texts(model: type) -> Mapping[str, str]:
    """The texts under the fields of a class. Pydantic can do this too, but for every class whenever it is imported."""
    if not issubclass(model, Model) or model.__pydantic_generic_metadata__["origin"]:
        return {}
    defined = cast(ast.ClassDef, ast.parse(dedent(getsource(model))).body[0])
    found: dict[str, str] = {}
    for field, text in pairwise(defined.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = cleandoc(words)
            case _:
                pass
    return found


class Model(BaseModel):
    """A frozen piece of the API. An absent optional field is `None` (a list: empty), and stays absent when written.

    Unknown fields are passed over, so that an object stored by a newer version still reads; the API server is what
    refuses a user's unknown field. The text under a field is its description, for `kubectl explain` too.
    """

    model_config = ConfigDict(
        defer_build=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        frozen=True,
        json_schema_extra=_complete,  # pyright: ignore[reportArgumentType]  # pydantic types the model too loosely
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    def to_manifest(self) -> Manifest:
        """This object as Kubernetes reads it: what was given, under its wire names.

        Defaults that nobody gave stay out: the API server fills them in, and a user's object comes back as it was.
        """
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
