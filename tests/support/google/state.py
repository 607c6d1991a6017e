"""What a project has: resources, and operations that take time and may fail after they were accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

TAKES: Mapping[str, float] = {
    "service": 20,
    "network": 20,
    "subnetwork": 15,
    "cluster": 300,
    "nodepool": 90,
    "update": 60,
    "deletion": 120,
}
"""The seconds that each takes."""


class Refused(Exception):  # noqa: N818 - what happened
    """A request that Google refuses: a status of gRPC's, a code and a reason of HTTP's, and words."""

    def __init__(self, status: str, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.reason, self.message = status, code, reason, message


def missing(what: str) -> Refused:
    return Refused("NOT_FOUND", 404, "notFound", f"The resource '{what}' was not found")


def taken(what: str) -> Refused:
    return Refused("ALREADY_EXISTS", 409, "alreadyExists", f"The resource '{what}' already exists")


def needed(what: str, by: str) -> Refused:
    words = f"The resource '{what}' is already being used by '{by}'"
    return Refused("FAILED_PRECONDITION", 400, "resourceInUseByAnotherResource", words)


@dataclass
class Operation:
    name: str
    kind: str
    target: str
    """The link of what it is about."""
    began: datetime
    ends: datetime
    finish: Callable[[], None]
    error: str = ""
    done: bool = False


@dataclass
class State:
    clock: Callable[[], datetime]
    takes: Mapping[str, float]
    operations: list[Operation] = field(default_factory=list[Operation])
    act_as: frozenset[str] = frozenset({"nodes@lab-1234.iam.gserviceaccount.com"})
    """Service accounts that the caller may put on nodes, beside that of Compute Engine."""
    fail_next: dict[str, str] = field(default_factory=dict[str, str])
    """By kind, with which words the next operation that makes one fails."""
    networks: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    subnetworks: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    others: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """What Kubernetes has made: firewalls, forwarding rules, disks, instances of Filestore, by path."""
    versions: tuple[str, ...] = ("1.34", "1.35", "1.36", "1.37")
    """Of Kubernetes, in the release channel that is asked for."""
    quotas: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Limit and usage, by metric; those of the project and those of its region."""
    absent: set[str] = field(default_factory=set[str])
    """Types of machines and accelerators that no zone has."""
    services: set[str] = field(default_factory=set[str])
    clusters: dict[str, Any] = field(default_factory=dict[str, Any])
    takes_unfenced: bool = False
    """Whether clusters may be made as operators before made them, which Google takes and no operator is to ask for."""

    @property
    def left(self) -> list[str]:
        return [*self.networks, *self.subnetworks, *self.others, *self.clusters]

    def settle(self) -> None:
        """Let time have its effect."""
        for one in self.operations:
            if not one.done and one.ends <= self.clock():
                one.done = True
                one.finish()

    def begin(self, kind: str, target: str, takes: str, finish: Callable[[], None], error: str = "") -> Operation:
        now = self.clock()
        name = f"operation-{len(self.operations):06}"
        made = Operation(name, kind, target, now, now + timedelta(seconds=self.takes[takes]), finish, error)
        self.operations.append(made)
        return made

    def is_busy(self, target: str) -> bool:
        return any(not one.done and (f"{one.target}/").startswith(f"{target}/") for one in self.operations)

    def network_is_used(self, name: str) -> str:
        """By what; empty when it is not."""
        subnets = (one["name"] for one in self.subnetworks.values() if one["network"].endswith(f"/{name}"))
        inside = (path for path, one in self.others.items() if str(one.get("network", "")).endswith(f"/{name}"))
        clusters = (one.name for one in self.clusters.values() if one.network == name)
        peers = (str(one["name"]) for one in self.networks[name].get("peerings", ()))
        return next((*subnets, *inside, *clusters, *peers).__iter__(), "")
