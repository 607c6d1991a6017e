"""The hub's half of a request's way: real controllers on a real API server, and a real gateway that obeys them."""

from __future__ import annotations

import asyncio
import base64
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
import yaml

from kubeloop.cache.connection import Connection
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.cache.store import Store
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube
from kubeloop.client.resolver import Resolver
from kubeloop.client.wire import Call
from kubeloop.loop import Clients
from kubeloop.objects import Key, annotations_of
from kubeloop.reading import find
from kubeloop.resource import Resource, of
from kubeloop.steps import KUBE
from kubeloop.types import GATEWAY, HTTP_ROUTE, HUB, NAMESPACE, SECRET
from kubeloop.watched import collect_watches
from kubeloop.wiring import Runners, runner
from localfleet.network import free_ports
from modelplane_operator.api import InferenceGateway, ModelEndpoint, ModelService, labels, names
from modelplane_operator.operator import OWN_TYPES
from modelplane_operator.routing.endpoint import controller as model_endpoint
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.endpoint.hub_networks import HubRanges
from modelplane_operator.routing.gateway import controller as inference_gateway
from modelplane_operator.routing.service import controller as model_service
from modelplane_operator.routing.service.api_keys import PATHS
from tests.support.api import Api
from tests.support.fronts import ADDRESS, Front, echo, opened, own_address
from tests.support.fronts import NAMESPACE as TEAM
from tests.support.secrets import secret_of
from tests.support.waiting import until
from tests.support.world import READS

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet

THIEF = Key("a-thief", "modelplane")  # listed before our own
HOST = "models.example.com"
KEYS = "keys.example.com"  # where gateways find the key service
SPECS: Mapping[str, Manifest] = {
    "Traefik": {"backend": "Traefik", "traefik": {"version": "40.2.0"}},
    "EnvoyGateway": {"backend": "EnvoyGateway", "envoyGateway": {"version": "v1.9.1"}},
}
PAUSE = 0.05  # between two requests: who asks without one takes the processor from the gateway
ANSWERED = 120.0  # seconds until a gateway follows, on a machine that is busy with other gateways


@dataclass(slots=True)
class Hub:
    """An operator of the hub's half, and the gateway that it directs."""

    api: Api
    kube: Kube
    connection: Connection
    front: Front
    backend: str
    calls: list[Call] = field(default_factory=list)

    async def apply(self, *manifests: Manifest) -> None:
        await self.api.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def gateway(self, name: str, **spec: Any) -> Manifest:
        kind = {"apiVersion": "modelplane.ai/v1alpha1", "kind": "InferenceGateway"}
        return {**kind, "metadata": {"name": name}, "spec": {**SPECS[self.front.backend], **spec}}

    async def delete(self, kind: type[Resource[Any, Any]], name: str) -> None:
        await self.api.kubectl("-n", TEAM, "delete", kind.definition.name, name)

    def status(self, kind: type[Resource[Any, Any]], name: str) -> Manifest:
        """The status of an object as the operator sees it."""
        informer = self.connection.find(of(kind))
        key = Key(TEAM if kind.definition.scope == "Namespaced" else "", name)
        manifest = informer.get(key) if informer else None
        return (manifest or {}).get("status", {})

    def said(self, kind: type[Resource[Any, Any]], name: str, aspect: str = "Ready") -> tuple[str, str, str]:
        conditions = self.status(kind, name).get("conditions", ())
        found: Manifest = next((one for one in conditions if one["type"] == aspect), {})
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    async def until_ready(self, kind: type[Resource[Any, Any]], name: str, ready: str = "True") -> None:
        await until(lambda: self.said(kind, name)[0] == ready, f"{kind.__name__} {name} to be Ready: {ready}")

    async def answer(self, service: str, **headers: str) -> tuple[int, list[str]]:
        status, body = await asyncio.to_thread(self.front.get, service, **headers)
        return status, body.split()[2:]

    async def answer_by_https(self, service: str, authority: trustme.CA, host: str = HOST) -> tuple[int, str]:
        """Status and body, over a connection to HOST that this authority verifies."""
        trust = ssl.create_default_context()
        authority.configure_trust(trust)
        url = f"https://127.0.0.1:{self.front.secure}/{TEAM}/{service}/v1/models?all=1"
        headers = {"Host": host}
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=trust, server_hostname=HOST) as answer,
        ):
            return answer.status, await answer.text()

    async def until_answered_by_https(self, service: str, authority: trustme.CA) -> None:
        said: object = None
        try:
            async with asyncio.timeout(ANSWERED):
                while True:
                    try:
                        said = await self.answer_by_https(service, authority)
                    except aiohttp.ClientError as refused:
                        said = refused
                    else:
                        if said[0] == 200:
                            return
                    await asyncio.sleep(PAUSE)
        except TimeoutError:
            pytest.fail(f"{service} went on to answer {said} by https")

    async def until_always(self, service: str, status: int, **headers: str) -> None:
        """Until twenty requests, one after the other, are answered so: a gateway may not know all parts at once."""
        async with asyncio.timeout(ANSWERED):
            while {(await self.answer(service, **headers))[0] for _ in range(20)} != {status}:  # noqa: ASYNC110
                await asyncio.sleep(PAUSE)

    async def until_answered(self, service: str, status: int, *body: str, **headers: str) -> None:
        answered: tuple[int, list[str]] | None = None
        try:
            async with asyncio.timeout(ANSWERED):
                while answered != (status, [*body]):
                    with suppress(OSError):  # nobody listens yet
                        answered = await self.answer(service, **headers)
                    await asyncio.sleep(PAUSE)
        except TimeoutError:
            pytest.fail(f"{service} went on to answer {answered}")


