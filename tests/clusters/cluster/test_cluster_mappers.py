"""Clusters and classes are looked at again when something that counts has changed, and not otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.cache.fleet import Fleet
from kubeloop.cache.informer import Informer
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.cache.store import Store
from kubeloop.client.kube import Event
from kubeloop.client.resolver import Resolver
from kubeloop.loop import Change
from kubeloop.objects import Key
from kubeloop.reading import Cluster
from kubeloop.types import LIMIT_RANGE, NETWORK_POLICY, NODE, RESOURCE_SLICE, SECRET, ResourceType
from modelplane_operator.api import labels
from modelplane_operator.clusters.class_ import controller as inference_class
from modelplane_operator.clusters.cluster import controller as inference_cluster
from modelplane_operator.clusters.cluster.connections import Connections
from modelplane_operator.clusters.cluster.controller import CLASSES, CLUSTERS, REPLICAS
from modelplane_operator.clusters.cluster.fabrics import Fabrics
from modelplane_operator.clusters.cluster.gateways import Gateways
from modelplane_operator.clusters.cluster.hub_gateway import GATEWAYS, hosts_at, own_hosts
from modelplane_operator.models.replica import controller as model_replica
from modelplane_operator.routing.endpoint import controller as model_endpoint
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.endpoint.controller import ENDPOINTS
from tests.support.informers import holding, stored
from tests.support.nodes import node, slice_of
from tests.support.waiting import until

Manifest = dict[str, Any]

WORDS = {"lb.example.com": "192.0.2.1", "my.example.org": "192.0.2.1"}
CLUSTER = inference_cluster.controller(
    Connections(Fleet(Store(lambda: 0.0), cast("Any", None)), lambda _: None),
    Gateways(lambda: 0.0),
    Resolver(lambda: 0.0),
    Fabrics(),
)
INDEXES = inference_cluster.INDEXES[CLUSTERS]
REFERENCED = ReferencedObjects(cast("Any", None), lambda: 0.0, 1.0)


def cluster(name: str, *classes: str, nodes: int = 1) -> Manifest:
    pools = [{"name": each, "className": each} for each in classes]
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "spec": {"cluster": {"source": "Existing", "existing": {"secretRef": {"name": name}}}, "nodePools": pools},
        "status": {"gpuPools": [{"name": each, "nodes": nodes} for each in classes]},
    }


def known(generation: int, uid: str = "u") -> Manifest:
    return {"metadata": {"name": "h100", "uid": uid, "generation": generation}}


def kubeconfig(name: str, data: str = "", **metadata: str) -> Manifest:
    return {"metadata": {"name": name, "namespace": "modelplane-system", **metadata}, "data": {"kubeconfig": data}}


def replica(on: str, ready: str = "False") -> Manifest:
    return {"metadata": {"name": "r"}, "spec": {"clusterName": on}, "status": {"ready": ready}}


def woken(mappers: Any, kind: ResourceType, old: Manifest | None, new: Manifest | None) -> list[str]:
    clusters = Informer(CLUSTERS, now=lambda: 0.0, indexes=INDEXES)
    for one in (cluster("a", "h100"), cluster("b", "l4"), cluster("c", "l4", "h100")):
        clusters.on_event(Event("ADDED", one))
    hub = cast("Cluster", SimpleNamespace(find={CLUSTERS: clusters}.get))
    keys: Iterable[Key] = mappers[kind](Change(old, new, "remote"), hub)
    return [key.name for key in keys]


@pytest.mark.parametrize(
    ("kind", "old", "new", "wakes"),
    [
        (CLASSES, None, known(1), ["a", "c"]),
        (CLASSES, known(1), known(2), ["a", "c"]),
        (CLASSES, known(1), known(1), []),
        (CLASSES, known(1), known(1, "another"), ["a", "c"]),
        (CLASSES, known(1), None, ["a", "c"]),
        (REPLICAS, None, replica("a"), ["a"]),
        (REPLICAS, replica("a"), replica("a", "True"), []),
        (REPLICAS, replica("a"), replica("b"), ["a", "b"]),
        (REPLICAS, replica("a"), None, ["a"]),
        (SECRET, None, kubeconfig("a"), ["a"]),
        (SECRET, kubeconfig("a"), kubeconfig("a", deletionTimestamp="2026-01-01T00:00:00Z"), ["a"]),
        (SECRET, kubeconfig("a"), kubeconfig("a", "another"), []),  # its connection tells
        (SECRET, kubeconfig("a", namespace="x"), kubeconfig("a", namespace="x", deletionTimestamp="now"), []),
        (SECRET, kubeconfig("x"), kubeconfig("x", deletionTimestamp="2026-01-01T00:00:00Z"), []),
    ],
)
def test_who_is_woken_on_the_hub(
    kind: ResourceType, old: Manifest | None, new: Manifest | None, wakes: list[str]
) -> None:
    assert woken(CLUSTER.watches, kind, old, new) == wakes


@pytest.mark.parametrize(
    ("kind", "old", "new", "wakes"),
    [
        (NODE, None, node("n"), True),
        (NODE, node("n"), node("n", providerID="what does not count"), False),
        (NODE, node("n"), node("n", unschedulable=True), True),
        (NODE, node("n"), node("n", ready="Unknown"), True),
        (NODE, node("n"), node("n", pool="other"), True),
        (NODE, node("n"), None, True),
        (RESOURCE_SLICE, slice_of("n", "80Gi"), slice_of("n", "80Gi", attributes={"uuid": {"string": "x"}}), False),
        (RESOURCE_SLICE, slice_of("n", "80Gi"), slice_of("n"), True),
    ],
)
def test_who_is_woken_remotely(
    kind: ResourceType,
    old: Manifest | None,
    new: Manifest | None,
    wakes: bool,  # noqa: FBT001
) -> None:
    assert woken(CLUSTER.remote_watches, kind, old, new) == ["remote"] * wakes


@pytest.mark.parametrize(
    ("kind", "counted", "wakes"),
    [(LIMIT_RANGE, {}, ["here"]), (NETWORK_POLICY, {"generation": 1}, [])],
    ids=["no generation", "the same generation"],
)
def test_a_fence_that_somebody_changes_wakes_the_replicas_behind_it(
    kind: ResourceType, counted: Manifest, wakes: list[str]
) -> None:
    mappers = model_replica.controller(REFERENCED, Gateways(lambda: 0.0), cast("Any", None)).remote_watches
    here = {**stored(REPLICAS, "here", "ns"), "spec": {"clusterName": "remote"}}
    replicas = holding(REPLICAS, [here], **model_replica.INDEXES[REPLICAS])
    hub = cast("Cluster", SimpleNamespace(find={REPLICAS: replicas}.get))
    owned = {labels.OWNER_KIND: "Namespace", labels.OWNER_NAME: "ns"}
    before, after = (
        stored(kind, "fence", "modelplane-ns", labels=owned, resourceVersion=version, **counted) for version in "12"
    )

    assert [key.name for key in mappers[kind](Change(before, after, "remote"), hub)] == wakes


@pytest.mark.parametrize(
    ("old", "new", "wakes"),
    [
        (None, node("n"), []),
        (node("n"), node("n", cpu="more"), []),
        (node("n"), node("n", ready="Unknown"), ["here"]),
        (node("n", ready="Unknown"), node("n"), ["here"]),
        (node("n"), node("n", unschedulable=True), ["here"]),
        (node("n", ready="False"), None, ["here"]),
        (node("n", "other"), node("n", "other", ready="Unknown"), []),
    ],
)
def test_a_node_wakes_the_replicas_on_its_pool_when_it_begins_or_ceases_to_be_fit(
    old: Manifest | None, new: Manifest | None, wakes: list[str]
) -> None:
    mappers = model_replica.controller(REFERENCED, Gateways(lambda: 0.0), cast("Any", None)).remote_watches
    replicas = Informer(REPLICAS, now=lambda: 0.0, indexes=model_replica.INDEXES[REPLICAS])
    for name, on in (("here", "remote"), ("elsewhere", "a")):
        metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}
        spec = {"clusterName": on, "engines": [{"members": [{"nodePoolName": "gpu"}]}]}
        replicas.on_event(Event("ADDED", {"metadata": metadata, "spec": spec}))
    hub = cast("Cluster", SimpleNamespace(find={REPLICAS: replicas}.get))

    assert [key.name for key in mappers[NODE](Change(old, new, "remote"), hub)] == wakes


@pytest.mark.parametrize(
    ("old", "new", "wakes"),
    [
        (None, cluster("a", "h100"), ["h100"]),
        (cluster("a", "h100"), cluster("a", "l4"), ["h100", "l4"]),
        (cluster("a", "h100"), cluster("a", "h100", nodes=2), ["h100"]),
        (cluster("a", "h100"), {**cluster("a", "h100"), "metadata": {"name": "a", "labels": {"a": "b"}}}, []),
        (cluster("a", "h100"), None, ["h100"]),
    ],
)
def test_which_classes_a_cluster_wakes(old: Manifest | None, new: Manifest | None, wakes: list[str]) -> None:
    assert woken(inference_class.CONTROLLER.watches, CLUSTERS, old, new) == wakes


def test_the_nodes_of_a_class_are_those_that_its_pools_publish() -> None:
    two_kinds = cluster("a", "h100", "l4", nodes=3)
    unheard = {name: part for name, part in two_kinds.items() if name != "status"}

    assert inference_class.nodes(two_kinds, "h100") == 3
    assert inference_class.nodes(two_kinds, "a100") == 0
    assert inference_class.nodes(unheard, "h100") == 0


def gateway_at(address: str, secured: str = "False") -> Manifest:
    said = [{"type": "GatewaySecured", "status": secured}]
    return {"metadata": {"name": "west"}, "spec": {}, "status": {"gateway": {"address": address}, "conditions": said}}


@pytest.mark.parametrize(
    ("old", "new", "wakes"),
    [
        (None, gateway_at("192.0.2.7"), ["claims-an-owner", "theirs"]),
        (gateway_at("192.0.2.7"), gateway_at("192.0.2.7", "True"), ["claims-an-owner", "theirs"]),
        (gateway_at("192.0.2.7"), gateway_at("192.0.2.7"), []),
        (gateway_at("192.0.2.7"), gateway_at("192.0.2.8"), ["claims-an-owner", "theirs"]),
    ],
)
def test_endpoints_of_users_learn_that_a_cluster_says_to_be_where_they_lead(
    old: Manifest | None, new: Manifest, wakes: list[str]
) -> None:
    found = model_endpoint.controller(Reach(), REFERENCED, cast("Any", None), Resolver(lambda: 0.0))
    endpoints = Informer(ENDPOINTS, now=lambda: 0.0, indexes=model_endpoint.INDEXES[ENDPOINTS])
    owner = {"kind": "ModelDeployment", "name": "m", "uid": "d", "controller": True}
    for name, owners in (("theirs", []), ("claims-an-owner", [owner])):
        metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1", "ownerReferences": owners}
        endpoints.on_event(Event("ADDED", {"metadata": metadata, "spec": {"url": "http://192.0.2.7/v1"}}))
    hub = cast("Cluster", SimpleNamespace(find={ENDPOINTS: endpoints}.get))
    assert sorted(key.name for key in found.watches[CLUSTERS](Change(old, new, ""), hub)) == wakes


async def test_the_hub_gateway_is_known_by_what_its_names_stand_for() -> None:
    gateways = Informer(GATEWAYS, now=lambda: 0.0)
    spec = {"backend": "Traefik", "traefik": {"version": "1"}}
    metadata = {"name": "default", "uid": "g", "resourceVersion": "1"}
    gateways.on_event(Event("ADDED", {"metadata": metadata, "spec": spec, "status": {"address": "lb.example.com"}}))
    hub = cast("Cluster", SimpleNamespace(find={GATEWAYS: gateways}.get))
    resolver = Resolver(lambda: 0.0, lookup=lambda name: [WORDS[name]])
    await until(lambda: bool(hosts_at("my.example.org", resolver, "west") & own_hosts(hub, resolver)), "both names")
    assert own_hosts(hub, resolver) == {"lb.example.com", "192.0.2.1"}
    assert not hosts_at("192.0.2.2", resolver, "west") & own_hosts(hub, resolver)
