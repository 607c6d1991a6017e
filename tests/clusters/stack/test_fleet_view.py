"""What a rollout of charts learns from the hub: canaries, clusters that may not be disturbed, services that fail."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.errors import Unreachable
from kubeloop.loop import Clients
from kubeloop.types import ResourceType
from modelplane_operator.api import labels
from modelplane_operator.clusters.stack.fleet_view import (
    CLUSTERS,
    ENDPOINTS,
    SERVICES,
    STACKS,
    StackFleetView,
    find_failing_services,
)
from modelplane_operator.lookups import cluster_of_endpoint
from tests.support.informers import holding, stored
from tests.support.manifests import Manifest

NOW = datetime(2026, 11, 28, 3, 0, 30, tzinfo=UTC)
READY = {"type": "Ready", "status": "True", "reason": "Available", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def stack(name: str, **metadata: Any) -> Manifest:
    """The stack of an InferenceCluster with an installed chart."""
    owner = {labels.OWNER_KIND: "InferenceCluster", labels.OWNER_NAME: name}
    return {
        **stored(STACKS, f"{name}-stack", "modelplane-system", labels=owner, **metadata),
        "spec": {"secrets": [{"type": "Kubeconfig", "name": name, "key": "kubeconfig"}]},
        "status": {
            "conditions": [READY],
            "components": [{"name": "envoy-gateway", "state": "Deployed", "version": "v1.8.1"}],
        },
    }


def cluster(name: str, *, ready: bool = True, **metadata: Any) -> Manifest:
    conditions = [{**READY, "status": "True" if ready else "False"}]
    return {**stored(CLUSTERS, name, **metadata), "status": {"conditions": conditions}}


class World:
    """A hub with these objects, and clusters of which some do not answer."""

    def __init__(self, *objects: Manifest, away: tuple[str, ...] = ()) -> None:
        kinds = (STACKS, CLUSTERS, SERVICES)
        found = {kind: holding(kind, [one for one in objects if one["kind"] == kind.kind]) for kind in kinds}
        endpoints = [one for one in objects if one["kind"] == ENDPOINTS.kind]
        found[ENDPOINTS] = holding(ENDPOINTS, endpoints, cluster=cluster_of_endpoint)
        self.objects, self.away, self.found, self.view = objects, away, found, StackFleetView()

    def find(self, kind: ResourceType) -> Any:
        return self.found.get(kind)

    def fleet(self, name: str) -> Any:
        if name in self.away:
            raise Unreachable("ping: no answer in time")
        return SimpleNamespace(health=SimpleNamespace(answers=True))

    def members(self) -> dict[str, Any]:
        clients = cast("Clients", SimpleNamespace(hub=self, fleet=self.fleet, now=lambda: NOW))
        stacks = [one for one in self.objects if one["kind"] == STACKS.kind]
        return {member.cluster: member for member in self.view.list_members(stacks, clients)}


def test_a_label_of_the_cluster_or_of_its_stack_makes_a_canary() -> None:
    canary = {labels.CANARY: "true"}
    b = stack("b")
    b["metadata"]["labels"].update(canary)
    world = World(stack("a"), cluster("a", labels=canary), b, cluster("b"), stack("c"), cluster("c"))
    assert {name: member.canary for name, member in world.members().items()} == {"a": True, "b": True, "c": False}


@pytest.mark.parametrize("paused", ["stack", "cluster"])
def test_a_cluster_that_does_not_answer_or_is_paused_may_not_be_disturbed(paused: str) -> None:
    b = {"stack": stack("b"), "cluster": cluster("b")}
    b[paused]["metadata"]["annotations"] = {labels.PAUSED: "true"}
    world = World(stack("a"), cluster("a"), *b.values(), stack("c"), cluster("c"), away=("a",))
    assert {name: member.available for name, member in world.members().items()} == {"a": False, "b": False, "c": True}


def test_a_cluster_is_ready_if_both_of_its_objects_are_and_it_waits_until_it_has_reported() -> None:
    world = World(stack("a"), cluster("a", ready=False), stack("b"), cluster("b"))
    assert {name: member.ready for name, member in world.members().items()} == {"a": False, "b": True}
    assert {member.phase for member in world.members().values()} == {"Waiting"}


def test_a_stack_without_a_chart_or_that_cannot_be_read_is_no_member() -> None:
    new, broken, going = stack("a"), stack("b"), stack("c", deletionTimestamp="2026-01-01T00:00:00Z")
    new["status"]["components"] = [{"name": "envoy-gateway", "state": "Installing"}]
    broken["spec"] = {"secrets": "none"}
    assert World(new, broken, going).members() == {}


def test_services_fail_on_the_clusters_of_their_endpoints() -> None:
    def endpoint(name: str, where: str) -> Manifest:
        return stored(ENDPOINTS, name, "team", labels={labels.CLUSTER: where})

    def service(name: str, endpoints: list[str], *conditions: Manifest) -> Manifest:
        status = {"conditions": [*conditions], "endpoints": [{"name": one, "weight": 1} for one in endpoints]}
        return {**stored(SERVICES, name, "team"), "status": status}

    degraded = {**READY, "reason": "Degraded", "message": "40 of 40 requests in 5 minutes failed with 503"}
    silent = {**READY, "type": "Answering", "status": "False", "reason": "NotAnswered"}
    hub = World(
        endpoint("one", "a"),
        endpoint("two", "b"),
        service("fine", ["one", "two"], READY),
        service("degraded", ["one"], degraded),
        service("silent", ["one", "two"], READY, silent),
    )
    assert {name: [*find_failing_services(name, cast("Any", hub))] for name in ("a", "b", "c")} == {
        "a": ["team/degraded", "team/silent"],
        "b": ["team/silent"],
        "c": [],
    }


def test_a_member_is_computed_again_when_its_stack_has_changed() -> None:
    a = stack("a")
    world = World(a, cluster("a"))
    assert world.members()["a"].phase == "Waiting"
    turn = {"target": "t", "phase": "Upgrading", "since": "2026-01-01T00:00:00Z"}
    a["status"]["rollout"] = turn
    assert world.members()["a"].phase == "Waiting", "it has the same resourceVersion"
    a["metadata"]["resourceVersion"] = "2"
    assert world.members()["a"].phase == "Upgrading"