@dataclass(slots=True)
class KeyService:
    """`modelplane_operator keys`, as a process."""

    kubeconfig: Path
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        told = [f"--kubeconfig={self.kubeconfig}", f"--listen=127.0.0.1:{self.port}", "--log-level=debug"]
        with self.log.open("a") as log:
            command = [sys.executable, "-m", "modelplane_operator", "keys", *told]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def end(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=30)


def endpoint(name: str, url: str, **spec: Any) -> Manifest:
    metadata = {"name": name, "namespace": TEAM, "labels": {"name": name}}
    return {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "ModelEndpoint",
        "metadata": metadata,
        "spec": {"url": url, "rewritePath": "/inner/", **spec},
    }


def service(name: str, *selected: str) -> Manifest:
    entries = [{"selector": {"matchLabels": {"name": one}}} for one in selected]
    return {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"endpoints": entries},
    }


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    (port,) = free_ports(1)
    with echo(port):
        yield f"http://{own_address()}:{port}"


@pytest.fixture(scope="module", params=[*SPECS])
async def front(
    request: pytest.FixtureRequest,
    api: Api,
    backend: str,
    keys: KeyService,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    (folder / "hosts").write_text(
        f"127.0.0.1 localhost traefik.traefik-system.svc modelplane.envoy-gateway-system.svc.cluster.local {KEYS}\n"
    )
    reached = [(own_address(), int(backend.rpartition(":")[2])), ("127.0.0.1", keys.port)]
    async with opened(request.param, api, folder, reached) as it:
        yield it


@pytest.fixture(scope="module")
async def keys(api: Api, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KeyService]:
    """The program as the image runs it."""
    (port,) = free_ports(1)
    service = KeyService(api.server.kubeconfig, port, tmp_path_factory.mktemp("keys") / "log")
    service.begin()
    yield service
    service.end()


@pytest.fixture
async def hub(  # noqa: PLR0917 - fixtures
    api: Api,
    access: Access,
    kube: Kube,
    front: Front,
    backend: str,
    keys: KeyService,
) -> AsyncIterator[Hub]:
    loop = asyncio.get_running_loop()
    calls: list[Call] = []
    referenced = ReferencedObjects(lambda: connection.kube, loop.time, 1.0)
    controllers = (
        inference_gateway.controller((), None),
        model_endpoint.controller(
            Reach(allowed=(own_address(),)),
            referenced,
            HubRanges(lambda: connection.kube, loop.time),
            Resolver(loop.time),
        ),
        model_service.controller(referenced, (KEYS, keys.port)),
    )
    near, _ = collect_watches(controllers, OWN_TYPES, names.SYSTEM_NAMESPACE)
    connection = Connection(HUB, access, near, Store(loop.time), jitter=lambda: 0.5, on_call=calls.append)
    clients = Clients(connection, lambda _: connection, lambda: None, lambda: datetime.now(UTC), executors=KUBE)
    runners = Runners()
    for one in controllers:
        runners.add(runner(one, clients, on_reconciled=lambda *_: None))
    runners.add_event_handlers(connection)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(connection.run())]
        await until(lambda: connection.synced and connection.health.answers, "the first lists")
        runners.enqueue_all(connection)
        tasks.append(group.create_task(runners.work()))
        yield Hub(api, kube, connection, front, backend, calls)
        for task in tasks:
            task.cancel()


