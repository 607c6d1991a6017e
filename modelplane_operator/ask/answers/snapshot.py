"""The hub as it was at one moment: all that an answer depends on."""

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
from modelplane_operator.models.cache.cache_status import awaited
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.placement import Replica, read
from modelplane_operator.scheduling.requirement import NoCache, PlacementRequest, placement_request
from modelplane_operator.scheduling.schedule import schedule


@dataclass(frozen=True)
class Snapshot:
    """What was read, and when. Where the model of the fleet is known, replicas and deployments are those alone that an
    answer is about."""

    clusters: tuple[InferenceCluster, ...]
    replicas: tuple[ModelReplica, ...]
    deployments: tuple[ModelDeployment, ...]
    caches: tuple[ModelCache, ...]
    now: datetime
    model: FleetModel | None = None

    @cached_property
    def deployment(self) -> Mapping[Key, ModelDeployment]:
        return {one.key: one for one in self.deployments}

    @cached_property
    def cluster(self) -> Mapping[str, InferenceCluster]:
        return {one.metadata.name: one for one in self.clusters}

    @cached_property
    def cache(self) -> Mapping[Key, ModelCache]:
        return {one.key: one for one in self.caches if one.metadata.deletion_timestamp is None}

    @cached_property
    def placed(self) -> Sequence[Replica]:
        """The replicas as the scheduler sees them."""
        return tuple(map(read, self.replicas))

    @cached_property
    def owned(self) -> Mapping[Key, Sequence[ModelReplica]]:
        """The replicas, by the deployment that they name as their owner."""
        found: defaultdict[Key, list[ModelReplica]] = defaultdict(list)
        for one, placed in zip(self.replicas, self.placed, strict=True):
            found[Key(placed.owner.namespace, placed.owner.name)].append(one)
        return found

    def fleet(self) -> FleetModel:
        """A model of the fleet that may be changed: another one each time."""
        if self.model is not None:
            return self.model.copy()
        fleet = FleetModel()
        for replica in self.placed:  # first: then each cluster is reckoned up once
            fleet.observe_placed(replica)
        for cluster in self.clusters:
            observe(fleet, cluster)
        return fleet

    def with_clusters(self, clusters: Iterable[InferenceCluster]) -> Snapshot:
        """The same hub with these clusters and no others; those that are the same objects are as they were seen."""
        kept = tuple(clusters)
        if self.model is None:
            return replace(self, clusters=kept)
        fleet, names = self.model.copy(), {one.metadata.name for one in kept}
        for one in self.clusters:
            if one.metadata.name not in names:
                fleet.forget_cluster(one.metadata.name)
        for one in kept:
            if one is not self.cluster.get(one.metadata.name):
                info = fleet.info(one.metadata.name)
                fleet.observe_cluster(one, unreachable_since=info.cluster.unreachable_since if info else None)
        return replace(self, clusters=kept, model=fleet)

    def placement_request(self, deployment: ModelDeployment, fleet: FleetModel) -> PlacementRequest:
        """What a deployment asks for, with its cache."""
        reference = deployment.replica.model_cache_ref
        found = self.cache.get(Key(deployment.key.namespace, reference.name)) if reference else None
        return placement_request(
            deployment, (found or NoCache.NOT_FOUND) if reference else NoCache.NOT_READ, fleet.devices
        )

    def decide(self, deployment: ModelDeployment, fleet: FleetModel) -> Decision:
        """The operator's decision: the same function of the same values."""
        return schedule(self.placement_request(deployment, fleet), fleet, now=self.now)

    def awaited(self, deployment: ModelDeployment, decision: Decision) -> tuple[str, ...]:
        """What new replicas wait for once they have their places: weights that are not on their clusters yet."""
        reference = deployment.replica.model_cache_ref
        cache = self.cache.get(Key(deployment.key.namespace, reference.name)) if reference else None
        if cache is None:
            return ()
        chosen = {one.cluster for one in decision.new}
        told = (awaited(cache, self.cluster[name].to_manifest()) for name in sorted(chosen & self.cluster.keys()))
        return tuple(sentence(words) for words in told if words)


def observe(fleet: FleetModel, cluster: InferenceCluster) -> None:
    """Add a cluster; whether it answers is what the operator has written down."""
    told = ready(cluster.conditions)
    silent = told is not None and told.reason == Ready.UNREACHABLE.reason
    fleet.observe_cluster(cluster, unreachable_since=told.last_transition_time if told and silent else None)


def ready(conditions: Iterable[Condition]) -> Condition | None:
    return next((one for one in conditions if one.type == Ready.__name__), None)
