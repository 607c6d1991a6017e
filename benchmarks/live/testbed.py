"""A hub, a fleet that one API server plays, and operators, for the benchmarks of a running operator.

    async with start_testbed(clusters=100) as testbed:
        with testbed.operator() as operator:
            await testbed.wait_until_ready("inferenceclusters", 100)

The hub is a real API server with our definitions; a second one plays all workload clusters
(`workload_clusters.py`). Servers and players are processes of their own, so that what is measured is the operator's.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import fleet_generator as generator
from benchmarks.live.operator import Operator, operator, wait_until_leading
from benchmarks.live.workload_clusters import unlimited
from benchmarks.report import ROOT
from localfleet import binaries, seed
from localfleet.apiserver import ApiServer, api_server
from localfleet.kubeclient import APPLY, Key, KubeClient, Manifest, Mirror, entries
from localfleet.leaderworkerset import CRD as LEADER_WORKER_SET
from localfleet.network import free_ports
from localfleet.pki import Authority, kubeconfig
from localfleet.processes import Command, Running, start

GROUP = "modelplane.ai/v1alpha1"
OURS = f"/apis/{GROUP}"
SYSTEM = "modelplane-system"
TEAMS = 4
CLASSES = 8
POOLS = 8
AT_ONCE = 32
SECONDS = 1_800.0  # a deadline, not an expectation
CHECK_SECONDS = 5.0


@dataclass(slots=True)
class WatchedType:
    """All objects of a type, as a watch tells them."""

    client: KubeClient
    path: str
    check: Callable[[], None]
    """Raises if the players have ended, who would change the objects."""
    mirror: Mirror = field(init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _listeners: list[Callable[[Key, Manifest | None], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mirror = Mirror(self.client, self.path, changed=self._changed)

    def listen(self, listener: Callable[[Key, Manifest | None], None]) -> None:
        self._listeners.append(listener)

    def _changed(self, key: Key) -> None:
        manifest = self.mirror.objects.get(key)
        for listener in self._listeners:
            listener(key, manifest)
        self._news.set()

    async def wait_for(
        self, what: str, holds: Callable[[dict[Key, Manifest]], bool], seconds: float = SECONDS
    ) -> float:
        """Wait until something holds of all of them; return when that was, by the monotonic clock."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._news.clear()
                    if self.mirror.synced.is_set() and holds(self.mirror.objects):
                        return time.monotonic()
                    self.check()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(CHECK_SECONDS):
                            await self._news.wait()
        except TimeoutError:
            said = sum(map(is_ready, self.mirror.objects.values()))
            raise AssertionError(
                f"waited {seconds:g} s in vain for {what}; {said} of {len(self.mirror.objects)} are Ready, one says "
                f"{next((describe(one) for one in self.mirror.objects.values() if not is_ready(one)), '')}"
            ) from None