async def test_the_hub_gateway_opens_and_a_second_one_says_that_it_does_not(hub: Hub) -> None:
    await hub.apply(hub.gateway("second"), hub.gateway("default"))

    await hub.until_ready(InferenceGateway, "default")
    await hub.until_ready(InferenceGateway, "second", "False")
    assert hub.status(InferenceGateway, "default")["address"] == ADDRESS
    assert hub.said(InferenceGateway, "default", "ControllerReady")[:2] == ("True", "ControllerHealthy")
    assert hub.said(InferenceGateway, "second", "ControllerReady")[:2] == ("False", "NotServed")
    namespace = await hub.kube.get(NAMESPACE, Key("", "modelplane-system"))
    assert "ownerReferences" not in namespace["metadata"]


async def test_a_gateway_elsewhere_with_the_hub_gateways_labels_is_not_the_hub_gateway(hub: Hub) -> None:
    """Its owner would get the keys of all clients."""
    await hub.apply(hub.gateway("default"))
    await hub.until_ready(InferenceGateway, "default")
    gateways = hub.connection.find(GATEWAY)
    assert gateways is not None
    ours = gateways.get(Key("modelplane-system", "modelplane"))
    assert ours is not None
    spec = {"gatewayClassName": "theirs", "listeners": ours["spec"]["listeners"][:1]}
    metadata = {"name": "modelplane", "namespace": THIEF.namespace, "labels": ours["metadata"]["labels"]}
    theirs = {"apiVersion": ours["apiVersion"], "kind": "Gateway", "metadata": metadata, "spec": spec}
    forged = {**theirs, "status": {"addresses": [{"value": "203.0.113.66"}]}}
    as_we_do = ("--server-side", "--field-manager=modelplane", "-f", "-")
    await hub.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": THIEF.namespace}})
    await hub.api.kubectl("apply", *as_we_do, stdin=yaml.safe_dump(theirs))
    await hub.api.kubectl("apply", "--subresource=status", *as_we_do, stdin=yaml.safe_dump(forged))
    await until(lambda: "203.0.113.66" in str(gateways.get(THIEF)), "the operator to see the address")

    await hub.apply(hub.gateway("default", auth={"mode": "None"}))
    changed = (await hub.kube.get(of(InferenceGateway), Key("", "default")))["metadata"]["generation"]
    conditions = lambda: hub.status(InferenceGateway, "default")["conditions"]  # noqa: E731
    await until(lambda: {one["observedGeneration"] for one in conditions()} == {changed}, "another look")

    assert hub.status(InferenceGateway, "default")["address"] == ADDRESS
    assert await hub.kube.find(GATEWAY, THIEF) is not None, "what is another's is not ours to delete"
    await hub.api.kubectl("delete", "gateway", THIEF.name, f"-n{THIEF.namespace}")


async def test_a_service_follows_its_endpoints(hub: Hub) -> None:
    """All that can become of one, in the order in which it may."""
    path = "/inner/v1/models?all=1"
    await hub.apply(hub.gateway("default"), service("chat", "one"))
    await hub.until_ready(ModelService, "chat", "False")
    assert hub.said(ModelService, "chat", "EndpointsResolved")[1] == "NoEndpoints"
    await hub.until_answered("chat", 503)

    await hub.apply(endpoint("one", hub.backend))
    await hub.until_ready(ModelService, "chat")
    assert hub.status(ModelService, "chat")["address"] == f"http://{ADDRESS}/{TEAM}/chat"
    assert hub.status(ModelService, "chat")["endpoints"] == [{"name": "one", "weight": 1}]
    await hub.until_answered("chat", 200, path)

    await hub.apply(endpoint("one", "not-a-url"))
    await hub.until_ready(ModelEndpoint, "one", "False")
    assert hub.said(ModelEndpoint, "one")[2].endswith(f"; requests go on to {hub.backend}")
    assert (await hub.answer("chat"))[0] == 200

    await hub.delete(ModelEndpoint, "one")
    await hub.until_ready(ModelService, "chat", "False")
    assert hub.status(ModelService, "chat")["address"] == f"http://{ADDRESS}/{TEAM}/chat"
    await hub.until_answered("chat", 503)


