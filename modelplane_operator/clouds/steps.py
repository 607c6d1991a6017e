"""Calls to a cloud, as steps of a plan. Each is one request that changes something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from kubeloop.plan import Step
from modelplane_operator.clouds.resources import Account, Found, Owner, Wanted


@dataclass(frozen=True, slots=True)
class CloudCall(Step):
    """A call to a cloud about one object of the hub."""

    only_begins: ClassVar[bool] = True
    account: Account
    owner: Owner

    @property
    def target(self) -> str:
        return f"{self.account} for {self.owner.uid}"  # no cluster has such a name

    @property
    def siblings(self) -> object:
        return self.owner  # a call that waits for another is planned when the other's result was observed


@dataclass(frozen=True, slots=True)
class CreateResource(CloudCall):
    """Have the cloud make a resource."""

    wanted: Wanted
    """Without references."""
    token: str
    """By which the cloud tells a repeated call, where it can."""
    attempt: str = ""
    """What was written down before, where it cannot."""

    def __str__(self) -> str:
        return f"create {self.wanted.kind} {self.wanted.key} on {self.account}"

    @property
    def creates_external_objects(self) -> bool:
        return True

    @property
    def subject(self) -> str:
        """What its outcome is remembered as."""
        return self.attempt or self.token


@dataclass(frozen=True, slots=True)
class UpdateResource(CloudCall):
    """Have the cloud change one parameter of a resource; parameters that one request changes together are one."""

    wanted: Wanted
    found: Found
    changed: frozenset[str]
    """The parameters that differ."""

    def __str__(self) -> str:
        return f"update {self.wanted.kind} {self.wanted.key} ({', '.join(sorted(self.changed))}) on {self.account}"

    @property
    def subject(self) -> str:
        return f"{self.wanted.digest}:{','.join(sorted(self.changed))}"


@dataclass(frozen=True, slots=True)
class DeleteResource(CloudCall):
    """Have the cloud take a resource away that was seen."""

    found: Found

    def __str__(self) -> str:
        return f"delete {self.found.kind} {self.found.key} ({self.found.id}) on {self.account}"

    @property
    def subject(self) -> str:
        return self.found.id


CloudStep: TypeAlias = CreateResource | UpdateResource | DeleteResource
