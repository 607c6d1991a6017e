"""A snapshot of the hub: everything that an answer depends on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from kubeloop.condition_types import Condition, Ready
from kubeloop.objects import Key
from kubeloop.words import sentence
from modelplane_operator.api import InferenceCluster, ModelCache, ModelDeployment, ModelReplica
from modelplane_operator.models.cache.cache_status import find_awaited
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.placement import Replica, read
from modelplane_operator.scheduling.requirement import NoCache, PlacementRequest, placement_request
from modelplane_operator.scheduling.schedule import schedule


@dataclass(frozen=True)
class Snapshot:
    """The objects of the hub, and the time when they were read.

    With `model`, replicas and deployments are limited to those that an answer is about.
    """

    clusters: tuple[InferenceCluster, ...]
    replicas: tuple[ModelReplica, ...]
    deployments: tuple[ModelDeployment, ...]
    caches: tuple[ModelCache, ...]
    now: datetime
    """Time when the objects were read."""
    model: FleetModel | None = None
    """The scheduler's fleet model, if it is known; otherwise it is built from the objects."""

    @cached_property
    def deployment(self) -> Mapping[Key, ModelDeployment]:
        """Return the deployments by key."""
        return {deployment.key: deployment for deployment in self.deployments}

    @cached_property
    def cluster(self) -> Mapping[str, InferenceCluster]:
        """Return the clusters by name."""
        return {cluster.metadata.name: cluster for cluster in self.clusters}

    @cached_property
    def cache(self) -> Mapping[Key, ModelCache]:
        """Return the caches that are not being deleted, by key."""
        return {cache.key: cache for cache in self.caches if cache.metadata.deletion_timestamp is None}

    @cached_property
    def placements(self) -> Sequence[Replica]:
        """Return the replicas in the scheduler's form."""
        return tuple(map(read, self.replicas))

    @cached_property
    def owned(self) -> Mapping[Key, Sequence[ModelReplica]]:
        """Return the replicas by the deployment that owns them."""
        by_owner: defaultdict[Key, list[ModelReplica]] = defaultdict(list)
        for replica, parsed in zip(self.replicas, self.placements, strict=True):
            by_owner[Key(parsed.owner.namespace, parsed.owner.name)].append(replica)
        return by_owner

    def fleet(self) -> FleetModel:
        """Return a new fleet model, which the caller may change."""
        if self.model is not None:
            return self.model.copy()
        fleet = FleetModel()
        for replica in self.placements:  # replicas first, so that each cluster is computed only once
            fleet.observe_replicas(replica)
        for cluster in self.clusters:
            observe(fleet, cluster)
        return fleet

    def with_clusters(self, clusters: Iterable[InferenceCluster]) -> Snapshot:
        """Return the hub with these clusters only. Clusters that are the same objects keep their observed state."""
        retained = tuple(clusters)
        if self.model is None:
            return replace(self, clusters=retained)
        fleet, names = self.model.copy(), {cluster.metadata.name for cluster in retained}
        for cluster in self.clusters:
            if cluster.metadata.name not in names:
                fleet.forget_cluster(cluster.metadata.name)
        for cluster in retained:
            if cluster is not self.cluster.get(cluster.metadata.name):
                info = fleet.info(cluster.metadata.name)
                fleet.observe_cluster(cluster, unreachable_since=info.cluster.unreachable_since if info else None)
        return replace(self, clusters=retained, model=fleet)

    def placement_request(self, deployment: ModelDeployment, fleet: FleetModel) -> PlacementRequest:
        """Return the placement request of a deployment with its cache."""
        reference = deployment.replica.model_cache_ref
        cache = self.cache.get(Key(deployment.key.namespace, reference.name)) if reference else None
        return placement_request(
            deployment, (cache or NoCache.NOT_FOUND) if reference else NoCache.NOT_READ, fleet.devices
        )

    def decide(self, deployment: ModelDeployment, fleet: FleetModel) -> Decision:
        """Return the operator's decision: the same function with the same values."""
        return schedule(self.placement_request(deployment, fleet), fleet, now=self.now)

    def describe_awaited_weights(self, deployment: ModelDeployment, decision: Decision) -> tuple[str, ...]:
        """Return messages about weights that new replicas would wait for on their clusters."""
        reference = deployment.replica.model_cache_ref
        cache = self.cache.get(Key(deployment.key.namespace, reference.name)) if reference else None
        if cache is None:
            return ()
        chosen = {placement.cluster for placement in decision.new}
        awaited = (
            find_awaited(cache, self.cluster[name].to_manifest()) for name in sorted(chosen & self.cluster.keys())
        )
        return tuple(sentence(item.message) for item in awaited if item)


def observe(fleet: FleetModel, cluster: InferenceCluster) -> None:
    """Add a cluster to a fleet model. Its status says if it is reachable."""
    condition = ready(cluster.conditions)
    is_unreachable = condition is not None and condition.reason == Ready.UNREACHABLE.reason
    fleet.observe_cluster(
        cluster, unreachable_since=condition.last_transition_time if condition and is_unreachable else None
    )


def ready(conditions: Iterable[Condition]) -> Condition | None:
    """Return the Ready condition, if there is one."""
    return next((item for item in conditions if item.type == Ready.__name__), None)