@pytest.mark.parametrize(("key", "prefix"), [("provider", None), ("credential", "")], ids=["header", "injected"])
async def test_credentials_come_from_a_secret_and_go_with_it(hub: Hub, key: str, prefix: str | None) -> None:
    path, theirs = "/inner/v1/models?all=1", {"Authorization": "Bearer theirs"}
    whole = "Bearer " if prefix is not None else ""
    credentials = {"secretRef": {"name": "keys", "key": key}, **({"prefix": prefix} if whole else {})}
    await hub.apply(
        hub.gateway("default"), endpoint("keyed", hub.backend, credentials=credentials), service("outside", "keyed")
    )
    await hub.until_ready(ModelService, "outside", "False")
    absent = f"Secret keys does not exist: make it, with the credentials under the key {key}; no requests go there"
    missing = ("False", "CredentialsMissing", absent)
    await until(lambda: hub.said(ModelEndpoint, "keyed", "RoutingReady") == missing, "the endpoint to miss its Secret")
    await hub.until_answered("outside", 503, **theirs)

    await hub.apply(secret_of(TEAM, "keys", **{key: f"{whole}first"}))
    await hub.until_answered("outside", 200, path, "Authorization=Bearer", "first", **theirs)
    await hub.apply(secret_of(TEAM, "keys", **{key: f"{whole}second"}))
    await hub.until_answered("outside", 200, path, "Authorization=Bearer", "second", **theirs)
    await hub.until_ready(ModelService, "outside")
    by_itself = hub.front.backend == "EnvoyGateway" and key == "credential"
    assert ("second" in await hub.api.kubectl("-n", TEAM, "get", "httproutes", "-o", "yaml")) is not by_itself

    watched = [informer for informer in hub.connection.informers if informer.type == SECRET]
    assert not any(informer.get(Key(TEAM, "keys")) for informer in watched), "Secrets of users are not watched"

    await hub.api.kubectl("-n", TEAM, "delete", "secret", "keys")
    await hub.until_answered("outside", 503, **theirs)
    await hub.until_ready(ModelEndpoint, "keyed", "False")


async def test_what_a_user_writes_freezes_nobodys_routes(hub: Hub) -> None:
    """Envoys take all routes or none, and read some texts as expressions."""
    values = ("100%", "%REQ(x?y?z)%", "%ENVIRONMENT(HOME)%", "%%", "%NO_SUCH_THING%")
    paths = ("/inner%/", "/inner/%REQ(x?y?z)%/", "/inner/{{x}}/$1/`/", "/a?b#c/", '/"/', "//", "/../")
    await hub.apply(hub.gateway("default"), endpoint("steady", hub.backend), service("steady", "steady"))
    await hub.until_answered("steady", 200, "/inner/v1/models?all=1")

    for number, value in enumerate(values):
        name, reference = f"value-{number}", {"secretRef": {"name": f"value-{number}", "key": "k"}, "prefix": ""}
        await hub.apply(
            secret_of(TEAM, name, k=value), endpoint(name, hub.backend, credentials=reference), service(name, name)
        )
    for number, path in enumerate(paths):
        name = f"path-{number}"
        await hub.apply(endpoint(name, hub.backend, rewritePath=path), service(name, name))
    for number, value in enumerate(values):
        await hub.until_answered(f"value-{number}", 200, "/inner/v1/models?all=1", f"Authorization={value}")
    for number in range(len(paths)):
        await hub.until_ready(ModelService, f"path-{number}")

    await hub.apply(service("late", "steady"))
    await hub.until_answered("late", 200, "/inner/v1/models?all=1")


