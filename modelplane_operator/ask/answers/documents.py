"""Values of the answers `why`, `plan` and `hardware`, and the type of a Question.

The command prints them without importing the scheduler, whose import takes longer than an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kubeloop.types import ResourceType
from kubeloop.words import counted

QUESTION: Final = ResourceType("modelplane.ai/v1alpha1", "Question", "questions")


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """A cluster's answer to one more replica."""

    name: str
    replicas: int
    """Number of the deployment's replicas there, including those placed now."""
    room: bool
    says: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica that exists."""

    name: str
    cluster: str
    pool: str
    ready: bool
    says: str
    """Message of its Ready condition while that is not True, and what is wrong with its cluster."""
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Route:
    """A ModelService that leads to the model."""

    name: str
    url: str
    ready: bool
    says: str
    help: str


@dataclass(frozen=True, slots=True)
class Miss:
    """Clusters that have no capacity for another replica for the same reason."""

    clusters: str
    nearest: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Why:
    """The answer of `why`."""

    namespace: str
    name: str
    ready: bool
    reason: str
    since: datetime | None
    cause: str
    """The most important obstacle, or how many replicas serve."""
    help: tuple[str, ...]
    """Changes that would help, the smallest first."""
    desired: int
    replicas: tuple[ReplicaState, ...]
    waiting: int
    """Number of replicas without a cluster."""
    decision: str
    """The scheduler's current decision, as the condition ReplicasScheduled reports it."""
    misses: tuple[Miss, ...]
    routes: tuple[Route, ...]
    weights: tuple[str, ...] = ()
    """Messages about weights that placed replicas wait for."""
    clusters: tuple[ClusterAnswer, ...] = ()
    """Each cluster's answer to one more replica, if requested."""


@dataclass(frozen=True, slots=True)
class LeavingReplica:
    """A replica that would leave its cluster or change."""

    name: str
    cluster: str
    why: str


@dataclass(frozen=True, slots=True)
class DeploymentOutcome:
    """The outcome of a plan for one deployment."""

    namespace: str
    name: str
    settled: bool
    """True if every replica would have a cluster and could stay there."""
    decision: str
    added: tuple[str, ...]
    """Placements of new replicas, as cluster/pool."""
    removed: tuple[LeavingReplica, ...]
    restarted: tuple[str, ...]
    """Replicas that would stay and restart with another spec."""
    stuck: tuple[LeavingReplica, ...]
    """Replicas that should leave their cluster and fit no other."""
    waiting: int
    """Number of replicas without a cluster."""
    help: tuple[str, ...]
    weights: tuple[str, ...] = ()
    """Messages about weights that new replicas would wait for."""

    @property
    def changes(self) -> bool:
        """True if any replica would be added, removed, restarted or blocked."""
        return bool(self.added or self.removed or self.restarted or self.stuck)


@dataclass(frozen=True, slots=True)
class Others:
    """Numbers for deployments that the user may not list."""

    deployments: int
    added: int
    removed: int
    stuck: int
    waiting: int

    def __str__(self) -> str:
        whose = counted(self.deployments, "deployment")
        return (
            f"{whose} of namespaces that you may not list: {counted(self.added, 'new replica')}, {self.removed} gone, "
            f"{self.stuck} that should go and find no other place, {self.waiting} without a place"
        )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The answer of `plan`."""

    items: tuple[DeploymentOutcome, ...]
    others: Others | None = None

    @property
    def settled(self) -> bool:
        """True if every replica would have a cluster and could stay there."""
        return all(outcome.settled for outcome in self.items) and not (
            self.others and self.others.stuck + self.others.waiting
        )


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of device, over all clusters."""

    inference_class: str
    device: str
    driver: str
    per_node: int
    """Number of devices on each node."""
    claimed: bool
    """True if pods claim it; otherwise it only guides placement."""
    attributes: dict[str, str]
    capacity: dict[str, str]
    nodes: int
    """Number of nodes that have it."""
    free: int
    """Number of those nodes without a replica."""
    clusters: tuple[str, ...]
    selector: str
    """Selector for a ModelDeployment that matches it."""


@dataclass(frozen=True, slots=True)
class AllHardware:
    """The answer of `hardware`."""

    items: tuple[Hardware, ...]
