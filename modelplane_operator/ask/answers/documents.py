"""Values of the answers `why`, `plan` and `hardware`, and the type of a Question.

The command prints them without importing the scheduler, whose import takes longer than an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kubeloop.types import ResourceType
from kubeloop.words import count_of

QUESTION: Final = ResourceType("modelplane.ai/v1alpha1", "Question", "questions")
"""Type of a Question. It is never stored: the webhook answers it with a rejection."""


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """A cluster's answer to one more replica."""

    name: str
    replicas: int
    """Number of the deployment's replicas there, including those placed now."""
    room: bool
    """True if another replica fits."""
    says: str
    """The answer as a message."""
    remedy: str
    """Advice for that answer."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica that exists."""

    name: str
    cluster: str
    pool: str
    """Pools of the replica's engines, joined by `+`."""
    ready: bool
    says: str
    """Message of its Ready condition while that is not True, and what is wrong with its cluster."""
    since: datetime | None
    """Time of the last transition of its Ready condition."""


@dataclass(frozen=True, slots=True)
class Route:
    """A ModelService that leads to the model."""

    name: str
    url: str
    """Address of the service; "" before it has one."""
    ready: bool
    says: str
    """Message of its Ready condition; "" if that is True."""
    help: str
    """Remedy for that message."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Clusters that have no capacity for another replica for the same reason."""

    clusters: str
    """Number of the clusters, as a phrase."""
    nearest: str
    """Name of the cluster that is closest to having capacity."""
    reason: str
    """Reason of that cluster."""
    remedy: str
    """Advice for that reason."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer of `why`."""

    namespace: str
    name: str
    ready: bool
    """True if the deployment is Ready and the scheduler's decision has no open points."""
    reason: str
    """Reason of the Ready condition."""
    since: datetime | None
    """Time of the last transition of the Ready condition."""
    cause: str
    """The most important obstacle, or how many replicas serve."""
    help: tuple[str, ...]
    """Changes that would help, the smallest first."""
    desired: int
    """Number of requested replicas."""
    replicas: tuple[ReplicaState, ...]
    waiting: int
    """Number of replicas without a cluster."""
    decision: str
    """The scheduler's current decision, as the condition ReplicasScheduled reports it."""
    misses: tuple[Miss, ...]
    """Reasons of clusters without capacity; empty once all replicas have a cluster."""
    routes: tuple[Route, ...]
    """Services that lead to the model."""
    weights: tuple[str, ...] = ()
    """Messages about weights that placed replicas wait for."""
    clusters: tuple[ClusterAnswer, ...] = ()
    """Each cluster's answer to one more replica, if requested."""


@dataclass(frozen=True, slots=True)
class NeededObject:
    """An object that a ModelService or an LLMInference needs."""

    object_kind: str
    name: str
    ready: bool
    says: str
    """Message of its Ready condition while that is not True; of a ModelDeployment only the reason."""


@dataclass(frozen=True, slots=True)
class ObjectExplanation:
    """The answer of `why` about a ModelService or an LLMInference."""

    object_kind: str
    namespace: str
    name: str
    ready: bool
    """True if its Ready condition is True."""
    reason: str
    """Reason of the Ready condition."""
    since: datetime | None
    """Time of the last transition of the Ready condition."""
    cause: str
    """Message of the Ready condition, and the cause of the first object that keeps it from being Ready."""
    help: tuple[str, ...]
    """Changes that would help, the most likely first."""
    url: str
    """Address; "" before it has one."""
    parts: tuple[NeededObject, ...]
    """Objects that it needs."""


@dataclass(frozen=True, slots=True)
class LeavingReplica:
    """A replica that would leave its cluster or change."""

    name: str
    cluster: str
    why: str
    """Reason to leave."""


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
    """Replicas that would be deleted."""
    restarted: tuple[str, ...]
    """Replicas that would stay and restart with another spec."""
    stuck: tuple[LeavingReplica, ...]
    """Replicas that should leave their cluster and fit no other."""
    waiting: int
    """Number of replicas without a cluster."""
    help: tuple[str, ...]
    """Changes that would give waiting replicas a cluster."""
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
    """Number of new replicas."""
    removed: int
    """Number of replicas that would be deleted."""
    stuck: int
    """Number of replicas that should leave their cluster and fit no other."""
    waiting: int
    """Number of replicas without a cluster."""

    def __str__(self) -> str:
        """Return the numbers as a phrase."""
        whose = count_of(self.deployments, "deployment")
        return (
            f"{whose} of namespaces that you may not list: {count_of(self.added, 'new replica')}, {self.removed} gone, "
            f"{self.stuck} that should leave their cluster but fit nowhere else, {self.waiting} without a cluster"
        )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The answer of `plan`."""

    items: tuple[DeploymentOutcome, ...]
    others: Others | None = None
    """Numbers for deployments that the user may not list; None if there are none."""

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
    """Name of the device in its class."""
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
    """Number of those nodes that are free."""
    clusters: tuple[str, ...]
    """Names of the clusters that have it."""
    selector: str
    """Selector for a ModelDeployment that matches it."""


@dataclass(frozen=True, slots=True)
class AllHardware:
    """The answer of `hardware`."""

    items: tuple[Hardware, ...]