async def test_an_endpoint_that_leads_back_to_the_hub_gateway_is_no_loop(hub: Hub) -> None:
    """The hub gateway is at an address that it does not know as its own, as a name behind another one may be."""
    round_about = f"http://{own_address()}:{hub.front.port}"
    await hub.apply(hub.gateway("default"), endpoint("steady", hub.backend), service("steady", "steady"))
    await hub.apply(*(endpoint(f"loop-{n}", round_about, rewritePath=f"/{TEAM}/loop/") for n in range(20)))
    await hub.apply(service("loop", *(f"loop-{n}" for n in range(20))))
    await hub.apply(endpoint("again", round_about, rewritePath=f"/{TEAM}/alone/"), service("alone", "again"))
    await hub.apply(endpoint("behind", round_about, rewritePath=f"/{TEAM}/steady/"), service("twice", "behind"))
    await hub.until_answered("steady", 200, "/inner/v1/models?all=1")
    for name in ("loop", "alone", "twice"):
        await hub.until_ready(ModelService, name)
        await hub.until_always(name, 503)
    assert (await hub.answer("steady"))[0] == 200


async def test_no_endpoint_leads_to_the_hub_gateway_by_its_address_or_name(hub: Hub) -> None:
    tls = {"secretRef": {"name": "none"}, "hostnames": ["models.example.org", "*.models.example.net"]}
    await hub.apply(hub.gateway("default", tls=tls))
    await until(lambda: hub.status(InferenceGateway, "default").get("address") == ADDRESS, "the address")
    for number, host in enumerate((ADDRESS, "MODELS.example.org.")):
        await hub.apply(endpoint(f"back-{number}", f"http://{host}:8080"))
        await until(
            lambda name=f"back-{number}": hub.said(ModelEndpoint, name, "RoutingReady")[1] == "InvalidURL", host
        )
        assert "own gateway" in hub.said(ModelEndpoint, f"back-{number}")[2]
        await hub.delete(ModelEndpoint, f"back-{number}")
    await hub.apply(hub.gateway("default"))
    await until(lambda: hub.status(InferenceGateway, "default").get("url") == f"http://{ADDRESS}", "http again")


async def test_at_rest_nothing_is_written(hub: Hub) -> None:
    await hub.apply(hub.gateway("default"), endpoint("rest", hub.backend), service("resting", "rest"))
    await hub.until_ready(ModelService, "resting")
    await hub.until_answered("resting", 200, "/inner/v1/models?all=1")
    await at_rest(hub)
    before = len(hub.calls)

    await hub.api.kubectl("-n", TEAM, "label", "modelendpoint", "rest", "unselected=label")
    endpoints = hub.connection.find(of(ModelEndpoint))
    assert endpoints is not None
    await until(lambda: "unselected" in str(endpoints.get(Key(TEAM, "rest"))), "the label")
    await asyncio.sleep(1)  # nothing to wait for: it is nothing that shall happen

    assert written(hub, before) == []


def written(hub: Hub, since: int = 0) -> list[str]:
    return [f"{call.verb} {call.resource}" for call in hub.calls[since:] if call.verb not in READS]


async def at_rest(hub: Hub) -> None:
    """Wait out what tests before have left to do: services of theirs may still follow the gateway."""
    count = -1
    async with asyncio.timeout(ANSWERED):
        while count != (count := len(written(hub))):  # noqa: ASYNC110
            await asyncio.sleep(10)  # that requests fail is said once they have done so for eight seconds


async def test_a_route_that_somebody_changed_is_mended(hub: Hub) -> None:
    await hub.apply(hub.gateway("default"), endpoint("mended", hub.backend), service("mending", "mended"))
    await hub.until_ready(ModelService, "mending")
    routes = hub.connection.find(HTTP_ROUTE)
    assert routes is not None
    name = next(one["metadata"]["name"] for one in routes if one["metadata"]["name"].startswith("mending"))
    patch = '[{"op": "replace", "path": "/spec/rules/0/backendRefs/0/port", "value": 1}]'
    await hub.api.kubectl("-n", TEAM, "patch", "httproute", name, "--type=json", f"--patch={patch}")
    await hub.api.kubectl("-n", TEAM, "delete", "service", "--selector=modelplane.ai/owner-name=mended")

    await hub.until_answered("mending", 200, "/inner/v1/models?all=1")
    await hub.until_ready(ModelService, "mending")


def certificate(authority: trustme.CA) -> Manifest:
    issued = authority.issue_cert(HOST)
    chain = "".join(part.bytes().decode() for part in issued.cert_chain_pems)
    key = issued.private_key_pem.bytes().decode()
    return pair(chain, key)