@dataclass(slots=True)
class Testbed:
    """A hub with clusters and players; `world` is the API server that plays the workload clusters."""

    folder: Path
    server: ApiServer
    hub: KubeClient
    world_server: ApiServer
    world: KubeClient
    workload: Running
    _kubeconfig: Callable[[str], str]
    _group: asyncio.TaskGroup
    _watched: dict[str, WatchedType] = field(default_factory=dict)
    _watching: list[asyncio.Task[None]] = field(default_factory=list)

    def operator(self, name: str = "operator", *flags: str) -> AbstractContextManager[Operator]:
        return operator(self.server.kubeconfig, self.folder, name, flags)

    async def wait_until_leading(self, one: Operator) -> None:
        await asyncio.to_thread(wait_until_leading, one)

    def watch(self, path: str, *, remote: bool = False) -> WatchedType:
        """Return the objects of a type on the hub, or on the API server of the workload clusters."""
        if path not in self._watched:
            watched = self._watched[path] = WatchedType(self.world if remote else self.hub, path, self.workload.check)
            self._watching.append(self._group.create_task(watched.mirror.run(), name=f"mirror {path}"))
        return self._watched[path]

    def stop_watching(self) -> None:
        for task in self._watching:
            task.cancel()

    def watch_own(self, plural: str) -> WatchedType:
        return self.watch(f"{OURS}/{plural}")

    async def wait_until_ready(self, plural: str, count: int, seconds: float = SECONDS) -> float:
        """Wait until that many are there and all are Ready; return when that was."""
        return await self.watch_own(plural).wait_for(
            f"{count} {plural} to be Ready",
            lambda found: len(found) == count and all(map(is_ready, found.values())),
            seconds,
        )

    async def wait_until_quiet(self, one: Operator, seconds: float = 5.0) -> None:
        """Wait until the operator has written nothing for some seconds."""
        before = None
        while (now := (await asyncio.to_thread(one.usage)).writes) != before:
            before = now
            await asyncio.sleep(seconds)

    async def wait_until_connected(self, one: Operator, clusters: int) -> None:
        """Wait until so many workload clusters are synced."""
        connected = 0.0
        while connected < clusters:
            await asyncio.sleep(0.5)
            connected = await asyncio.to_thread(one.value, "modelplane_cluster_answers")

    # What users apply -------------------------------------------------------------------------------------------------

    async def apply(self, manifests: Iterable[Manifest], client: KubeClient | None = None) -> None:
        """Apply all of them, some at once."""
        places, to = asyncio.Semaphore(AT_ONCE), client or self.hub

        async def one(manifest: Manifest) -> None:
            async with places:
                await apply(to, manifest)

        async with asyncio.TaskGroup() as group:
            for manifest in manifests:
                group.create_task(one(manifest))

    async def apply_platform(self, clusters: int) -> None:
        """Publish the hub gateway, classes of hardware, and so many clusters with eight pools each."""
        await self.apply(map(namespace, (SYSTEM, *teams())))
        await self.apply([hub_gateway()])
        await self.apply(
            {**_ours("InferenceClass", f"class-{number}"), "spec": {"devices": generator.gpu_class(number)}}
            for number in range(CLASSES)
        )
        names = [cluster_name(number) for number in range(clusters)]
        await self.apply(map(self.kubeconfig_secret, names))
        await self.apply(map(cluster, names))

    async def wait_until_up(self, one: Operator, clusters: int) -> None:
        """Wait until the operator leads, the platform is Ready and the operator writes nothing more."""
        await self.wait_until_leading(one)
        await self.wait_until_ready("inferenceclusters", clusters)
        await self.wait_until_ready("inferencegateways", 1)
        await self.wait_until_quiet(one)

    def kubeconfig_secret(self, name: str, text: str | None = None) -> Manifest:
        """Return the Secret with the kubeconfig of a cluster: of one that is played, unless another is given."""
        meta = {"name": f"{name}-kubeconfig", "namespace": SYSTEM}
        data = {"kubeconfig": text or self._kubeconfig(name)}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data}


