"""What is seen of a deployment before anything is decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from kubeloop.conditions import condition
from kubeloop.objects import Key, Manifest, annotations_of, is_terminating, key_of
from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReady
from modelplane_operator.models.deployment.plan.rollout import LiveReplica
from modelplane_operator.scheduling.requirement import NoCache
from modelplane_operator.scheduling.survey import FleetSnapshot

FOLLOWING = timedelta(minutes=5)  # until routes lead to a replica that answers: Traefik takes minutes for thousands


@dataclass(frozen=True)
class Observed:
    """A deployment, the fleet, and what exists of the deployment."""

    deployment: ModelDeployment
    cache: ModelCache | NoCache
    fleet: FleetSnapshot
    clusters: Mapping[str, InferenceCluster]
    """Its clusters as their platform teams have written them."""
    replicas: tuple[Manifest, ...]
    """Its ModelReplicas, those on their way out among them."""
    endpoints: tuple[Manifest, ...]
    """Its ModelEndpoints."""
    routed: frozenset[Key]
    """Of those, the ones that a gateway may send requests to."""
    reached: frozenset[Key]
    """Of those, the ones that a gateway is known to send requests to."""
    grace: timedelta
    """How long a replica is out of rotation before it is disturbed."""
    now: datetime

    @property
    def terminating(self) -> bool:
        """Whether it is being deleted. What belongs to it goes once it is gone, for which others may let it wait."""
        return self.deployment.metadata.deletion_timestamp is not None

    @property
    def frozen(self) -> bool:
        """Whether nothing of it is to change, but that no cluster that is to be empty waits for that."""
        return self.terminating or self.deployment.metadata.annotations.get(labels.PAUSED) == "true"

    @property
    def replica_count(self) -> int:
        """How many replicas there are to be while nothing else changes: those that there were before."""
        known = self.deployment.status.replicas if self.deployment.status else None
        return 0 if self.terminating or known is None else known.total or 0

    @cached_property
    def live(self) -> Mapping[Key, Manifest]:
        """The replicas that exist and are to stay as far as anybody has said."""
        return {key_of(one): one for one in self.replicas if not is_terminating(one)}

    @cached_property
    def endpoint(self) -> Mapping[Key, Manifest]:
        """The endpoints, by key: that of their replica."""
        return {key_of(one): one for one in self.endpoints}

    @cached_property
    def live_replicas(self) -> Mapping[Key, LiveReplica]:
        """The same as a rollout sees them.

        One serves when it answers and, if any route leads to the deployment, when one leads to it: but a service that
        does not follow for long holds nothing up.
        """
        return {
            key: LiveReplica(
                key,
                serving=self.answers(one) and (self.awaited(key) or self.now) <= self.now,
                draining_since=_since(one),
                routed=key in self.endpoint or key in self.routed,
            )
            for key, one in self.live.items()
        }

    def awaited(self, key: Key) -> datetime | None:
        """Until when a replica that answers is waited for, to be led to; None when there is nothing to wait for."""
        replica = self.live[key]
        if not self.answers(replica) or key in self.reached or not self.routed:
            return None
        return datetime.fromisoformat(condition(replica, ModelReady.__name__).last_transition_time) + FOLLOWING

    def answers(self, replica: Manifest) -> bool:
        """Whether a replica is known to answer in its present shape."""
        found = condition(replica, ModelReady.__name__)
        return found.current and found.is_true


def _since(replica: Manifest) -> datetime | None:
    text = annotations_of(replica).get(labels.DRAINING_SINCE)
    try:
        since = datetime.fromisoformat(text) if text else None
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)  # somebody wrote it: it drains, and has for long enough
    return since if since is None or since.tzinfo else since.replace(tzinfo=UTC)