def pair(chain: str, key: str) -> Manifest:
    manifest = secret_of("modelplane-system", "hub-gateway", **{"tls.crt": chain, "tls.key": key})
    return {**manifest, "type": "kubernetes.io/tls"}


async def test_https_comes_with_its_certificate_and_follows_it(hub: Hub) -> None:
    first, second = trustme.CA(), trustme.CA()
    tls = {"secretRef": {"name": "hub-gateway"}, "hostnames": [HOST]}
    await hub.apply(hub.gateway("default", tls=tls), endpoint("safe", hub.backend), service("secure", "safe"))
    unusable = ("False", "CertificateUnusable")
    await until(lambda: hub.said(InferenceGateway, "default", "TLSReady")[:2] == unusable, "the Secret to be missed")
    assert "Secret modelplane-system/hub-gateway" in hub.said(InferenceGateway, "default")[2]
    await hub.until_ready(ModelService, "secure")
    assert hub.status(ModelService, "secure")["address"] == f"http://{ADDRESS}/{TEAM}/secure"

    await hub.apply(certificate(first))
    await hub.until_ready(InferenceGateway, "default")
    await hub.until_answered_by_https("secure", first)
    secured = f"https://{HOST}/{TEAM}/secure"
    await until(lambda: hub.status(ModelService, "secure")["address"] == secured, "the service's URL")
    assert (await hub.answer_by_https("secure", first, "other.example.com"))[0] == 404
    await hub.until_answered("secure", 200, "/inner/v1/models?all=1")

    await hub.apply(certificate(second))
    await hub.until_answered_by_https("secure", second)
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await hub.answer_by_https("secure", first)

    await hub.apply(hub.gateway("default", tls={**tls, "http": "Refused"}))
    await hub.until_answered("secure", 404)
    await hub.until_answered_by_https("secure", second)
    await hub.until_ready(ModelService, "secure")

    await hub.apply(pair("nonsense", "nonsense"))
    await until(lambda: hub.said(InferenceGateway, "default", "TLSReady")[:2] == unusable, "the nonsense to be told")
    assert hub.status(ModelService, "secure")["address"] == secured

    await hub.apply(hub.gateway("default"))
    await hub.api.kubectl("-n", "modelplane-system", "delete", "secret", "hub-gateway")
    await hub.until_ready(InferenceGateway, "default")
    await hub.until_answered("secure", 200, "/inner/v1/models?all=1")
    assert hub.status(InferenceGateway, "default")["url"] == f"http://{ADDRESS}"


async def test_endpoints_and_routes_follow_to_another_hub_gateway(hub: Hub) -> None:
    here = hub.front.backend
    elsewhere = next(spec for backend, spec in SPECS.items() if backend != here)
    several = [endpoint("first", hub.backend), endpoint("other", hub.backend)]
    await hub.apply({**hub.gateway("default"), "spec": elsewhere}, *several, service("moving", "first", "other"))
    await until(lambda: hub.said(ModelEndpoint, "other")[0] == "True", "the endpoint to be there")

    await hub.apply(hub.gateway("default"))
    await hub.until_ready(ModelService, "moving")
    await hub.until_answered("moving", 200, "/inner/v1/models?all=1")
    await hub.until_ready(InferenceGateway, "default")
    owned = ("--selector=modelplane.ai/owner-name=other", "-o", "name")
    found = await hub.api.kubectl("-n", TEAM, "get", "services,backends.gateway.envoyproxy.io", *owned)
    assert found.startswith("service/" if here == "Traefik" else "backend.gateway.envoyproxy.io/")
    assert len(found.split()) == 1


# With API keys --------------------------------------------------------------------------------------------------------

FIRST, SECOND, THIRD = "canary-of-the-first-key", "canary-of-the-second-key", "canary-of-the-third-key"
PATH = "/inner/v1/models?all=1"
WITHOUT_AUTH = '[{"op": "remove", "path": "/spec/auth"}]'


def asking(*secrets: str) -> Manifest:
    return {"apiKeys": {"secretRefs": [{"name": name} for name in secrets]}}


