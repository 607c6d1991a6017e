"""Ready of a service is an answer: real controllers on a real API server, and a gateway that says what it is told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from kubeloop.cache.connection import Connection
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.cache.store import Store
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube
from kubeloop.client.resolver import Resolver
from kubeloop.loop import Clients
from kubeloop.objects import Key, key_of
from kubeloop.resource import of
from kubeloop.steps import KUBE
from kubeloop.types import HTTP_ROUTE, HUB, SECRET
from kubeloop.watched import collect_watches
from kubeloop.wiring import Runners, runner
from localfleet import binaries
from modelplane_operator.api import InferenceGateway, ModelEndpoint, ModelService, names
from modelplane_operator.operator import OWN_TYPES
from modelplane_operator.routing.endpoint import controller as model_endpoint
from modelplane_operator.routing.endpoint import outside
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.endpoint.hub_networks import HubRanges
from modelplane_operator.routing.gateway import traefik
from modelplane_operator.routing.service import controller as model_service
from modelplane_operator.routing.service.probe import Asker
from tests.support.api import Api
from tests.support.hub_gateway import Gateway, reply
from tests.support.waiting import until

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet

GROUP = "modelplane.ai/v1alpha1"
ELSEWHERE = "http://203.0.113.7:8000"  # of the range that is for documentation: nobody answers


def nowhere(_: str) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@dataclass(slots=True)
class Hub:
    """An operator that knows services and endpoints, and what stands for the gateway's controller: this test."""

    kube: Kube
    connection: Connection
    namespace: str
    gateway: Gateway = field(default_factory=Gateway)

    def said(self, kind: type[ModelService | ModelEndpoint], name: str, aspect: str = "Ready") -> tuple[str, str, str]:
        informer = self.connection.find(of(kind))
        found = informer.get(Key(self.namespace, name)) if informer else None
        conditions = (found or {}).get("status", {}).get("conditions", ())
        one: Manifest = next((one for one in conditions if one["type"] == aspect), {})
        return one.get("status", ""), one.get("reason", ""), one.get("message", "")

    async def make(self, kind: str, name: str, labels: Manifest, **spec: Any) -> None:
        metadata = {"name": name, "namespace": self.namespace, "labels": labels}
        await self.kube.create({"apiVersion": GROUP, "kind": kind, "metadata": metadata, "spec": spec})

    async def accept(self, service: str) -> None:
        """Say of the service's route what a gateway says that has accepted it, whether or not it serves it already."""
        key = Key(self.namespace, names.service_route(self.namespace, service))
        routes = self.connection.find(HTTP_ROUTE)
        assert routes is not None
        await until(lambda: routes.get(key) is not None, "the route")
        route = await self.kube.get(HTTP_ROUTE, key)
        now, generation = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), route["metadata"]["generation"]
        said = {"status": "True", "reason": "Any", "message": "", "lastTransitionTime": now}
        conditions = [{"type": one, "observedGeneration": generation, **said} for one in ("Accepted", "ResolvedRefs")]
        parent = {"parentRef": route["spec"]["parentRefs"][0], "controllerName": traefik.CONTROLLER}
        await self.kube.replace_status({**route, "status": {"parents": [{**parent, "conditions": conditions}]}})


@pytest.fixture
async def hub(
    api: Api,
    access: Access,
    kube: Kube,
    namespace: str,
) -> AsyncIterator[Hub]:
    programs = binaries.ensure("gateway-api-crds", "traefik-crds")
    await api.define(programs["gateway-api-crds"], programs["traefik-crds"] / "01-traefik-crd.yml")
    loop = asyncio.get_running_loop()
    runners = Runners()
    # Secrets are read again once in ten minutes, unless somebody notices that they have changed.
    referenced = ReferencedObjects(lambda: connection.kube, loop.time, 1200.0, runners.wake)
    resolver = Resolver(loop.time, nowhere)
    services, places = model_service.checks(Asker(loop.time), runners.wake), outside.checks(resolver, runners.wake)
    reach, ranges = Reach(allowed=("127.0.0.1/32",)), HubRanges(lambda: connection.kube, loop.time)
    controllers = (
        model_endpoint.controller(reach, referenced, ranges, resolver, places),
        model_service.controller(referenced, asking=services),
    )
    near, _ = collect_watches(controllers, OWN_TYPES, names.SYSTEM_NAMESPACE)
    connection = Connection(HUB, access, near, Store(loop.time), jitter=lambda: 0.5, on_call=lambda _: None)
    clients = Clients(connection, lambda _: connection, lambda: None, lambda: datetime.now(UTC), executors=KUBE)
    for one in controllers:
        runners.add(runner(one, clients, on_reconciled=lambda *_: None))
    runners.add_event_handlers(connection)
    hub = Hub(kube, connection, namespace)
    async with await asyncio.start_server(hub.gateway.serve, "127.0.0.1", 0) as server, asyncio.TaskGroup() as group:
        hub.gateway.port = server.sockets[0].getsockname()[1]
        spec = {"backend": "Traefik", "traefik": {"version": "40.2.0"}}
        kind = {"apiVersion": GROUP, "kind": "InferenceGateway", "metadata": {"name": "default"}}
        made = await kube.create({**kind, "spec": spec})
        url = f"http://127.0.0.1:{hub.gateway.port}"
        await kube.replace_status({**made, "status": {"address": "127.0.0.1", "url": url}})
        tasks = [group.create_task(connection.run())]
        await until(lambda: connection.synced and connection.health.answers, "the first lists")
        runners.enqueue_all(connection)
        tasks.append(group.create_task(runners.work()))
        yield hub
        for task in tasks:
            task.cancel()
    await kube.delete(of(InferenceGateway), key_of(made), uid=made["metadata"]["uid"])


