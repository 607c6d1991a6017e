"""The fleet model says what a fleet without any cleverness says, whatever has happened before."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kubeloop.objects import Key
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.scheduling import cluster as clusters
from modelplane_operator.scheduling import fleet as fleets
from modelplane_operator.scheduling import placement as placements
from modelplane_operator.scheduling.cluster import ClusterView
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.requirement import placement_request
from modelplane_operator.scheduling.schedule import schedule
from tests.support import builders as b
from tests.support import strategies as some
from tests.support.plain_fleet import PlainFleet

NOW = b.EPOCH + timedelta(hours=1)
NAMES = ("my-model", "neighbour", "third")


class FleetEvents(RuleBasedStateMachine):
    """Clusters and replicas come, change and go, in any order; decisions are taken, and written or lost."""

    deployments: Bundle[ModelDeployment] = Bundle("deployments")
    pending: Bundle[ModelReplica] = Bundle("pending")

    def __init__(self) -> None:
        super().__init__()
        self.model = FleetModel()
        self.clusters: dict[str, ClusterView] = {}
        self.observed: dict[Key, ModelReplica] = {}

    @property
    def plain(self) -> PlainFleet:
        return PlainFleet.of(self.clusters.values(), map(placements.read, self.observed.values()))

    def decided(self, deployment: ModelDeployment) -> Decision:
        decision = schedule(placement_request(deployment), self.model, now=NOW)
        assert decision == schedule(placement_request(deployment), self.plain, now=NOW)
        return decision

    @initialize(fleet=some.fleets)
    def some_clusters(self, fleet: tuple[InferenceCluster, ...]) -> None:
        for cluster in fleet:
            self.a_cluster_is_seen(cluster, None)

    @initialize(target=deployments, first=some.deployments(NAMES[0]), second=some.deployments(NAMES[1]))
    def two_deployments(self, first: ModelDeployment, second: ModelDeployment) -> object:
        return multiple(first, second)

    @rule(target=deployments, name=st.sampled_from(NAMES), data=st.data())
    def a_deployment_is_written(self, name: str, data: st.DataObject) -> ModelDeployment:
        return data.draw(some.deployments(name))

    @rule(
        cluster=st.sampled_from(some.CLUSTERS).flatmap(some.clusters),
        unreachable_since=st.sampled_from((None, None, None, b.EPOCH)),
    )
    def a_cluster_is_seen(self, cluster: InferenceCluster, unreachable_since: datetime | None) -> None:
        self.model.observe_cluster(cluster, unreachable_since=unreachable_since)
        self.clusters[cluster.metadata.name] = clusters.read(cluster, unreachable_since=unreachable_since)

    @rule(name=st.sampled_from(some.CLUSTERS))
    def a_cluster_is_gone(self, name: str) -> None:
        self.model.forget_cluster(name)
        self.clusters.pop(name, None)

    @rule(target=pending, deployment=deployments)
    def new_places_are_found(self, deployment: ModelDeployment) -> object:
        return multiple(*(b.written(deployment, placement) for placement in self.decided(deployment).placements))

    @rule(replica=consumes(pending), ready=st.booleans())
    def a_write_is_seen(self, replica: ModelReplica, ready: bool) -> None:  # noqa: FBT001
        seen = b.answering(replica) if ready else replica
        self.model.observe_replica(seen)
        self.observed[replica.key] = seen

    @rule(deployment=deployments)
    def what_is_removed_starts_to_go(self, deployment: ModelDeployment) -> None:
        for removal in self.decided(deployment).removed:
            key = removal.replica.key
            if key in self.observed:
                self.observed[key] = b.terminating(self.observed[key])
                self.model.observe_replica(self.observed[key])

    @rule(data=st.data())
    def a_replica_is_gone(self, data: st.DataObject) -> None:
        if not self.observed:
            return
        key = data.draw(st.sampled_from(sorted(self.observed)))
        del self.observed[key]
        self.model.forget_replica(key)

    @rule()
    def a_copy_goes_on_and_the_first_is_emptied(self) -> None:
        first, self.model = self.model, self.model.copy()
        for name in some.CLUSTERS:
            first.forget_cluster(name)
        for key in self.observed:
            first.forget_replica(key)

    @rule(deployment=deployments)
    def a_decision_is_taken(self, deployment: ModelDeployment) -> None:
        self.decided(deployment)

    @invariant()
    def free_nodes_are_counted_right(self) -> None:
        plain = self.plain
        assert self.model.size == plain.size
        assert [self.model.info(name) for name in some.CLUSTERS] == [plain.info(name) for name in some.CLUSTERS]


TestFleetEvents = FleetEvents.TestCase
TestFleetEvents.settings = settings(deadline=None, max_examples=25, stateful_step_count=25)


def test_what_is_taken_is_seen_by_a_need_that_was_asked_before() -> None:
    fleet = FleetModel()
    fleet.observe_cluster(b.cluster("a", nodes=1))
    deployment = b.deployment()
    [placement] = schedule(placement_request(deployment), fleet, now=NOW).new
    replica = b.written(deployment, placement)
    other = placement_request(b.deployment(name="other", uid="other"))
    before = schedule(other, fleet, now=NOW)
    fleet.observe_replica(replica)
    taken = schedule(other, fleet, now=NOW)
    fleet.forget_replica(replica.key)
    after = schedule(other, fleet, now=NOW)

    assert (len(before.new), len(taken.new), after) == (1, 0, before)


def test_views_are_dropped_before_they_take_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "LEAST_VIEWS", 2)
    monkeypatch.setattr(fleets, "MOST_ANSWERS", 3 * len(some.CLUSTERS))
    fleet = FleetModel()
    for name in some.CLUSTERS:
        fleet.observe_cluster(b.cluster(name))
    needs = [placement_request(b.deployment(b.engine(copies=count))).requirement for count in range(1, 6)]
    for requirement in needs:
        fleet.survey(requirement, limit=1, apart=frozenset())

    assert list(fleet._views) == needs[-3:]


def test_what_is_gone_is_forgotten() -> None:
    fleet = FleetModel()
    deployment = b.deployment(replicas=8)
    for generation in range(400):
        size = f"{200 + generation}Gi"
        for name in some.CLUSTERS:
            fleet.observe_cluster(b.cluster(name, b.pool("p", b.gpu(size))))
        for placement in schedule(placement_request(deployment), fleet, now=NOW).new:
            fleet.observe_replica(b.written(deployment, placement))
        for replica in fleet.replicas(*deployment.key):
            fleet.forget_replica(replica.key)
        for name in some.CLUSTERS:
            fleet.forget_cluster(name)

    kept = {name: len(value) for name, value in vars(fleet).items() if hasattr(value, "__len__")}
    assert kept.pop("_interned") <= 64 + 4 * 2 + 2
    assert kept.pop("_views") == 1
    assert set(kept.values()) == {0}