def bearer(key: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"}


def guarded(name: str, *selected: str, auth: Manifest) -> Manifest:
    plain = service(name, *selected)
    return {**plain, "spec": {**plain["spec"], "auth": auth}}


async def test_a_service_that_asks_for_keys_answers_nobody_without_one(hub: Hub) -> None:
    """All that can become of the keys, in the order in which it may."""
    chat_keys = f"chat-keys-{hub.front.backend.lower()}"
    await hub.apply(hub.gateway("default"), endpoint("behind", hub.backend), service("kept", "behind"))
    await hub.until_answered("kept", 200, PATH)

    await hub.apply(guarded("kept", "behind", auth=asking(chat_keys)))
    await hub.until_answered("kept", 401)
    absent = f"Secret {chat_keys} does not exist: make it, with an API key under each client's name"
    lacking = ("False", "SecretNotFound", f"{absent}; until then requests with its API keys get 401")
    await until(lambda: hub.said(ModelService, "kept", "AuthReady") == lacking, "the Secret to be missed")
    await hub.until_ready(ModelService, "kept", "False")
    assert (await hub.answer("kept", **bearer(FIRST)))[0] == 401

    await hub.apply(secret_of(TEAM, chat_keys, one=f"{FIRST}\n", two=SECOND))
    await hub.until_answered("kept", 200, PATH, **bearer(FIRST))
    await hub.until_answered("kept", 200, PATH, **bearer(SECOND))
    await hub.until_ready(ModelService, "kept")
    await until(lambda: hub.said(ModelService, "kept", "AuthReady")[1] == "KeysFound", "the keys to be told")
    for wrong in (f"Bearer {THIRD}", f"Bearer {FIRST}x", FIRST, "Bearer ", "Basic b25lOnR3bw=="):
        assert (await hub.answer("kept", Authorization=wrong))[0] == 401, wrong
    assert (await hub.answer("kept"))[0] == 401

    await hub.api.kubectl("-n", TEAM, "patch", "modelservice", "kept", "--type=json", f"--patch={WITHOUT_AUTH}")
    await hub.until_answered("kept", 200, PATH)
    await until(lambda: hub.said(ModelService, "kept", "AuthReady")[1] == "NotAsked", "the status to follow the route")


async def test_keys_rotate_while_both_are_taken(hub: Hub, measured: Callable[[str], None]) -> None:
    await hub.apply(
        hub.gateway("default"),
        endpoint("behind", hub.backend),
        secret_of(TEAM, "rotating", one=FIRST),
        guarded("rotated", "behind", auth=asking("rotating")),
    )
    await hub.until_answered("rotated", 200, PATH, **bearer(FIRST))

    await hub.apply(secret_of(TEAM, "rotating", one=FIRST, two=SECOND))
    added = time.monotonic()
    await hub.until_answered("rotated", 200, PATH, **bearer(SECOND))
    taken = time.monotonic() - added
    assert (await hub.answer("rotated", **bearer(FIRST)))[0] == 200

    await hub.apply(secret_of(TEAM, "rotating", two=SECOND))
    removed = time.monotonic()
    await hub.until_answered("rotated", 401, **bearer(FIRST))
    refused = time.monotonic() - removed
    assert (await hub.answer("rotated", **bearer(SECOND)))[0] == 200
    measured(
        f"{hub.front.backend}: a new API key is taken after {taken:.2f} s, an old one refused after {refused:.2f} s"
    )


async def test_no_endpoint_is_reached_past_the_keys_nor_gets_one(hub: Hub) -> None:
    """Whatever is behind: one endpoint or more than a rule takes, with credentials of its own or none."""
    many = [f"many-{number}" for number in range(18)]
    await hub.apply(
        hub.gateway("default"),
        secret_of(TEAM, "provider", key="ours"),
        secret_of(TEAM, "keys-of-many", one=FIRST),
        endpoint("paid", hub.backend, credentials={"secretRef": {"name": "provider", "key": "key"}}),
        *(endpoint(name, hub.backend) for name in many),
        guarded("alone", "many-0", auth=asking("keys-of-many")),
        guarded("bought", "paid", auth=asking("keys-of-many")),
        guarded("two", "many-0", "many-1", auth=asking("keys-of-many")),
        guarded("crowd", *many, auth=asking("keys-of-many")),
    )
    await hub.until_answered("bought", 200, PATH, "Authorization=Bearer", "ours", **bearer(FIRST))
    for name in ("alone", "two", "crowd"):
        await hub.until_answered(name, 200, PATH, **bearer(FIRST))

    for name in ("alone", "bought", "two", "crowd"):
        assert {(await hub.answer(name))[0] for _ in range(20)} == {401}
        await hub.until_always(name, 200, **bearer(FIRST))
    inner = {"x-modelplane-to": "many-0"}
    for path in ("crowd~", "crowd~1", "two~", "two~1", "bought~", "crowd/../crowd", "./crowd", "crowd/%2e%2e/crowd~1"):
        assert (await hub.answer(path, **inner))[0] in {400, 401, 404}, path


async def test_the_hub_gateway_may_ask_for_keys_of_every_service(hub: Hub) -> None:
    await hub.apply(
        hub.gateway("default", auth=asking("api-keys")),
        endpoint("behind", hub.backend),
        secret_of(TEAM, "api-keys", one=FIRST),
        secret_of(TEAM, "own-keys", one=SECOND),
        service("silent", "behind"),
        guarded("own", "behind", auth=asking("own-keys")),
        guarded("open", "behind", auth={"mode": "None"}),
    )

    await hub.until_answered("open", 200, PATH)
    await hub.until_answered("silent", 200, PATH, **bearer(FIRST))
    await hub.until_answered("own", 200, PATH, **bearer(SECOND))
    assert (await hub.answer("silent", **bearer(SECOND)))[0] == 401
    assert (await hub.answer("own", **bearer(FIRST)))[0] == 401
    await hub.api.kubectl("patch", "inferencegateway", "default", "--type=json", f"--patch={WITHOUT_AUTH}")
    await hub.until_answered("silent", 200, PATH)


async def test_without_the_key_service_nobody_is_answered(hub: Hub, keys: KeyService) -> None:
    await hub.apply(
        hub.gateway("default"),
        endpoint("behind", hub.backend),
        secret_of(TEAM, "closing", one=FIRST),
        guarded("closed", "behind", auth=asking("closing")),
    )
    await hub.until_answered("closed", 200, PATH, **bearer(FIRST))

    keys.end()
    try:
        assert (await hub.answer("closed", **bearer(FIRST)))[0] in {500, 503}
    finally:
        keys.begin()
    await hub.until_answered("closed", 200, PATH, **bearer(FIRST))


async def test_gateways_ask_at_paths_that_nobody_else_can_write(hub: Hub, keys: KeyService) -> None:
    await hub.apply(
        hub.gateway("default"),
        endpoint("behind", hub.backend),
        secret_of(TEAM, "unguessed", one=FIRST),
        guarded("signed", "behind", auth=asking("unguessed")),
    )
    await hub.until_answered("signed", 200, PATH, **bearer(FIRST))
    closes = lambda: annotations_of(find(hub.connection, SECRET, PATHS) or {}).get(labels.UNSIGNED_UNTIL)  # noqa: E731
    await until(lambda: bool(closes()), "no guard to be left with a path of before")
    over = f"{labels.UNSIGNED_UNTIL}=2026-01-01T00:00:00Z"
    await hub.api.kubectl("-n", PATHS.namespace, "annotate", "secret", PATHS.name, over, "--overwrite")

    async with aiohttp.ClientSession(f"http://127.0.0.1:{keys.port}") as session:
        async with asyncio.timeout(ANSWERED):
            while (await session.get(f"/keys/{TEAM}/unguessed", headers=bearer(FIRST))).status != 403:  # noqa: ASYNC110
                await asyncio.sleep(PAUSE)
    await hub.until_always("signed", 200, **bearer(FIRST))
    await hub.until_always("signed", 401, **bearer(THIRD))


async def test_a_key_is_found_in_no_object_and_in_no_log(hub: Hub, keys: KeyService) -> None:
    await hub.apply(
        hub.gateway("default"),
        endpoint("behind", hub.backend),
        secret_of(TEAM, "quiet", one=FIRST),
        guarded("quiet", "behind", auth=asking("quiet")),
    )
    await hub.until_answered("quiet", 200, PATH, **bearer(FIRST))
    await hub.until_answered("quiet", 401, **bearer(THIRD))

    kinds = "httproutes,services,configmaps,events,modelservices,middlewares,securitypolicies,backends"
    written = await hub.api.kubectl("get", kinds, "--all-namespaces", "-o", "yaml")
    for told in (written, hub.front.log.read_text(), keys.log.read_text()):
        assert "canary-of-the" not in told
        for key in (FIRST, SECOND, THIRD):
            assert base64.b64encode(key.encode()).decode() not in told
