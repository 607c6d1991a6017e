"""B12: what the hub's gateway adds, how soon it follows, and what clients notice of it.

With a real Traefik, and then with a real Envoy Gateway and its Envoy.

The clusters behind it are one HTTP server, which tells replicas apart by their paths, and can have one of them dead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from socket import AF_INET, SOCK_DGRAM, socket

import aiohttp
from aiohttp import web

from benchmarks.live import scene as scenes
from benchmarks.live.reactions import PODS, spread, turn
from benchmarks.live.scene import Scene
from benchmarks.report import Figure, percentile
from localfleet import binaries, hostgateway
from localfleet.kubeclient import Manifest
from localfleet.processes import Command, Running, start

ASKING = 8  # requests under way at any time
SAMPLES = 500  # requests each way
HUB = "127.0.0.1"  # where the gateway is reached: nothing of users leads to it, nor to the gateway of a cluster
OUTSIDE = "198.51.100.7"  # where their endpoints lead instead; no slice takes an address of loopback
TEAM = "team-0"
SETTLED = 3.0  # seconds of load after a change


@dataclass(slots=True)
class Backend:
    """Answers everything; not what concerns a dead replica."""

    address: str
    dead: set[str] = field(default_factory=set)
    last_hit: float = 0.0
    """When somebody last asked a dead one."""

    async def answer(self, request: web.BaseRequest) -> web.Response:
        if any(name in request.path for name in self.dead):
            self.last_hit = time.monotonic()
            return web.Response(status=503)
        return web.Response(text=request.path)


@asynccontextmanager
async def backend() -> AsyncGenerator[Backend]:
    """On port 80 of this machine's own address, as the gateways of clusters are, and of one that is outside to all."""
    with socket(AF_INET, SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        it = Backend(probe.getsockname()[0])
    await _loopback("add")
    runner = web.ServerRunner(web.Server(it.answer, access_log=None), handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    for address in (it.address, OUTSIDE):
        await web.TCPSite(runner, address, 80, reuse_port=True).start()  # beside an Envoy on all other addresses
    try:
        yield it
    finally:
        await runner.cleanup()
        await _loopback("delete")


async def _loopback(change: str) -> None:
    """Give this machine the address outside, or take it back, which root may."""
    done = await asyncio.create_subprocess_exec("ip", "address", change, f"{OUTSIDE}/32", "dev", "lo")
    if await done.wait():
        raise RuntimeError(f"ip address {change} {OUTSIDE}/32 dev lo: B12 needs root")


@dataclass(frozen=True, slots=True)
class Gateway:
    """One that obeys the hub, as the processes of this machine."""

    name: str
    port: int
    """Of the Gateway's listener, which is the process's own."""
    started: Callable[[Scene, str], AbstractAsyncContextManager[Running]]


@dataclass(frozen=True, slots=True)
class Door:
    """All that is needed to ask through the hub gateway."""

    scene: Scene
    there: Backend
    session: aiohttp.ClientSession
    size: int
    gateway: Gateway

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.gateway.port}/{TEAM}/{service}/v1/models"


async def hub_gateway(size: int, changes: int) -> AsyncIterator[Figure]:
    """So many services behind one gateway; then each kind of change so many times. The same with the next gateway."""
    for gateway in GATEWAYS:
        async for figure in _measured(gateway, size, changes):
            yield replace(figure, metric=f"{gateway.name}: {figure.metric}")


async def _measured(gateway: Gateway, size: int, changes: int) -> AsyncIterator[Figure]:
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(backend())
        scene = await stack.enter_async_context(scenes.scene(clusters=2, gateway=there.address))
        running = await stack.enter_async_context(gateway.started(scene, HUB))
        one = stack.enter_context(scene.operator("operator", f"--allow-endpoints={OUTSIDE}/32"))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await scene.brought_up(one, 2)
        running.check()
        door = Door(scene, there, session, size, gateway)
        began = time.monotonic()
        await scene.apply(manifest for number in range(size) for manifest in _outside(number))
        attached = await scene.until_ready("modelservices", size) - began
        yield Figure("B12", size, "from apply until all services are Ready", round(attached, 2), "s")
        await _answered(door, "outside-00000")
        for figure in await _latency(door):
            yield figure
        new = [await _propagated(door, size + number) for number in range(changes)]
        for figure in spread("B12", size, "from apply of a service to its first answer", new):
            yield figure
        for part in (_weights, _deaths):
            async for figure in part(door, changes):
                yield figure


@asynccontextmanager
async def _traefik(scene: Scene, address: str) -> AsyncGenerator[Running]:
    argv = [binaries.ensure("traefik")["traefik"], "--entryPoints.web.address=:8000"]
    argv += ["--providers.kubernetesgateway=true", f"--providers.kubernetesgateway.statusaddress.ip={address}"]
    argv += ["--providers.providersThrottleDuration=100ms", "--experimental.fastProxy=true"]
    argv += ["--global.checknewversion=false", "--global.sendanonymoususage=false"]
    environment = {"KUBECONFIG": str(scene.server.kubeconfig)}
    running = start(Command("traefik", argv, scene.folder / "traefik.log", environment))
    try:
        yield running
    finally:
        running.end()


@asynccontextmanager
async def _envoy_gateway(scene: Scene, address: str) -> AsyncGenerator[Running]:
    await scene.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": hostgateway.NAMESPACE}}])
    place = {"gateway": "modelplane", "namespace": "modelplane-system", "address": address}
    kubectl, kubeconfig = scene.server.binaries["kubectl"], scene.server.kubeconfig
    await asyncio.to_thread(hostgateway.stand_in, kubectl, kubeconfig, **place)
    relay = "127.0.0.1 modelplane.envoy-gateway-system.svc.cluster.local\n"
    with hostgateway.envoy_gateway(kubeconfig, scene.folder / "envoy-gateway", hosts=relay) as running:
        await scene.apply([scenes.hub_gateway({"backend": "EnvoyGateway", "envoyGateway": {"version": "v1.9.1"}})])
        yield running


GATEWAYS = (Gateway("Traefik", 8000, _traefik), Gateway("Envoy Gateway", 80, _envoy_gateway))


def _outside(number: int) -> tuple[Manifest, Manifest]:
    """A service over one endpoint that is no replica."""
    name = f"outside-{number:05}"
    kind = {"apiVersion": scenes.GROUP, "kind": "ModelEndpoint"}
    metadata = {"name": name, "namespace": TEAM, "labels": {"model": name}}
    spec = {"url": f"http://{OUTSIDE}", "rewritePath": f"/{name}/"}
    return {**kind, "metadata": metadata, "spec": spec}, _service(name, {name: 1})


def _service(name: str, weights: Mapping[str, int]) -> Manifest:
    entries = [{"weight": weight, "selector": {"matchLabels": {"model": one}}} for one, weight in weights.items()]
    metadata = {"name": name, "namespace": TEAM}
    return {
        "apiVersion": scenes.GROUP, "kind": "ModelService", "metadata": metadata, "spec": {"endpoints": entries}
    }  # fmt: skip


async def _answered(door: Door, service: str) -> float:
    """When a service first gave an answer that is one."""
    async with asyncio.timeout(scenes.SECONDS):
        while True:
            with suppress(aiohttp.ClientError):
                async with door.session.get(door.url(service)) as answer:
                    if answer.status == 200:
                        return time.monotonic()
            await asyncio.sleep(0.01)  # a route that is to appear tells nobody


# What it adds --------------------------------------------------------------------------------------------------------


async def _latency(door: Door) -> list[Figure]:
    """The same question asked directly and through the gateway, in turns."""
    direct: list[float] = []
    through: list[float] = []
    urls = ((f"http://{door.there.address}/v1/models", direct), (door.url("outside-00000"), through))
    for _ in range(SAMPLES):
        for url, found in urls:
            began = time.perf_counter()
            async with door.session.get(url) as answer:
                await answer.read()
            found.append((time.perf_counter() - began) * 1000)
    return [
        Figure("B12", door.size, f"added to each request: p{percent}", round(more, 2), "ms")
        for percent in (50, 99)
        for more in [percentile(through, percent) - percentile(direct, percent)]
    ]


async def _propagated(door: Door, number: int) -> float:
    """The seconds from a new service to its first answer."""
    began = time.monotonic()
    await door.scene.apply(_outside(number))
    return await _answered(door, f"outside-{number:05}") - began


# What clients notice of a change -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Load:
    """What became of requests that were sent without a pause."""

    asked: int = 0
    failed: int = 0
    last_failure: float = 0.0


@asynccontextmanager
async def _load(door: Door, service: str) -> AsyncGenerator[Load]:
    load, ended = Load(), asyncio.Event()

    async def ask() -> None:
        while not ended.is_set():
            load.asked += 1
            try:
                async with door.session.get(door.url(service)) as answer:
                    await answer.read()
                failed = answer.status != 200
            except aiohttp.ClientError:
                failed = True
            if failed:
                load.failed += 1
                load.last_failure = time.monotonic()

    async with asyncio.TaskGroup() as group:
        for _ in range(ASKING):
            group.create_task(ask())
        try:
            yield load
        finally:
            ended.set()


async def _weights(door: Door, changes: int) -> AsyncIterator[Figure]:
    """A service whose shares change again and again, while both of its endpoints answer all the time."""
    apply = door.scene.apply
    await apply([_service("shared", {"outside-00000": 1, "outside-00001": 1})])
    await _answered(door, "shared")
    async with _load(door, "shared") as load:
        for number in range(changes):
            await apply([_service("shared", {"outside-00000": 1, "outside-00001": 2 + number % 3})])
            await asyncio.sleep(SETTLED / 3)
        await asyncio.sleep(SETTLED)
    yield Figure("B12", door.size, "weights changed under load: requests", load.asked, "requests")
    yield Figure("B12", door.size, "weights changed under load: failed", load.failed, "requests")


async def _deaths(door: Door, changes: int) -> AsyncIterator[Figure]:
    """One of two replicas dies, is withdrawn, and comes back."""
    scene, there = door.scene, door.there
    await scene.apply([scenes.service(0), scenes.deployment(0, replicas=2, team=TEAM)])
    await scene.until_ready("modeldeployments", 1)
    await _answered(door, "model-00000")
    pods = scene.seen(PODS, remote=True)
    await pods.until("both pods", lambda found: len(found) == 2)
    endpoints = scene.ours("modelendpoints")
    seconds: list[float] = []
    failed = 0
    for number in range(changes):
        namespace, pod = sorted(pods.mirror.objects)[number % 2]
        replica = pods.mirror.objects[namespace, pod]["metadata"]["labels"]["modelplane.ai/owner-name"]
        async with _load(door, "model-00000") as load:
            await asyncio.sleep(SETTLED / 3)
            there.dead.add(replica)
            died = time.monotonic()
            await turn(scene, [(namespace, pod)], ready=False, rate=100)
            await endpoints.until("its withdrawal", lambda found, gone=(TEAM, replica): gone not in found)
            await asyncio.sleep(SETTLED)
        failed += load.failed
        seconds.append(max(there.last_hit - died, 0.0))
        there.dead.clear()
        await turn(scene, [(namespace, pod)], ready=True, rate=100)
        await scene.until_ready("modeldeployments", 1)
        await endpoints.until("its return", lambda found, back=(TEAM, replica): back in found)
    for figure in spread("B12", door.size, "from the death of a replica to the last request it got", seconds):
        yield figure
    yield Figure("B12", door.size, "requests that failed for each death", round(failed / changes, 1), "requests")
