"""B20: what the operator keeps of each replica's objects, and what reading them takes, without an API server.

All parts of an operator are there, with their informers, indexes, queues and the scheduler's model, and are given what
the watches of a hub and of its clusters would bring. The objects are those that renderers and plans make, as an API
server returns them: with uids, versions, `managedFields` and statuses.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import count
from time import thread_time
from typing import Any
from uuid import UUID

import orjson

from benchmarks import fleet_generator as generator
from benchmarks.live import scene
from benchmarks.live.workload_clusters import counts, pod_status, route
from benchmarks.report import Figure
from benchmarks.schedule import NOW, REPLICAS, observed
from modelplane_operator.api import ModelDeployment, ModelEndpoint, ModelReplica, ModelService
from modelplane_operator.api.base import of
from modelplane_operator.api.conditions import Condition, ConditionType, Ready, Synced
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.labels import FIELD_MANAGER
from modelplane_operator.api.model_service import Answering, EndpointsResolved, RoutingReady
from modelplane_operator.clients.access import Access
from modelplane_operator.clients.informer import Informer
from modelplane_operator.clients.lists import Listing
from modelplane_operator.controllers.kinds import kinds
from modelplane_operator.kube.objects import annotations_of
from modelplane_operator.kube.ownership import marked
from modelplane_operator.kube.resources import DEPLOYMENT, HTTP_ROUTE, POD, ResourceType, type_of
from modelplane_operator.planning import model_endpoint, model_replica
from modelplane_operator.planning.glance import glance
from modelplane_operator.rendering import cluster_gateway, traefik
from modelplane_operator.rendering.backend_url import Backend, Reach, parse_url
from modelplane_operator.rendering.model_deployment import render_endpoint, render_replica
from modelplane_operator.rendering.model_replica import BUDGETS, CannotRender, Context, Lifecycle, render_model_replica
from modelplane_operator.rendering.model_service import render_model_service
from modelplane_operator.rendering.weights import Target, selected, weighted
from modelplane_operator.runtime.operator import Operator, assemble
from modelplane_operator.scheduling.requirement import placement_request
from modelplane_operator.scheduling.schedule import schedule
from modelplane_operator.settings import Settings

Manifest = dict[str, Any]
World = Mapping[str, Mapping[ResourceType, list[Manifest]]]
"""The objects by cluster, where the hub has no name, and by type."""

PER_CLUSTER = 5
TIMES = 5
SINCE = rb'"lastTransitionTime":"[^"]*"'
PAGE = 500  # objects, as many as the hub is asked for at once
AROUND = Context("uid-of-the-namespace", frozenset((BUDGETS,)))
NOWHERE = Access("https://127.0.0.1:1")


def kept(size: int) -> Iterator[Figure]:
    """Five replicas for each cluster, ten to a deployment, a service for each deployment."""
    clusters, world = _world(size)
    replicas = len(world[""][of(ModelReplica)])
    lists = {place: {kind: _pages(found) for kind, found in kinds.items()} for place, kinds in world.items()}
    del world
    for figure in asyncio.run(_measured(clusters, lists, replicas)):
        yield Figure("B20", size, *figure)


Lists = Mapping[str, Mapping[ResourceType, list[bytes]]]


async def _measured(clusters: list[bytes], lists: Lists, replicas: int) -> list[tuple[str, float, str]]:
    probe = _started(clusters, lists)
    lists = {
        place: {kind: _bare(pages) if _informer(probe, place, kind).bare else pages for kind, pages in found.items()}
        for place, found in lists.items()
    }
    took = min(_read(clusters, lists)[1] for _ in range(TIMES))
    tracemalloc.start()
    operator, _, taken = _read(clusters, lists)
    sizes = Counter[str]()
    seen = set[int]()
    for place, found in lists.items():
        for kind in found:
            sizes[f"{kind.plural} of {'clusters' if place else 'the hub'}"] += _size(
                _informer(operator, place, kind), seen
            )
    sizes["queues, the scheduler's fleet and the like"] = taken - sizes.total()
    return [
        ("read the lists: CPU for each replica", round(took / replicas * 1e3, 3), "ms"),
        ("kept for each replica", round(taken / replicas / 1e3, 2), "KB"),
        *((f"of that, {what}", round(size / replicas / 1e3, 2), "KB") for what, size in sizes.most_common()),
    ]


def _bare(pages: list[bytes]) -> list[bytes]:
    return [orjson.dumps([{"metadata": one["metadata"]} for one in orjson.loads(page)]) for page in pages]


def _read(clusters: list[bytes], lists: Lists) -> tuple[Operator, float, int]:
    """An operator that has read all lists; in how many seconds; the bytes that it has taken, if these are traced."""
    operator = _started(clusters, lists)
    gc.collect()
    operator.fleet.store.alike.clear()
    before, began = tracemalloc.get_traced_memory()[0], thread_time()
    for place, found in lists.items():
        for kind, pages in found.items():
            _listed(operator, place, kind, pages)
    seconds = thread_time() - began
    operator.fleet.store.alike.clear()
    gc.collect()
    return operator, seconds, tracemalloc.get_traced_memory()[0] - before


def _size(informer: Informer, seen: set[int]) -> int:
    """The bytes of all that an informer keeps of its objects, but for what is in `seen`."""
    size, left = 0, list[Any]([informer._entries, informer._indexed._keys])  # noqa: SLF001 - and nothing beside them
    while left:
        one = left.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen.add(id(one))
            size += sys.getsizeof(one)
            left += gc.get_referents(one)
    return size


def _informer(operator: Operator, place: str, kind: ResourceType) -> Informer:
    informer = (operator.fleet.cluster(place) if place else operator.hub).find(kind)
    if informer is None:
        raise AssertionError(f"nobody watches {kind}")
    return informer


def _started(clusters: list[bytes], lists: Lists) -> Operator:
    """An operator that has seen the clusters, and nothing of replicas."""
    operator = assemble(Settings(), NOWHERE, kinds)
    _listed(operator, "", of(InferenceCluster), clusters)
    for place in lists:
        if place:
            operator.fleet.set(place, NOWHERE)
    return operator


def _listed(operator: Operator, place: str, kind: ResourceType, pages: Iterable[bytes]) -> None:
    """Give an informer what a list says, as a reflector does."""
    informer = _informer(operator, place, kind)
    read = informer.reader()
    entries = [read(one) for page in pages for one in orjson.loads(page)]
    if not all(entries):
        raise AssertionError(f"not read: {kind}")
    informer.listed(Listing(entries, "1000000000"))


# What there is -------------------------------------------------------------------------------------------------------


def _world(size: int) -> tuple[list[bytes], World]:
    clusters = list(generator.clusters(size))
    world: defaultdict[str, defaultdict[ResourceType, list[Manifest]]] = defaultdict(lambda: defaultdict(list))
    numbers = count(1)
    fleet = observed(clusters)
    for number in range(max(size * PER_CLUSTER // REPLICAS, 1)):
        model = ModelDeployment.parse(_stored(scene.deployment(number, replicas=REPLICAS), numbers))
        endpoints = list[ModelEndpoint]()
        for placement in schedule(placement_request(model), fleet, now=NOW).new:
            cluster = next(one for one in clusters if one.key.name == placement.cluster)
            replica = _stored(render_replica(model, placement, cluster), numbers)
            for cluster_, one in _of_replica(replica, numbers):
                world[cluster_][type_of(one)].append(one)
            fleet.observe_replica(ModelReplica.parse(replica))
            gateway = cluster.status.gateway.address if cluster.status and cluster.status.gateway else ""
            endpoint = _stored(render_endpoint(model, placement, gateway or ""), numbers)
            for one in _of_endpoint(endpoint, gateway or "", numbers):
                world[""][type_of(one)].append(one)
            endpoints.append(ModelEndpoint.parse(endpoint))
        service = _stored(scene.service(number), numbers)
        for one in (_ready(model.to_manifest()), *_of_service(service, endpoints, numbers)):
            world[""][type_of(one)].append(one)
    return _pages([_stored(one.to_manifest(), numbers) for one in clusters]), world


def _of_replica(replica: Manifest, numbers: Iterator[int]) -> Iterator[tuple[str, Manifest]]:
    """A replica, and all that is on its cluster for it."""
    read = ModelReplica.parse(replica)
    where, rendered = read.spec.cluster_name, render_model_replica(read, AROUND)
    if isinstance(rendered, CannotRender):
        raise TypeError(rendered.message)
    children = [_stored(one, numbers) for one in rendered]
    for one in children:
        if type_of(one) == HTTP_ROUTE:
            one["status"] = route(one, cluster_gateway.CONTROLLER)
        elif type_of(one) == DEPLOYMENT:
            one["status"] = {"observedGeneration": 1, **counts(1, 1)}
    pods = [_pod(one, numbers) for one in children if type_of(one) == DEPLOYMENT]
    state = model_replica.ClusterState()
    seen = model_replica.Observed(read, state, AROUND, tuple(children), tuple(pods), None, (), Lifecycle(), NOW)
    status = model_replica.plan(seen).status
    yield "", _ready(replica, *(status.conditions if status else ()))
    for one in (*children, *pods):
        yield where, one


def _of_endpoint(endpoint: Manifest, gateway: str, numbers: Iterator[int]) -> Iterator[Manifest]:
    read, state = ModelEndpoint.parse(endpoint), model_endpoint.ClusterState(gateway)
    backend = parse_url(read.spec.url)
    if not isinstance(backend, Backend):
        raise TypeError(backend.message)
    children = tuple(_stored(one, numbers) for one in traefik.render_endpoint(read, backend))
    seen = model_endpoint.Observed(read, children, traefik, Reach(), True, None, 0.0, (), NOW, state)  # noqa: FBT003
    status = model_endpoint.plan(seen).status
    told = _ready(endpoint, *(status.conditions if status else ()))
    yield {**told, "status": {**(status.to_manifest() if status else {}), **told["status"]}}
    yield from children


def _of_service(service: Manifest, endpoints: list[ModelEndpoint], numbers: Iterator[int]) -> Iterator[Manifest]:
    read = ModelService.parse(service)
    led = {one.key: (parse_url(one.spec.url), one.spec.rewrite_path) for one in endpoints}
    targets = {key: Target(to, path=path) for key, (to, path) in led.items() if isinstance(to, Backend)}
    yield _ready(service, *(one.condition(NOW, message="10 endpoints", generation=1) for one in OF_A_SERVICE))
    for one in render_model_service(read, weighted(read, selected(read, endpoints), targets)):
        stored = _stored(one, numbers)
        yield {**stored, **({"status": route(stored, traefik.CONTROLLER)} if type_of(one) == HTTP_ROUTE else {})}


OF_A_SERVICE: tuple[ConditionType, ...] = (
    EndpointsResolved.RESOLVED,
    RoutingReady.ROUTE_CONFIGURED,
    Answering.ANSWERED,
)


def _ready(manifest: Manifest, *conditions: Condition) -> Manifest:
    """One of our objects with the status that it has in the end."""
    told = {one.type: one for one in conditions}
    for one in (Ready.AVAILABLE, Synced.RECONCILE_SUCCESS):
        told.setdefault(one.type, one.condition(NOW, generation=1))
    status = {"conditions": [{**one.to_manifest(), "observedGeneration": 1} for one in told.values()]}
    return {**manifest, "status": glance(manifest, status)}


def _pod(deployment: Manifest, numbers: Iterator[int]) -> Manifest:
    template = deployment["spec"]["template"]
    metadata = {
        **template["metadata"],
        "name": f"{deployment['metadata']['name']}-7c9d8b6f5-x2x7q",
        "namespace": deployment["metadata"]["namespace"],
    }
    pod = {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": metadata, "spec": template["spec"]}
    return {**_stored(pod, numbers, manager="kube-controller-manager"), **pod_status(ready=True)}


def _stored(manifest: Manifest, numbers: Iterator[int], *, manager: str = FIELD_MANAGER) -> Manifest:
    """An object as an API server returns it, once our fields are applied."""
    ours = marked(manifest) if manager == FIELD_MANAGER and not annotations_of(manifest) else manifest
    number = next(numbers)
    when = f"{NOW + timedelta(seconds=number):%Y-%m-%dT%H:%M:%SZ}"
    managed = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": manifest["apiVersion"],
        "time": when,
        "fieldsType": "FieldsV1",
        "fieldsV1": _fields({name: value for name, value in ours.items() if name not in {"apiVersion", "kind"}}),
    }
    given = {
        "uid": str(UUID(int=(number << 64) + number * 2654435761 % 2**62)),
        "resourceVersion": str(number),
        "generation": 1,
        "creationTimestamp": when,
        "managedFields": [managed],
    }
    return orjson.loads(orjson.dumps({**ours, "metadata": {**ours["metadata"], **given}}))


def _fields(value: Any) -> Manifest:
    if isinstance(value, dict):
        return {f"f:{name}": _fields(item) for name, item in value.items()}
    if isinstance(value, list):
        named = [item for item in value if isinstance(item, dict) and "name" in item]
        return {f'k:{{"name":"{item["name"]}"}}': {".": {}, **_fields(item)} for item in named}
    return {}


def _pages(objects: list[Manifest]) -> list[bytes]:
    """Lists, as they come; things have become true one after the other."""
    said = [
        re.sub(SINCE, f'"lastTransitionTime":"{one["metadata"]["creationTimestamp"]}"'.encode(), orjson.dumps(one))
        for one in objects
    ]
    return [b"[%s]" % b",".join(said[start : start + PAGE]) for start in range(0, len(said), PAGE)]