async def apply(client: KubeClient, manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    version, kind = manifest["apiVersion"], manifest["kind"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    where = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
    plural = f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s"
    params = {"fieldManager": "bench", "force": "true"}
    path = f"{root}{where}/{plural}/{metadata['name']}"
    return await client.request("PATCH", path, manifest, content_type=APPLY, params=params)


# Objects -------------------------------------------------------------------------------------------------------------


def cluster_name(number: int) -> str:
    return f"c{number:04}"


def teams() -> list[str]:
    return [f"team-{number}" for number in range(TEAMS)]


def _ours(kind: str, name: str, namespace: str = "") -> Manifest:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": GROUP, "kind": kind, "metadata": metadata}


def namespace(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def hub_gateway() -> Manifest:
    spec = {"backend": "Traefik", "traefik": {"version": "40.2.0"}}
    return {**_ours("InferenceGateway", "default"), "spec": spec}


def cluster(name: str, nodes: int = 8) -> Manifest:
    origin = {"source": "Existing", "existing": {"secretRef": {"name": f"{name}-kubeconfig"}}}
    sizes = {"nodeCount": 0, "maxNodeCount": nodes}  # nobody plays nodes: an autoscaler would make them
    pools = [{"name": f"pool-{n}", "className": f"class-{n % CLASSES}", **sizes} for n in range(POOLS)]
    found = _ours("InferenceCluster", name)
    found["metadata"]["labels"] = {"region": generator.REGIONS[int(name[1:]) % 10]}
    return {**found, "spec": {"cluster": origin, "nodePools": pools}}


def deployment(number: int, *, replicas: int) -> Manifest:
    """Return a deployment with one engine of one pod, which needs one GPU of some size."""
    found = _ours("ModelDeployment", f"model-{number:05}", f"team-{number % TEAMS}")
    request = {"name": "gpu", "count": 1, "selectors": [{"cel": generator.memory((12, 20, 40, 70)[number % 4])}]}
    template = {"spec": {"containers": [{"name": "engine", "image": "vllm/vllm-openai", "args": ["--model=m"]}]}}
    engine = {"name": "main", "members": [{"nodeSelector": {"devices": [request]}, "template": template}]}
    metadata = {"labels": {"model": found["metadata"]["name"]}}
    return {**found, "spec": {"replicas": replicas, "template": {"metadata": metadata, "spec": {"engines": [engine]}}}}


def service(number: int) -> Manifest:
    """Return the service of a deployment."""
    name = f"model-{number:05}"
    entry = {"selector": {"matchLabels": {"model": name}}}
    return {**_ours("ModelService", name, f"team-{number % TEAMS}"), "spec": {"endpoints": [entry]}}


def condition(manifest: Manifest, kind: str) -> Manifest:
    return next((one for one in entries(manifest, "status", "conditions") if one["type"] == kind), {})


def is_ready(manifest: Manifest) -> bool:
    return condition(manifest, "Ready").get("status") == "True"


def describe(manifest: Manifest) -> str:
    conditions = entries(manifest, "status", "conditions")
    said = (f"{one['type']}={one['status']} {one['reason']} {one.get('message', '')}" for one in conditions)
    return f"{manifest['metadata']['name']}: {'; '.join(said)}"


# How it is set up ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def start_testbed(*, clusters: int) -> AsyncGenerator[Testbed]:
    """Start servers and players and publish a platform; no operator runs yet."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="modelplane-bench-")))
        server, world_server = (stack.enter_context(api_server(*UNTHROTTLED)) for _ in range(2))
        files = binaries.ensure("gateway-api-crds", "envoy-gateway-crds")
        envoy = [next(files["envoy-gateway-crds"].glob(f"*_{kind}.yaml")) for kind in OF_ENVOY]
        near = seed.definitions(ROOT / "crds", files["gateway-api-crds"], files["envoy-gateway-crds"])
        remote = seed.definitions(files["gateway-api-crds"], *envoy, Path(LEADER_WORKER_SET))
        await asyncio.gather(seed.create(server.kubeconfig, near), seed.create(world_server.kubeconfig, remote))
        collecting = _start_garbage_collector(server, folder)
        stack.callback(collecting.end)
        authority, (port,) = Authority.new(), free_ports(1)
        playing = _start_players(server, world_server, authority=authority, folder=folder, port=port)
        stack.callback(playing.end)
        playing.wait_until(playing.says_ready, seconds=60, what="the players to be ready")
        hub = await stack.enter_async_context(unlimited(server.kubeconfig))
        world = await stack.enter_async_context(unlimited(world_server.kubeconfig))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        url, user = f"https://127.0.0.1:{port}", authority.user("bench")

        def kubeconfig_of(name: str) -> str:
            return kubeconfig(cluster=name, server=f"{url}/{name}", authority=authority.certificate, user=user)

        it = Testbed(folder, server, hub, world_server, world, playing, kubeconfig_of, group)
        stack.callback(it.stop_watching)
        await it.apply_platform(clusters)
        yield it


OF_ENVOY = ("envoyproxies", "clienttrafficpolicies", "backendtrafficpolicies")
# An API server shares out what it does at once between its clients. We are one client too many for its defaults.
UNTHROTTLED = ("--max-requests-inflight=3000", "--max-mutating-requests-inflight=1000")


def _start_players(server: ApiServer, world: ApiServer, *, authority: Authority, folder: Path, port: int) -> Running:
    identity, pem = authority.server("127.0.0.1"), folder / "workload.pem"
    pem.write_bytes(identity.certificate + identity.key)
    argv: list[Any] = [sys.executable, "-m", "benchmarks.live.workload_clusters", f"--kubeconfig={world.kubeconfig}"]
    argv += [f"--hub={server.kubeconfig}", f"--certificate={pem}", f"--port={port}"]
    return start(Command("workload", argv, folder / "workload.log", {"PYTHONPATH": str(ROOT)}))


def _start_garbage_collector(server: ApiServer, folder: Path) -> Running:
    """Start what deletes the children of deleted objects on the hub; it learns at its start which types there are."""
    program = binaries.ensure("kube-controller-manager")["kube-controller-manager"]
    argv = [program, f"--kubeconfig={server.kubeconfig}", "--controllers=garbage-collector-controller"]
    argv += ["--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={free_ports(1)[0]}"]
    return start(Command("kube-controller-manager", argv, folder / "controller-manager.log"))
