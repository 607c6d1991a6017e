"""Resources of a cloud as values: the desired ones, the observed ones, and the outcomes of calls.

Each cloud renders its desired resources and converts its lists to these types; `decide` compares both without
knowledge of any cloud. Nothing here does I/O.
"""

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
"""State of a resource on its cloud. Failed means that it was created and has never worked."""
Verb = Literal["create", "update", "delete"]
"""Change that a call makes."""
TOKEN = 63  # of the 64 characters of the shortest tokens of AWS
"""Length of an idempotency token."""


@dataclass(frozen=True, slots=True)
class Account:
    """The target of calls: a region of a cloud, and the name of the Secret with the credentials."""

    cloud: str
    """Name of the cloud, by which `Accounts` finds its `connect`: `EKS` or `GKE`."""
    region: str
    """Region of the calls; for an existing cluster on GKE, a region or a zone."""
    credentials: str
    """Name of the Secret with the credentials."""
    project: str = ""
    """Project that owns the resources, on a cloud where one identity can work in many projects."""

    def __str__(self) -> str:
        """Return the account as messages name it, without the credentials."""
        return f"{self.cloud} in {self.region}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a cluster's API server, and the certificate authority in base64 that verifies it."""

    server: str
    """URL of the API server."""
    authority: str
    """Certificate authority in base64."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limit and usage of a quota of an account."""

    name: str
    """Name of the quota on the cloud."""
    limit: float
    """Maximum amount; negative if there is none."""
    used: float = 0.0
    """Amount in use."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Machines that are reserved for an account."""

    machine: str
    zone: str
    """Zone of the machines; empty if the cloud does not report it."""
    count: int
    """Number of reserved machines."""
    state: str
    """State as the cloud names it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Capacity and quotas that a cloud reports for an account before resources are created."""

    versions: frozenset[str] = frozenset()
    """Offered versions of Kubernetes without patches; empty if the cloud did not report them."""
    quotas: Mapping[str, Quota] = field(default_factory=dict[str, Quota])
    """Quotas by their code on the cloud."""
    cores: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of cores by machine type, for quotas that count cores."""
    absent: tuple[str, ...] = ()
    """Requested machine types that a zone does not offer, as messages."""
    reservations: Mapping[str, Reservation | None] = field(default_factory=dict[str, Reservation | None])
    """Reservations by id; None if the reservation does not exist."""
    unasked: tuple[str, ...] = ()
    """Queries that the cloud rejected, as messages."""
    later: str = ""
    """Reason why the cloud cannot answer yet."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The object on the hub that owns resources. Its uid is a tag on each of them."""

    uid: str
    """Uid of the object; the value of the owner tag."""
    cluster: str
    """Name of the cluster, for people who read the tags."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to an output of another resource, used as a parameter or within one."""

    key: str
    """Key of the other resource."""
    output: str = "id"
    """Name of its output."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties that all resources of a kind have in common."""

    name: str
    """Name of the kind: the cloud's service and its resource."""
    usual: float
    """Usual time to create or delete the resource, in seconds."""
    deleted_before: frozenset[str] = frozenset()
    """Kinds that must be gone before a resource of this kind is deleted."""
    goes_with: str = ""
    """Kind of the resource whose deletion deletes this one, too."""
    announced: bool = False
    """True if the cloud has neither tokens nor unique names to detect a repeated call, so that calls are announced."""


@dataclass(frozen=True, slots=True)
class DesiredResource:
    """A desired resource."""

    key: str
    """Key of the resource within its cluster; a tag on the resource."""
    kind: str
    parameters: Mapping[str, Any]
    """Parameters of the cloud's API. A `Ref` stands for an output of another resource."""
    needs: tuple[str, ...] = ()
    """Keys of resources that must be ready before, in addition to references."""
    updatable: frozenset[str] = frozenset()
    """Names of the parameters that are kept up to date. All others are set at creation only."""
    fixed: frozenset[str] = frozenset()
    """Names of the parameters that the cloud cannot change. A difference is only reported."""

    def requirements(self) -> frozenset[str]:
        """Return the keys of the resources that must be ready before this one is created."""
        return frozenset({*self.needs, *(ref.key for ref in refs(self.parameters))})

    def resolve(self, outputs: Mapping[str, Mapping[str, str]]) -> DesiredResource | None:
        """Return a copy with all references resolved; None while an output is unknown."""
        try:
            return replace(self, parameters=cast(Mapping[str, Any], _resolve(self.parameters, outputs)))
        except KeyError:
            return None

    @property
    def digest(self) -> str:
        """Return a hash of the kind and the parameters."""
        text = json.dumps([self.kind, self.parameters], sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ExistingResource:
    """An observed resource."""

    key: str
    """Value of the resource's key tag, or a name derived from its parent."""
    kind: str
    """Name of the kind that its list belongs to."""
    id: str
    """Id for calls. It can consist of several parts, for kinds without an id of their own."""
    state: State
    """State according to the cloud."""
    owner: str
    """Uid in its owner tag; empty without one."""
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values that references can use, by name."""
    live: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Observed values of the parameters that can be compared."""
    message: str = ""
    """Problem that the cloud reports."""
    swept: bool = False
    """True if workloads of the cluster created it; it is deleted with the cluster."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The resources that concern an owner, as far as they could be listed."""

    existing: tuple[ExistingResource, ...]
    """Resources of all listed kinds."""
    at: datetime
    """Time of the oldest list."""
    unseen: Mapping[str, ClientError] = field(default_factory=dict[str, ClientError])
    """Kinds that could not be listed, each with its error."""
    listed_at: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Times of the lists that are newer than the oldest."""

    def as_of(self, kind: str) -> datetime:
        """Return the time of the list of a kind."""
        return self.listed_at.get(kind, self.at)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a process's latest call for a resource."""

    subject: str
    """Subject of the call: an attempt, or a digest of the request."""
    at: datetime
    """Time of the call."""
    error: ClientError | None = None
    """Error of the call; None if it was accepted."""
    failures: int = 0
    """Number of consecutive failures."""
    id: str = ""
    """Id of the created resource."""

    @property
    def had_no_effect(self) -> bool:
        """True if the call certainly had no effect."""
        return self.error is not None and not isinstance(self.error, Unreachable | ServerFault)


Call: TypeAlias = tuple[Verb, str]
"""Verb, and the key of a created or updated resource or the id of a deleted one."""


def refs(value: Any) -> Iterator[Ref]:
    """Yield the references within a parameter."""
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


def _resolve(value: Any, outputs: Mapping[str, Mapping[str, str]]) -> Any:
    """Return a copy of a value with its references replaced. Raise KeyError for an unknown output."""
    match value:
        case Ref(key, output):
            return outputs[key][output]
        case dict():
            return {name: _resolve(part, outputs) for name, part in cast(dict[str, Any], value).items()}
        case list() | tuple():
            return [_resolve(part, outputs) for part in cast(list[Any], value)]
        case _:
            return value


def idempotency_token(owner: Owner, desired: DesiredResource, last: str) -> str:
    """Return the token by which a cloud recognizes a repeated call.

    `last` is the id of the previous resource of that key.
    """
    # With the last id, a resource that is created again gets another token: by the old one, the cloud could return
    # the deleted resource.
    text = "|".join((owner.uid, desired.key, desired.digest, last))
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=").lower()[:TOKEN]
