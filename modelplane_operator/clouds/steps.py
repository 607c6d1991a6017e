"""Calls to a cloud, as steps of a plan. Each is one request that changes something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from kubeloop.plan import Step
from modelplane_operator.clouds.resources import Account, DesiredResource, ExistingResource, Owner


@dataclass(frozen=True, slots=True)
class CloudCall(Step):
    """A call to a cloud for one object of the hub."""

    only_begins: ClassVar[bool] = True
    """True, since a call only starts a change; its effect is observed later."""
    account: Account
    owner: Owner
    """Object on the hub that owns the resource."""

    @property
    def target(self) -> str:
        """Account and owner: the calls for one owner form a strand."""
        return f"{self.account} for {self.owner.uid}"  # no cluster has such a name

    @property
    def siblings(self) -> object:
        """Value that all calls for the owner share, so that they run in parallel."""
        return self.owner  # a call that depends on another is planned after that call's result was observed


@dataclass(frozen=True, slots=True)
class CreateResource(CloudCall):
    """Create a resource on the cloud."""

    desired: DesiredResource
    """Desired resource, with all references resolved."""
    token: str
    """Token by which the cloud recognizes a repeated call, if it supports tokens."""
    attempt: str = ""
    """Id of the attempt that the status announced, if the cloud has no tokens."""

    def __str__(self) -> str:
        return f"create {self.desired.kind} {self.desired.key} on {self.account}"

    @property
    def creates_external_objects(self) -> bool:
        """True: the finalizer must be stored before the call, or a deletion could leave the resource behind."""
        return True

    @property
    def subject(self) -> str:
        """Return the id by which the journal remembers the outcome."""
        return self.attempt or self.token


@dataclass(frozen=True, slots=True)
class UpdateResource(CloudCall):
    """Update one parameter of a resource, or several that one request changes together."""

    desired: DesiredResource
    """Desired resource, with all references resolved."""
    existing: ExistingResource
    """Resource as it was observed."""
    changed: frozenset[str]
    """Names of the parameters that differ."""

    def __str__(self) -> str:
        return f"update {self.desired.kind} {self.desired.key} ({', '.join(sorted(self.changed))}) on {self.account}"

    @property
    def subject(self) -> str:
        """Id of the request: the desired parameters, and the names of those that differ."""
        return f"{self.desired.digest}:{','.join(sorted(self.changed))}"


@dataclass(frozen=True, slots=True)
class DeleteResource(CloudCall):
    """Delete an observed resource from the cloud."""

    existing: ExistingResource
    """Resource as it was observed."""

    def __str__(self) -> str:
        return f"delete {self.existing.kind} {self.existing.key} ({self.existing.id}) on {self.account}"

    @property
    def subject(self) -> str:
        """Id of the resource, since a deletion has no parameters."""
        return self.existing.id


CloudStep: TypeAlias = CreateResource | UpdateResource | DeleteResource
