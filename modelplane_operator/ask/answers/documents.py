"""The answers of `why`, `plan` and `hardware`, as values, and what they are asked by.

The command prints them without loading the scheduler: it takes longer to load than an answer takes.
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
    """One cluster's."""

    name: str
    replicas: int
    """Of the deployment, those to come included."""
    room: bool
    says: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica that exists."""

    name: str
    cluster: str
    pool: str
    ready: bool
    says: str
    """Why it is not, in the words of its own condition, and what is wrong with its cluster."""
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Route:
    """A service that leads to the model."""

    name: str
    url: str
    ready: bool
    says: str
    help: str


@dataclass(frozen=True, slots=True)
class Miss:
    """Clusters that take no replica more for one reason."""

    clusters: str
    nearest: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Why:
    """The answer."""

    namespace: str
    name: str
    ready: bool
    reason: str
    since: datetime | None
    cause: str
    """The one thing that stands in the way, or how many replicas answer."""
    help: tuple[str, ...]
    """What would help, the smallest change first."""
    desired: int
    replicas: tuple[ReplicaState, ...]
    waiting: int
    """Replicas without a place."""
    decision: str
    """What the scheduler decides now, as the condition ReplicasScheduled tells it."""
    misses: tuple[Miss, ...]
    routes: tuple[Route, ...]
    weights: tuple[str, ...] = ()
    """What replicas that have a place now will wait for there."""
    clusters: tuple[ClusterAnswer, ...] = ()
    """What each says to one replica more, where that was asked for."""


@dataclass(frozen=True, slots=True)
class LeavingReplica:
    """A replica that would not stay where or as it is."""

    name: str
    cluster: str
    why: str


@dataclass(frozen=True, slots=True)
class DeploymentOutcome:
    """What would become of one deployment."""

    namespace: str
    name: str
    settled: bool
    """Whether every replica would have a place, and might stay there."""
    decision: str
    added: tuple[str, ...]
    """Places of new replicas, as cluster/pool."""
    removed: tuple[LeavingReplica, ...]
    restarted: tuple[str, ...]
    """Replicas that would stay and get another shape."""
    stuck: tuple[LeavingReplica, ...]
    """Replicas that should leave their clusters, and that no other takes."""
    waiting: int
    """Replicas without a place."""
    help: tuple[str, ...]
    weights: tuple[str, ...] = ()
    """What new replicas would wait for in their places."""

    @property
    def changes(self) -> bool:
        return bool(self.added or self.removed or self.restarted or self.stuck)


@dataclass(frozen=True, slots=True)
class Others:
    """What would become of deployments that whoever asks may not list, in numbers."""

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
    """The document of a plan."""

    items: tuple[DeploymentOutcome, ...]
    others: Others | None = None

    @property
    def settled(self) -> bool:
        """Whether every replica would have a place, and might stay there."""
        return all(one.settled for one in self.items) and not (self.others and self.others.stuck + self.others.waiting)


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of device, over all clusters."""

    inference_class: str
    device: str
    driver: str
    per_node: int
    claimed: bool
    """Whether pods claim it; otherwise it only guides placement."""
    attributes: dict[str, str]
    capacity: dict[str, str]
    nodes: int
    free: int
    clusters: tuple[str, ...]
    selector: str
    """Which a ModelDeployment may ask by."""


@dataclass(frozen=True, slots=True)
class AllHardware:
    """The document of `hardware`."""

    items: tuple[Hardware, ...]
