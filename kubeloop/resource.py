"""A resource: an object of one of our kinds, and the facts a CustomResourceDefinition needs about its kind."""

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
    """Whether only `-o wide` shows it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where `kubectl scale` and autoscalers read and write."""

    replicas: str
    observed: str
    selector: str


@dataclass(frozen=True, slots=True)
class Definition:
    """What a CustomResourceDefinition says beside the schema."""

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


_BOUNDS = frozenset({"min_length", "max_length", "pattern", "ge", "le"})


def parse_stored(model: type[M], value: Mapping[str, Any]) -> M:
    """Read an object, or a part of one, as the API server stores it, be it from before the bounds of today."""
    return cast(M, _unbounded(model).validate_python(value))


@cache
def _unbounded(model: type[Model]) -> SchemaValidator:
    """A validator of a model that holds no value to a bound."""
    # The models within would otherwise be read by their own validators, which know the bounds.
    return SchemaValidator(_without_bounds(model.__pydantic_core_schema__), _use_prebuilt=False)


def _without_bounds(schema: Any) -> Any:
    match schema:
        case {"type": str(), **rest}:
            return {"type": schema["type"]} | {
                name: _without_bounds(part) for name, part in rest.items() if name not in _BOUNDS
            }
        case dict():
            return {name: _without_bounds(part) for name, part in cast(dict[str, Any], schema).items()}
        case list():
            return [_without_bounds(part) for part in cast(list[Any], schema)]
        case _:
            return schema


class WrongKindError(ValueError):
    """An object of another kind was given to be read as this one."""


class Status(Model):
    """What a kind reports beside its conditions is added by the kind."""

    conditions: Annotated[tuple[Condition, ...], list_map("type")] = ()
    """What is true of this object now, one entry per aspect; `kubectl wait --for=condition=Ready` reads these."""


class SummarizedStatus(Status):
    summary: Annotated[str, Field(max_length=SUMMARY_LENGTH)] | None = None
    """What is, in a sentence: figures, and the reasons of Synced and Ready where these are not true. It stays while
    nothing changes."""


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
        """The type is the class: check it, and keep it out of the fields."""
        if not isinstance(given, Mapping):
            return given  # pydantic says what is wrong with it
        manifest: dict[str, Any] = dict(given)  # pyright: ignore[reportUnknownArgumentType]
        wanted = (cls.definition.api_version, cls.definition.kind)
        found = (manifest.pop("apiVersion", wanted[0]), manifest.pop("kind", wanted[1]))
        if found != wanted:
            raise WrongKindError(f"this is {found[0]} {found[1]}, not {wanted[0]} {wanted[1]}")
        return manifest

    @classmethod
    def parse(cls, manifest: Manifest) -> Self:
        """Read an object as the API server stores it, be it from before the bounds of today: else it could not go."""
        return parse_stored(cls, manifest)

    @classmethod
    def admitted(cls, manifest: Manifest) -> Self:
        """Read an object that keeps to the bounds of its kind; raises ValidationError."""
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
    """Return the type of the objects that a model describes."""
    known = kind.definition
    return ResourceType(known.api_version, known.kind, known.plural, known.scope == "Namespaced")