async def test_a_service_is_ready_when_its_gateway_passes_requests_on(hub: Hub) -> None:
    await hub.make("ModelService", "chat", {}, endpoints=[{"selector": {"matchLabels": {"model": "chat"}}}])
    words = "No ModelEndpoints matched the configured selectors (model=chat)"
    none = (
        f"{words}; this namespace has no ModelEndpoints, and those of other namespaces do not count: create a"
        " ModelDeployment here"
    )
    await until(lambda: hub.said(ModelService, "chat", "EndpointsResolved")[2] == none, "what there is")
    await hub.make("ModelEndpoint", "other", {"model": "caht"}, url=ELSEWHERE, rewritePath="/")
    typo = f"{words}; of the 1 in this namespace: model=caht (1): select one of these"
    await until(lambda: hub.said(ModelService, "chat", "EndpointsResolved")[2] == typo, "what else there is")

    hub.gateway.says = lambda _: reply(404, "404 page not found\n")
    await hub.make("ModelEndpoint", "one", {"model": "chat"}, url=ELSEWHERE, rewritePath="/")
    await until(lambda: hub.said(ModelEndpoint, "one")[0] == "True", "the endpoint to be Ready, in doubt")
    routed = ("True", "RouteConfigured", "Requests go to 1 endpoint")

    async def accepted() -> None:
        while hub.said(ModelService, "chat", "RoutingReady") != routed:
            await hub.accept("chat")
            await asyncio.sleep(0.1)

    await asyncio.wait_for(accepted(), 60)
    asked = len(hub.gateway.asked)
    await until(lambda: len(hub.gateway.asked) >= asked + 2, "requests through the gateway")
    assert hub.said(ModelService, "chat")[0] == "False"
    hub.gateway.says = lambda _: reply(200)
    await until(lambda: hub.said(ModelService, "chat")[0] == "True", "the service to be Ready")
    assert hub.said(ModelService, "chat", "Answering")[1] == "Answered"


async def test_a_service_whose_keys_go_or_come_says_so_soon(hub: Hub) -> None:
    body = '{"error": {"code": "missing_api_key"}}'
    hub.gateway.says = lambda _: reply(401, body, f"content-length: {len(body)}\r\ncontent-type: application/json\r\n")
    secret, name = Key(hub.namespace, "clients"), {"name": "clients", "namespace": hub.namespace}
    made = await hub.kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": name, "stringData": {"a": "key"}})
    auth = {"apiKeys": {"secretRefs": [{"name": "clients"}]}}
    await hub.make("ModelEndpoint", "one", {"model": "chat"}, url=ELSEWHERE, rewritePath="/")
    await hub.make("ModelService", "chat", {}, endpoints=[{"selector": {"matchLabels": {"model": "chat"}}}], auth=auth)

    async def ready() -> None:
        while hub.said(ModelService, "chat")[0] != "True":
            await hub.accept("chat")
            await asyncio.sleep(0.1)

    await asyncio.wait_for(ready(), 60)
    await hub.kube.delete(SECRET, secret, uid=made["metadata"]["uid"])
    await until(lambda: hub.said(ModelService, "chat")[1] == "SecretNotFound", "the service to miss its Secret")
    assert hub.said(ModelService, "chat")[0] == "False"
    await hub.kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": name, "stringData": {"a": "key"}})
    await until(lambda: hub.said(ModelService, "chat")[0] == "True", "the service to have its Secret")


async def test_a_host_that_does_not_exist_is_told_by_its_endpoint(hub: Hub) -> None:
    await hub.make("ModelEndpoint", "away", {}, url="https://away.example", rewritePath="/")
    await until(lambda: hub.said(ModelEndpoint, "away", "RoutingReady")[1] == "InvalidURL", "the endpoint to say so")
    assert "away.example does not lead to 1 to 64 public addresses" in hub.said(ModelEndpoint, "away")[2]
