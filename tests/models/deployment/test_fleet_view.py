"""The scheduler's fleet follows what the hub's watches and the connections tell."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kubeloop.cache.informer import Informer
from kubeloop.cache.prober import Health
from kubeloop.errors import Unreachable
from kubeloop.objects import Key
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import InferenceCluster, ModelDeployment, ModelReplica
from modelplane_operator.models.deployment.fleet_view import FleetView
from modelplane_operator.scheduling.requirement import placement_request
from modelplane_operator.scheduling.schedule import schedule
from tests.support import builders as b

CLUSTERS, REPLICAS = of(InferenceCluster), of(ModelReplica)


class Hub:
    """What the hub's watches tell a view."""

    def __init__(self) -> None:
        self.now = b.EPOCH
        self.view = FleetView(lambda: self.now)
        self.informers = {type_: Informer(type_, lambda: 0.0) for type_ in (CLUSTERS, REPLICAS, of(ModelDeployment))}
        for informer in self.informers.values():
            self.view.add_event_handlers(informer)
        self._version = 0

    def tells(self, one: InferenceCluster | ModelReplica, **changes: Any) -> None:
        self._version += 1
        manifest = one.to_manifest() | changes
        manifest["metadata"] |= {"uid": f"uid-of-{manifest['metadata']['name']}", "resourceVersion": str(self._version)}
        self.informers[of(type(one))].on_write(manifest)

    def loses(self, type_: ResourceType, key: Key) -> None:
        self.informers[type_].on_delete(key, f"uid-of-{key.name}")

    def places(self, deployment: ModelDeployment) -> list[str]:
        decision = schedule(placement_request(deployment), self.view.model, now=self.now)
        return [placement.cluster for placement in decision.new]


@pytest.fixture
def hub() -> Hub:
    hub = Hub()
    hub.tells(b.cluster("a", nodes=1))
    return hub


def test_a_replica_has_its_nodes_from_the_moment_it_is_written_until_it_is_gone(hub: Hub) -> None:
    deployment, other = b.deployment(), b.deployment(name="other", uid="other")
    [placement] = schedule(placement_request(deployment), hub.view.model, now=hub.now).new
    replica = b.written(deployment, placement)

    assert hub.places(other) == ["a"]
    hub.tells(replica)
    assert hub.places(other) == []
    assert hub.places(deployment) == [], "it is there"
    hub.loses(REPLICAS, replica.key)
    assert hub.places(other) == ["a"]


def test_clusters_with_pools_alike_share_what_is_known_of_their_devices(hub: Hub) -> None:
    hub.tells(b.cluster("b", nodes=2))
    hub.tells(b.cluster("c", b.pool("default", b.gpu("24Gi"))))
    a, other, unlike = (hub.view.clusters[name].status for name in "abc")

    assert a and other and unlike
    assert other.gpu_pools[0].nodes == 2
    assert other.gpu_pools[0].devices is a.gpu_pools[0].devices
    assert unlike.gpu_pools[0].devices != a.gpu_pools[0].devices


def test_a_cluster_that_is_gone_takes_nothing(hub: Hub) -> None:
    hub.loses(CLUSTERS, Key("", "a"))

    assert hub.places(b.deployment()) == []
    assert (hub.view.clusters, hub.view.model.size) == ({}, 0)


def test_what_cannot_be_read_leaves_the_fleet_as_it_was(hub: Hub) -> None:
    known = hub.view.clusters["a"]
    hub.tells(b.cluster("a", nodes=1), spec={"cluster": "of another version"})

    assert hub.view.clusters["a"] is known
    assert hub.places(b.deployment()) == ["a"]


def test_a_cluster_is_silent_since_it_first_failed_until_it_answers(hub: Hub) -> None:
    silent = Health(error=Unreachable("no answer"))
    hub.view.on_health("a", silent)
    hub.now += timedelta(minutes=1)
    hub.view.on_health("a", silent)

    def since() -> object:
        info = hub.view.model.info("a")
        assert info is not None
        return info.cluster.unhealthy_since

    assert since() == b.EPOCH
    hub.tells(b.cluster("a", nodes=2))
    assert since() == b.EPOCH, "news of the hub are no answer of the cluster"
    hub.view.on_health("a", Health())
    assert since() is None


def test_a_cluster_that_fails_before_it_is_known_is_silent_when_it_is() -> None:
    hub = Hub()
    hub.view.on_health("a", Health(error=Unreachable("no answer")))
    hub.tells(b.cluster("a"))
    info = hub.view.model.info("a")

    assert info is not None
    assert info.cluster.unhealthy_since == b.EPOCH
