"""Hold what the plan of a ModelDeployment reads, gathered by its controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property

from kubeloop.conditions import condition
from kubeloop.objects import Key, Manifest, annotations_of, is_terminating, key_of
from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReady, OperatorSettings, OutdatedPods
from modelplane_operator.models.deployment.plan.moves import LiveReplica
from modelplane_operator.models.deployment.plan.rolling import Rolls, answers, asks_to_roll, find_rolls, read_outdated
from modelplane_operator.scheduling.disruptions import DisruptionBudget
from modelplane_operator.scheduling.requirement import NoCache
from modelplane_operator.scheduling.survey import FleetSnapshot

FOLLOWING = timedelta(minutes=5)  # Traefik takes minutes for thousands of routes
"""Longest time that a rollout waits for routes to lead to a replica that answers."""


@dataclass(frozen=True)
class Observed:
    """A deployment with its replicas, endpoints and routes, and a snapshot of the fleet."""

    deployment: ModelDeployment
    """Deployment as its spec and its last status describe it."""
    cache: ModelCache | NoCache
    """The ModelCache that the deployment references, or the reason why there is none."""
    fleet: FleetSnapshot
    """Clusters, node pools and placed replicas, as the scheduler sees them."""
    clusters: Mapping[str, InferenceCluster]
    """InferenceClusters by name, with their current specs."""
    replicas: tuple[Manifest, ...]
    """ModelReplicas of the deployment, including those that are being deleted."""
    endpoints: tuple[Manifest, ...]
    """ModelEndpoints of the deployment."""
    routed: frozenset[Key]
    """Keys of replicas that an HTTPRoute has as a backend."""
    reached: frozenset[Key]
    """Keys of routed replicas whose routes the gateway has accepted."""
    grace: timedelta
    """Time between a replica's leaving rotation and its change or removal."""
    now: datetime
    operator: OperatorSettings | None = None
    """Settings of the operator, which new replicas record."""
    disruptions: DisruptionBudget = field(default_factory=DisruptionBudget)
    """Limits on the replicas whose pods the operator changes by itself, and those that count towards them."""
    missing: str = ""
    """Secrets and ConfigMaps that the template names and that do not exist, as a message; those that the running
    replicas have already do not count.
    """

    @property
    def terminating(self) -> bool:
        """True if the deployment is being deleted.

        Its children are garbage collected after it, once finalizers allow.
        """
        return self.deployment.metadata.deletion_timestamp is not None

    @property
    def frozen(self) -> bool:
        """True if the deployment is paused or being deleted: replicas only leave clusters that must become empty."""
        return self.terminating or self.deployment.metadata.annotations.get(labels.PAUSED) == "true"

    @property
    def replica_count(self) -> int:
        """Return the number of replicas to retain while frozen: the total in the last status, or 0 while deleted."""
        previous = self.deployment.status.replicas if self.deployment.status else None
        return 0 if self.terminating or previous is None else previous.total or 0

    @cached_property
    def live(self) -> Mapping[Key, Manifest]:
        """Return the replicas that are not being deleted, by key."""
        return {key_of(replica): replica for replica in self.replicas if not is_terminating(replica)}

    @cached_property
    def endpoint(self) -> Mapping[Key, Manifest]:
        """Return the endpoints by key; an endpoint has the key of its replica."""
        return {key_of(endpoint): endpoint for endpoint in self.endpoints}

    @cached_property
    def live_replicas(self) -> Mapping[Key, LiveReplica]:
        """Return the live replicas in the form that a rollout uses.

        A replica serves if it answers and, once any route leads to the deployment, a route leads to it. That wait
        ends after FOLLOWING, so that a service whose routes lag cannot block a rollout.
        """
        return {
            key: LiveReplica(
                key,
                serving=self.answers(replica) and (self.waits_until(key) or self.now) <= self.now,
                draining_since=_read_draining_since(replica),
                routed=key in self.endpoint or key in self.routed,
            )
            for key, replica in self.live.items()
        }

    def waits_until(self, key: Key) -> datetime | None:
        """Return the time until which a rollout waits for a route to this replica, or None if it does not wait."""
        replica = self.live[key]
        if not self.answers(replica) or key in self.reached or not self.routed:
            return None
        return datetime.fromisoformat(condition(replica, ModelReady.__name__).last_transition_time) + FOLLOWING

    @cached_property
    def outdated(self) -> Mapping[Key, OutdatedPods]:
        """Return what the current operator would change in the pods of each live replica that it did not render."""
        outdated = {key: read_outdated(replica) for key, replica in self.live.items()}
        return {key: pods for key, pods in outdated.items() if pods}

    @property
    def roll(self) -> str:
        """Return the deployment's annotation that says which outdated pods to change; "" if none."""
        return self.deployment.metadata.annotations.get(labels.ROLL) or ""

    @cached_property
    def rolls(self) -> Rolls:
        """Return the replicas whose outdated pods change now, and those that wait for a window or for others.

        There are none while the deployment is frozen, or its template names objects that do not exist.
        """
        if self.frozen or self.missing:
            return Rolls()
        replicas = {key: self.live[key] for key, pods in self.outdated.items() if asks_to_roll(self.roll, pods)}
        return find_rolls(
            replicas,
            self.roll,
            windows=self.deployment.spec.maintenance,
            clusters=self.clusters,
            budget=self.disruptions,
            now=self.now,
        )

    def answers(self, replica: Manifest) -> bool:
        """True if the model of the replica is ready, in the generation that the replica has now."""
        return answers(replica)


def _read_draining_since(replica: Manifest) -> datetime | None:
    """Return the time since which a replica drains, or None if it does not drain."""
    text = annotations_of(replica).get(labels.DRAINING_SINCE)
    try:
        started_at = datetime.fromisoformat(text) if text else None
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)  # a user wrote it: the replica drains, and its grace has passed
    return started_at if started_at is None or started_at.tzinfo else started_at.replace(tzinfo=UTC)
