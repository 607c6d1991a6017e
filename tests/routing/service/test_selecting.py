"""Who is woken by a change of an endpoint, and what a service finds: exactly what the selectors say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from kubeloop.cache.informer import Informer
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.loop import Change
from kubeloop.objects import Key, key_of
from kubeloop.reading import Cluster
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import InferenceGateway, ModelEndpoint, ModelReplica, ModelService
from modelplane_operator.api.model_service import EndpointsResolved
from modelplane_operator.routing.service.controller import INDEXES, controller, neighbours, select_endpoints
from tests.support.manifests import change

Manifest = dict[str, Any]

MAPPERS = controller(ReferencedObjects(cast(Any, None), lambda: 0.0, 1.0)).watches
ENDPOINTS, REPLICAS, SERVICES = of(ModelEndpoint), of(ModelReplica), of(ModelService)
GATEWAYS = of(InferenceGateway)


@dataclass
class Hub:
    """What the watches have seen, and nothing else of a hub."""

    informers: dict[ResourceType, Informer] = field(default_factory=dict[ResourceType, Informer])

    def find(self, kind: ResourceType) -> Informer | None:
        return self.informers.get(kind)


def hub(*manifests: Manifest) -> Cluster:
    made = Hub({kind: Informer(kind, lambda: 0.0, None, indexes) for kind, indexes in INDEXES.items()})
    for version, manifest in enumerate(manifests, start=1):
        of_endpoints = REPLICAS if "clusterName" in manifest["spec"] else ENDPOINTS
        kind = SERVICES if "endpoints" in manifest["spec"] else of_endpoints
        stored = {**manifest["metadata"], "resourceVersion": str(version), "uid": f"u{version}"}
        made.informers[kind].on_write({**manifest, "metadata": stored})
    return cast(Cluster, made)


def endpoint(name: str, labels: dict[str, str], namespace: str = "n", **status: Any) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"metadata": metadata, "spec": {"url": "http://10.0.0.1"}, "status": status}


def service(name: str, *selectors: dict[str, str], namespace: str = "n") -> Manifest:
    entries = [{"selector": {"matchLabels": labels}} for labels in selectors]
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"endpoints": entries}}


def lacking(one: Manifest) -> Manifest:
    """A service, as it says that it has no endpoints."""
    said = EndpointsResolved.NO_ENDPOINTS
    return {**one, "status": {"conditions": [{"type": "EndpointsResolved", "reason": said.reason}]}}


def replica(name: str, labels: dict[str, str], namespace: str = "n") -> Manifest:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"metadata": metadata, "spec": {"clusterName": "berlin"}}


def woken(kind: ResourceType, old: Manifest | None, new: Manifest | None, where: Cluster) -> set[Key]:
    return set(MAPPERS[kind](Change(old, new), where))


names = st.sampled_from("abcd")
namespaces = st.sampled_from("nm")
labels = st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3)
endpoints = st.lists(st.builds(endpoint, names, labels, namespaces), max_size=8, unique_by=key_of)
replicas = st.lists(st.builds(replica, names, labels, namespaces), max_size=8, unique_by=key_of)
services = st.lists(
    st.builds(lambda name, namespace, asked: service(name, *asked, namespace=namespace), names, namespaces,
              st.lists(labels, min_size=1, max_size=3)),
    max_size=8,
    unique_by=key_of,
)  # fmt: skip


def selects(one: Manifest, other: Manifest) -> bool:
    if one["metadata"]["namespace"] != other["metadata"]["namespace"]:
        return False
    carried: Iterable[tuple[str, str]] = other["metadata"]["labels"].items()
    return any(entry["selector"]["matchLabels"].items() <= carried for entry in one["spec"]["endpoints"])


@given(endpoints=endpoints, services=services, before=labels, after=labels)
def test_the_indexes_find_what_the_selectors_say(
    endpoints: list[Manifest], services: list[Manifest], before: dict[str, str], after: dict[str, str]
) -> None:
    where = hub(*endpoints, *services)

    for one in services:
        subject = ModelService.parse({**one, "metadata": {**one["metadata"], "uid": "u"}})
        found = {key_of(manifest) for manifest in select_endpoints(subject, where)}
        assert found == {key_of(other) for other in endpoints if selects(one, other)}
    old, new = endpoint("a", before), endpoint("a", after)
    concerned = {key_of(one) for one in services if selects(one, old) or selects(one, new)}
    assert woken(ENDPOINTS, old, new, where) == (concerned if before != after else set())
    assert woken(ENDPOINTS, None, old, where) == {key_of(one) for one in services if selects(one, old)}


@given(replicas=replicas, services=services, before=labels, after=labels)
def test_a_service_without_endpoints_hears_of_its_own_replicas_and_of_others_endpoints_while_it_has_none(
    replicas: list[Manifest], services: list[Manifest], before: dict[str, str], after: dict[str, str]
) -> None:
    where = hub(*replicas, *map(lacking, services))

    for one in services:
        subject = ModelService.parse({**one, "metadata": {**one["metadata"], "uid": "u"}})
        near, own = neighbours(subject, where), [other for other in replicas if selects(one, other)]
        assert [name for name, _ in near.replicas] == sorted(key_of(other).name for other in own)
    old, new = replica("a", before), replica("a", after)
    concerned = {key_of(one) for one in services if selects(one, old) or selects(one, new)}
    assert woken(REPLICAS, old, new, where) == (concerned if before != after else set())
    beside = endpoint("other", before)
    telling = {
        key_of(one)
        for one in services
        if key_of(one).namespace == "n" and not any(selects(one, other) for other in replicas)
    }
    assert woken(ENDPOINTS, None, beside, where) == telling | {key_of(one) for one in services if selects(one, beside)}


def test_a_service_that_begins_to_say_so_looks_once_more_for_what_went_meanwhile() -> None:
    one = {**service("s", {"x": "1"}), "status": {}}
    says = lacking(one)
    again = change(says, "metadata.resourceVersion", "7")

    assert woken(SERVICES, one, says, hub(says)) == woken(SERVICES, None, says, hub(says)) == {key_of(says)}
    for old, new in ((says, again), (says, one), (None, one), (says, None)):
        assert woken(SERVICES, old, new, hub(*filter(None, [new]))) == set(), (old, new)


def test_only_what_routes_are_made_of_wakes_a_service() -> None:
    where = hub(service("s", {"x": "1"}))
    before = endpoint("a", {"x": "1"}, routing={"backendName": "b"})

    def wakes(path: str, value: Any) -> bool:
        return bool(woken(ENDPOINTS, before, change(before, path, value), where))

    assert wakes("status.routing.backendName", "c")
    assert wakes("spec.rewritePath", "/")
    assert wakes("metadata.deletionTimestamp", "2026-01-01T00:00:00Z")
    assert wakes("status.conditions", [{"type": "RoutingReady", "reason": "InvalidURL", "message": "no host"}])
    assert not wakes("status.conditions", [{"type": "Ready"}])
    assert not wakes("metadata.annotations", {"a": "b"})
    assert not wakes("metadata.resourceVersion", "7")


def test_the_address_of_the_hub_gateway_wakes_every_service() -> None:
    where = hub(service("s", {"x": "1"}), service("t", {}))
    everyone = {Key("n", "s"), Key("n", "t")}
    door = {"metadata": {"name": "default"}, "spec": {"backend": "Traefik"}, "status": {"address": "10.0.0.1"}}

    assert woken(GATEWAYS, None, door, where) == everyone
    assert woken(GATEWAYS, door, change(door, "status.address", "10.0.0.2"), where) == everyone
    assert woken(GATEWAYS, door, None, where) == everyone
    assert woken(GATEWAYS, door, change(door, "status.conditions", []), where) == set()
    assert woken(GATEWAYS, None, change(door, "metadata.name", "second"), where) == set()
