"""The base of our kinds: typed objects, and the definition of a kind for its CustomResourceDefinition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, cast

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import SchemaValidator

from kubeloop.condition_types import Condition, ConditionType
from kubeloop.model import Model, list_map
from kubeloop.objects import Key, Manifest
from kubeloop.types import ResourceType

M = TypeVar("M", bound=Model)

SUMMARY_LENGTH = 256

Scope = Literal["Cluster", "Namespaced"]


class OwnerReference(Model):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Metadata(Model):
    """The parts of ObjectMeta that we read; the others are carried along."""

    model_config = ConfigDict(extra="allow")

    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: Literal["string", "integer", "date"] = "string"
    wide: bool = field(default=False)
    """True if the column is shown with `-o wide` only."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The paths that `kubectl scale` and autoscalers read and write."""

    replicas: str
    observed: str
    selector: str


@dataclass(frozen=True, slots=True)
class Definition:
    """The parts of a CustomResourceDefinition besides the schema."""

    kind: str
    group: str
    short: str
    scope: Scope
    columns: tuple[Column, ...] = ()
    conditions: tuple[type[ConditionType], ...] = ()
    scale: Scale | None = None
    version: str = "v1alpha1"
    plural: str = field(init=False)

    def __post_init__(self) -> None:
        singular = self.kind.lower()
        object.__setattr__(self, "plural", f"{singular}es" if singular.endswith("s") else f"{singular}s")

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    @property
    def name(self) -> str:
        return f"{self.plural}.{self.group}"


_BOUND_KEYWORDS = frozenset({"min_length", "max_length", "pattern", "ge", "le"})


def parse_stored(model: type[M], value: Mapping[str, Any]) -> M:
    """Parse an object or a part of one without checking bounds, since it may be older than the current bounds."""
    return cast(M, _lenient_validator(model).validate_python(value))


@cache
def _lenient_validator(model: type[Model]) -> SchemaValidator:
    """Return a validator for a model that checks no bounds."""
    # Prebuilt validators of nested models would check the bounds.
    return SchemaValidator(_without_bounds(model.__pydantic_core_schema__), _use_prebuilt=False)


def _without_bounds(schema: Any) -> Any:
    """Return a core schema without its bounds."""
    match schema:
        case {"type": str(), **rest}:
            return {"type": schema["type"]} | {
                name: _without_bounds(subschema) for name, subschema in rest.items() if name not in _BOUND_KEYWORDS
            }
        case dict():
            return {name: _without_bounds(subschema) for name, subschema in cast(dict[str, Any], schema).items()}
        case list():
            return [_without_bounds(subschema) for subschema in cast(list[Any], schema)]
        case _:
            return schema


class WrongKindError(ValueError):
    """An object of another kind was passed to be parsed as this one."""


class Status(Model):
    """What a kind reports beside its conditions is added by the kind."""

    conditions: Annotated[tuple[Condition, ...], list_map("type")] = ()
    """What is true of this object now, one entry per aspect; `kubectl wait --for=condition=Ready` reads these."""


class SummarizedStatus(Status):
    summary: Annotated[str, Field(max_length=SUMMARY_LENGTH)] | None = None
    """The state in a sentence: figures, and the reasons of Synced and Ready if these are not true."""


Spec_co = TypeVar("Spec_co", bound=Model, covariant=True)
Status_co = TypeVar("Status_co", bound=Status, covariant=True)


class Resource(Model, Generic[Spec_co, Status_co]):
    """An object of one of our kinds. A kind says what its `spec` and `status` are."""

    definition: ClassVar[Definition]

    metadata: Metadata
    spec: Spec_co
    status: Status_co | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_type(cls, given: Any) -> Any:
        """Check and remove apiVersion and kind, which the class stands for."""
        if not isinstance(given, Mapping):
            return given  # pydantic reports the error
        manifest: dict[str, Any] = dict(given)  # pyright: ignore[reportUnknownArgumentType]
        expected = (cls.definition.api_version, cls.definition.kind)
        given_type = (manifest.pop("apiVersion", expected[0]), manifest.pop("kind", expected[1]))
        if given_type != expected:
            raise WrongKindError(f"this is {given_type[0]} {given_type[1]}, not {expected[0]} {expected[1]}")
        return manifest

    @classmethod
    def parse(cls, manifest: Manifest) -> Self:
        """Parse a stored object without checking bounds, which may be newer: else it could not even be deleted."""
        return parse_stored(cls, manifest)

    @classmethod
    def parse_bounded(cls, manifest: Manifest) -> Self:
        """Parse an object that must be within the bounds of its kind; raises ValidationError."""
        return cls.model_validate(manifest)

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace or "", self.metadata.name)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self.status.conditions if self.status else ()

    def to_manifest(self) -> Manifest:
        return {"apiVersion": self.definition.api_version, "kind": self.definition.kind, **super().to_manifest()}


def of(kind: type[Resource[Any, Any]]) -> ResourceType:
    """Return the resource type of the objects that a model describes."""
    definition = kind.definition
    return ResourceType(definition.api_version, definition.kind, definition.plural, definition.scope == "Namespaced")
