"""Resources of a cloud as values: what is wanted of it, what was seen there, and what became of our calls."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast

from kubeloop.errors import ClientError, ServerFault, Unreachable

State = Literal["Creating", "Ready", "Updating", "Deleting", "Failed"]
"""Of a resource on its cloud. One that is Failed was made and has never worked."""
Verb = Literal["create", "update", "delete"]
TOKEN = 63  # of 64 characters, which the shortest tokens of AWS may have


@dataclass(frozen=True, slots=True)
class Account:
    """Where calls go: a region of a cloud, by the credentials in the Secret of that name."""

    cloud: str
    region: str
    credentials: str
    project: str = ""
    """Whose resources they are, on a cloud where one identity may work in many projects."""

    def __str__(self) -> str:
        return f"{self.cloud} in {self.region}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server of a cluster is, and the certificates that its own is checked against, in base64."""

    server: str
    authority: str


@dataclass(frozen=True, slots=True)
class Quota:
    """How much of something an account may have."""

    name: str
    """As the cloud calls it."""
    limit: float
    used: float = 0.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Machines that are set aside for an account."""

    machine: str
    zone: str
    count: int
    state: str
    """In the cloud's own word."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a cloud has, and how much of it an account may have, as far as the cloud tells before anything is made."""

    versions: frozenset[str] = frozenset()
    """Of Kubernetes, without their patches; none where that was not told."""
    quotas: Mapping[str, Quota] = field(default_factory=dict[str, Quota])
    """By the cloud's code for each."""
    cores: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many a machine has, where quotas count them."""
    absent: tuple[str, ...] = ()
    """Machines that are not where they are asked for, in the cloud's words."""
    reservations: Mapping[str, Reservation | None] = field(default_factory=dict[str, Reservation | None])
    """None: there is no such reservation."""
    unasked: tuple[str, ...] = ()
    """The questions that were refused, in the cloud's words."""
    later: str = ""
    """Why nothing can be told yet."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The object on the hub that resources are made for; its uid is on each of them as a tag."""

    uid: str
    cluster: str
    """Its name, for people who read the tags."""


@dataclass(frozen=True, slots=True)
class Ref:
    """What is known of another resource once it is there, as (a part of) a parameter."""

    key: str
    output: str = "id"


@dataclass(frozen=True, slots=True)
class Kind:
    """What holds for every resource of a kind."""

    name: str
    usual: float
    """The seconds that it usually takes to be made or deleted."""
    gone_before: frozenset[str] = frozenset()
    """The kinds of which none that goes, too, may be left before one of this kind is deleted."""
    goes_with: str = ""
    """The kind of what takes it along."""
    announced: bool = False
    """Whether the cloud knows neither a token nor a unique name by which a second call would be told from the first."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A resource that is to be there."""

    key: str
    """Which one of its cluster; it is on the resource as a tag."""
    kind: str
    parameters: Mapping[str, Any]
    """In the words of the cloud's API; a `Ref` stands for what is known once another resource is there."""
    needs: tuple[str, ...] = ()
    """Keys that have to be there before, beside those of references."""
    kept: frozenset[str] = frozenset()
    """The parameters that are held to what they are here. The others are for the creation alone."""
    fixed: frozenset[str] = frozenset()
    """Those that the cloud never changes: that they are others is told, and nothing else."""

    def requirements(self) -> frozenset[str]:
        return frozenset({*self.needs, *(ref.key for ref in refs(self.parameters))})

    def resolved(self, outputs: Mapping[str, Mapping[str, str]]) -> Wanted | None:
        """The same without references; None while one of them is not known."""
        try:
            return replace(self, parameters=cast(Mapping[str, Any], _resolved(self.parameters, outputs)))
        except KeyError:
            return None

    @property
    def digest(self) -> str:
        said = json.dumps([self.kind, self.parameters], sort_keys=True, default=repr)
        return hashlib.sha256(said.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Found:
    """A resource that was seen."""

    key: str
    kind: str
    id: str
    state: State
    owner: str
    """The uid of its tag; empty when it has none."""
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    live: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What it is like, by those parameters that can be compared."""
    message: str = ""
    """What the cloud says is wrong."""
    swept: bool = False
    """Whether it was made by what ran in the cluster, and goes with the cluster."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All resources that concern an owner, as far as they could be listed."""

    found: tuple[Found, ...]
    at: datetime
    """When the oldest of the lists was asked for."""
    unseen: Mapping[str, ClientError] = field(default_factory=dict[str, ClientError])
    """The kinds that could not be listed, and why."""
    listed: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """When those kinds were, whose lists are not as old."""

    def as_of(self, kind: str) -> datetime:
        """When it was seen what there is of a kind."""
        return self.listed.get(kind, self.at)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the latest call of a process for a resource."""

    subject: str
    """What it was about: an attempt, or a digest of what was asked for."""
    at: datetime
    error: ClientError | None = None
    failures: int = 0
    """How often in a row it has failed."""
    id: str = ""
    """Of what was made."""

    @property
    def known(self) -> bool:
        """Whether it is known to have had no effect."""
        return self.error is not None and not isinstance(self.error, Unreachable | ServerFault)


Call: TypeAlias = tuple[Verb, str]
"""Of which kind, and the key of what is made or changed, or the id of what is deleted."""


def refs(value: Any) -> Iterator[Ref]:
    """The references in a parameter."""
    match value:
        case Ref():
            yield value
        case dict():
            for part in cast(dict[str, Any], value).values():
                yield from refs(part)
        case list() | tuple():
            for part in cast(list[Any], value):
                yield from refs(part)
        case _:
            return


def _resolved(value: Any, outputs: Mapping[str, Mapping[str, str]]) -> Any:
    match value:
        case Ref(key, output):
            return outputs[key][output]
        case dict():
            return {name: _resolved(part, outputs) for name, part in cast(dict[str, Any], value).items()}
        case list() | tuple():
            return [_resolved(part, outputs) for part in cast(list[Any], value)]
        case _:
            return value


def token(owner: Owner, wanted: Wanted, last: str) -> str:
    """By which a cloud tells a repeated call from another one. `last`: what was there before under that key."""
    said = "|".join((owner.uid, wanted.key, wanted.digest, last))
    return base64.b32encode(hashlib.sha256(said.encode()).digest()).decode().rstrip("=").lower()[:TOKEN]
