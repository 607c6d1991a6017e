"""The operator's own process against the local fleet: what a scenario starts, applies, waits for, asks and breaks.

    async def test_something(stage: Stage, space: str) -> None:
        await stage.hub.apply(deployment(space), service(space))
        await stage.hub.ready("ModelService", "model", space)
        reply = await stage.chat(space, "model")
        await stage.operator.kill()                             # SIGKILL; also stop, start, pause, resume
        assert await stage.operator.writes() == before          # what it has written since it started

`stage` (conftest.py) is shared by all scenarios of the package: the fleet of the run, one operator in the hub's
network, an InferenceGateway, two InferenceClusters, and clients of all three clusters. A watcher (watcher.py) checks
the invariants during and after every test. `space` is a namespace of the test's own, whose replicas are gone from all
clusters before the next test begins, so that every test has the whole fleet.

To stage something else (a crash matrix, say) make the parts yourself: `Operator(fleet, folder, flags, kubeconfig=...)`
takes the kubeconfig of a fault proxy, and `within=None` runs it in the fleet's network instead of the hub's, where the
kubeconfigs of `up --fault-proxy` lead to their proxies. `Cluster` is a client of any API server, and
`settle`, `Stage.prepare` and `Stage.clear` bring the shared platform up and down again.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from localfleet.fleet import HUB, Fleet, path
from localfleet.kubeclient import APPLY, MERGE, ApiError, KubeClient, connect, entries
from localfleet.processes import tail
from tests.integration import kinds
from tests.integration.readiness import Readiness
from tests.integration.trail import Trail, audited
from tests.support.manifests import ROOT, Manifest, load

T = TypeVar("T")

SYSTEM = "modelplane-system"
WORKERS = ("worker-1", "worker-2")
SECONDS = 120.0  # a deadline, not an expectation: machines are busy
STEP = 0.1
PAUSE = 0.1  # of each client between two requests: without one, six of them take both processors from the fleet
NOT_FOUND = 404
# Short, so that a scenario is over soon. What gateways take to follow a route bounds them from below: where all of it
# shares two cores, Traefik needs some seconds.
FLAGS = (
    "--drain-grace=6",
    "--engine-drain=2",
    "--engine-grace=15",
    "--lease-duration=8",
    "--listen=127.0.0.1:8080",
    # Where test_traffic.py has its providers, and a name that does not exist.
    "--allow-endpoints=10.90.0.1,inference.example.com",
    "--hydrator-image=modelplane-operator:test",
)
PLURALS = {
    "ModelDeployment": "modelplane.ai/v1alpha1/modeldeployments",
    "ModelReplica": "modelplane.ai/v1alpha1/modelreplicas",
    "ModelEndpoint": "modelplane.ai/v1alpha1/modelendpoints",
    "ModelService": "modelplane.ai/v1alpha1/modelservices",
    "ModelCache": "modelplane.ai/v1alpha1/modelcaches",
    "InferenceClass": "modelplane.ai/v1alpha1/inferenceclasses",
    "InferenceCluster": "modelplane.ai/v1alpha1/inferenceclusters",
    "InferenceGateway": "modelplane.ai/v1alpha1/inferencegateways",
    "LLMInference": "inference.devopstoolkit.ai/v1alpha1/llminferences",
    "ServingStack": "infrastructure.modelplane.ai/v1alpha1/servingstacks",
    "EKSCluster": "infrastructure.modelplane.ai/v1alpha1/eksclusters",
    "VLLMRuntime": "production-stack.vllm.ai/v1alpha1/vllmruntimes",
    "Ingress": "networking.k8s.io/v1/ingresses",
    "GKECluster": "infrastructure.modelplane.ai/v1alpha1/gkeclusters",
    "Deployment": "apps/v1/deployments",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1/leaderworkersets",
    "ClientTrafficPolicy": "gateway.envoyproxy.io/v1alpha1/clienttrafficpolicies",
    "BackendTrafficPolicy": "gateway.envoyproxy.io/v1alpha1/backendtrafficpolicies",
    "EnvoyExtensionPolicy": "gateway.envoyproxy.io/v1alpha1/envoyextensionpolicies",
    "HTTPRoute": "gateway.networking.k8s.io/v1/httproutes",
    "ResourceClaimTemplate": "resource.k8s.io/v1/resourceclaimtemplates",
    "ResourceClaim": "resource.k8s.io/v1/resourceclaims",
    "EndpointSlice": "discovery.k8s.io/v1/endpointslices",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1/customresourcedefinitions",
    "Namespace": "v1/namespaces",
    "NetworkPolicy": "networking.k8s.io/v1/networkpolicies",
    "LimitRange": "v1/limitranges",
    "Secret": "v1/secrets",
    "ConfigMap": "v1/configmaps",
    "Service": "v1/services",
    "Job": "batch/v1/jobs",
    "PersistentVolumeClaim": "v1/persistentvolumeclaims",
    "ResourceQuota": "v1/resourcequotas",
    "StorageClass": "storage.k8s.io/v1/storageclasses",
    "Pod": "v1/pods",
    "Event": "v1/events",
    "Node": "v1/nodes",
}
OURS = tuple(kind for kind, plural in PLURALS.items() if plural.startswith("modelplane.ai/"))


async def until(what: str, look: Callable[[], Awaitable[T | None] | T | None], seconds: float = SECONDS) -> T:
    """What `look` finds, as soon as it finds something that is true; fails saying what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(STEP)


def condition(manifest: Manifest, kind: str) -> Manifest:
    """The condition of that type; `{}` without one."""
    return next((one for one in entries(manifest, "status", "conditions") if one["type"] == kind), {})


def said(manifest: Manifest) -> str:
    """All conditions in a line, for messages."""
    return "; ".join(
        f"{one['type']}={one['status']} {one.get('reason', '')} {one.get('message', '')}"
        for one in entries(manifest, "status", "conditions")
    )


# Clusters ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cluster:
    """The API of one cluster."""

    name: str
    client: KubeClient

    async def get(self, kind: str, name: str, namespace: str = "") -> Manifest | None:
        """The object; None when there is none."""
        try:
            return await self.client.request("GET", path_of(kind, name, namespace))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Manifest]:
        """All objects of a kind, in one namespace or in all."""
        params = {"labelSelector": labels} if labels else {}
        try:
            found = await self.client.request("GET", path_of(kind, "", namespace), params=params)
        except ApiError as error:
            if error.status == NOT_FOUND:  # the kind itself is not served here
                return []
            raise
        return found["items"]

    async def apply(self, *manifests: Manifest) -> None:
        """Server-side apply, as a user does it."""
        for manifest in manifests:
            metadata = manifest["metadata"]
            where = path_of(manifest["kind"], metadata["name"], metadata.get("namespace", ""))
            params = {"fieldManager": "scenario", "force": "true", "fieldValidation": "Strict"}
            await self.client.request("PATCH", where, manifest, content_type=APPLY, params=params)

    async def patch(self, kind: str, name: str, namespace: str = "", **body: Any) -> None:
        """A merge patch: `patch("ModelDeployment", "model", space, spec={"replicas": 2})`."""
        await self.client.request("PATCH", path_of(kind, name, namespace), body, content_type=MERGE)

    async def delete(self, kind: str, name: str, namespace: str = "") -> None:
        """Ask for its deletion; nothing happens when it is gone already."""
        try:
            await self.client.request("DELETE", path_of(kind, name, namespace))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    async def gone(self, kind: str, name: str, namespace: str = "", *, seconds: float = SECONDS) -> None:
        """Wait until there is no such object, and say what it says if it stays."""
        last = [""]

        async def look() -> bool:
            found = await self.get(kind, name, namespace)
            last[0] = said(found) if found else ""
            return found is None

        await _explained(until(f"{kind} {name} to be gone", look, seconds), last)

    async def wait(
        self,
        kind: str,
        name: str,
        namespace: str = "",
        *,
        holds: Callable[[Manifest], bool],
        what: str,
        seconds: float = SECONDS,
    ) -> Manifest:
        """The object, as soon as something holds of it; fails with all that its conditions say."""
        last = ["it does not exist"]

        async def look() -> Manifest | None:
            found = await self.get(kind, name, namespace)
            last[0] = said(found) if found else "it does not exist"
            return found if found and holds(found) else None

        return await _explained(until(f"{kind} {name} {what}", look, seconds), last)

    async def says(
        self, wanted: str, kind: str, name: str, namespace: str = "", *, seconds: float = SECONDS
    ) -> Manifest:
        """Wait for `TYPE=STATUS` or `TYPE=STATUS/REASON` of the object as it is now; answers the condition."""
        _, type_, status, reason = re.split(r"^(\w+)=(\w+)/?", wanted)

        def holds(manifest: Manifest) -> bool:
            found = condition(manifest, type_)
            current = found.get("observedGeneration", inf) >= manifest["metadata"].get("generation", 0)
            return bool(found) and current and found["status"] == status and reason in {"", found["reason"]}

        found = await self.wait(kind, name, namespace, holds=holds, what=f"to say {wanted}", seconds=seconds)
        return condition(found, type_)

    async def ready(self, kind: str, name: str, namespace: str = "", *, seconds: float = SECONDS) -> Manifest:
        """Wait until it is Ready as it is now; answers the condition."""
        return await self.says("Ready=True", kind, name, namespace, seconds=seconds)


def path_of(kind: str, name: str = "", namespace: str = "") -> str:
    version, _, plural = PLURALS[kind].rpartition("/")
    root = "/api" if version == "v1" else "/apis"
    where = f"namespaces/{namespace}/" if namespace else ""
    return f"{root}/{version}/{where}{plural}{name and '/' + name}"


async def _explained(waiting: Awaitable[T], last: Sequence[str]) -> T:
    try:
        return await waiting
    except AssertionError as error:
        raise AssertionError(f"{error}; the last it said: {last[0]}") from None


# The operator --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Operator:
    """The operator's process; its log goes on over restarts."""

    fleet: Fleet
    log: Path
    flags: Sequence[str] = FLAGS
    kubeconfig: Path | None = None
    """The hub's; by default the one that leads straight to its API server."""
    within: str | None = HUB
    """The cluster whose network it runs in; None for the fleet's own."""
    module: str = "modelplane_operator"
    """The program: the operator's command, or one of the tests with shorter times."""
    process: asyncio.subprocess.Process | None = field(default=None, init=False)
    stops: int = field(default=0, init=False)
    """How often it was stopped, in whatever way."""

    async def start(self, seconds: float = SECONDS) -> None:
        """Start it and wait until it leads."""
        kubeconfig = self.kubeconfig or self.fleet.inner_kubeconfig(HUB)
        run = [sys.executable, "-m", self.module, "run", f"--kubeconfig={kubeconfig}", *self.flags]
        begins = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.fleet.inside(run, self.within),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PATH": path()},
            )

        async def leads() -> bool:
            if not self.is_up:
                raise AssertionError(f"the operator has ended:\n{tail(self.log, lines=40)}")
            return b'"leading"' in self.log.read_bytes()[begins:]

        await until("the operator to lead", leads, seconds)

    async def stop(self) -> None:
        """Ask it to end, as Kubernetes does."""
        assert await self._ended(signal.SIGTERM) == 0, f"it ended badly:\n{tail(self.log, lines=40)}"

    async def kill(self) -> None:
        """End it with no chance to say a word."""
        await self._ended(signal.SIGKILL)

    def pause(self) -> None:
        """Stop it in its tracks; it does not know that time passes."""
        self.stops += 1
        self._running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def is_still(self) -> bool:
        """Whether it does nothing any more: stopped in its tracks, or ended."""
        if not self.is_up:
            return True
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        return state in {"T", "Z"}

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> asyncio.subprocess.Process:
        assert self.process is not None, "the operator was not started"
        return self.process

    async def _ended(self, number: signal.Signals) -> int:
        self.stops += 1
        self._running.send_signal(number)
        return await asyncio.wait_for(self._running.wait(), SECONDS)

    async def metrics(self) -> str:
        """What it says of itself to Prometheus."""
        ask = (
            "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8080/metrics', timeout=10).read().decode())"
        )
        command = self.fleet.inside([sys.executable, "-c", ask], self.within)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        text, _ = await process.communicate()
        assert process.returncode == 0, "the operator does not answer"
        return text.decode()

    async def writes(self) -> Counter[str]:
        """How often it has written since it started, by cluster, resource, verb and outcome; leases do not count."""
        found = re.findall(r"^modelplane_writes_total\{(.*)\} (\S+)$", await self.metrics(), re.MULTILINE)
        return Counter({labels: int(float(count)) for labels, count in found if "leases" not in labels})


# Asking models -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and who gave it."""

    status: int
    text: str
    cluster: str = ""
    pod: str = ""


@dataclass(slots=True)
class Load:
    """What became of requests that were sent without a pause."""

    replies: list[Reply] = field(default_factory=list[Reply])
    failures: list[str] = field(default_factory=list[str])

    @property
    def clusters(self) -> Counter[str]:
        return Counter(reply.cluster for reply in self.replies)


# The stage -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stage:
    """The fleet with an operator on it."""

    fleet: Fleet
    operator: Operator
    hub: Cluster
    workers: dict[str, Cluster]
    session: aiohttp.ClientSession
    gateway: str
    """The hub's hub gateway, as this machine reaches it."""
    readiness: Readiness = field(default_factory=Readiness, kw_only=True)
    """What services say against what requests meet with, of the test that runs."""

    async def prepare(self) -> None:
        """Install our kinds, start the operator, and publish the platform."""
        definitions = [each for file in sorted((ROOT / "crds").glob("*.yaml")) for each in load(file)]
        await self.hub.apply(*definitions)
        for each in definitions:
            await self.hub.says("Established=True", each["kind"], each["metadata"]["name"])
        await self.hub.apply(kinds.namespace(SYSTEM))
        for name in self.workers:
            await self.hub.apply(self.kubeconfig(name))
        await self.hub.apply(
            *map(kinds.inference_class, kinds.POOLS), *map(kinds.cluster, self.workers), kinds.gateway()
        )
        await self.operator.start()
        await self.settle()

    async def settle(self) -> None:
        """Wait until the platform is as it is to be."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.hub.ready("InferenceGateway", "default"))
            for name in self.workers:
                group.create_task(self.hub.ready("InferenceCluster", name))

    async def clear(self) -> None:
        """Take the platform away again and end the operator."""
        platform = [
            *(("InferenceCluster", name) for name in self.workers),
            *(("InferenceClass", name) for name in kinds.POOLS),
            ("InferenceGateway", "default"),
        ]
        for kind, name in platform:
            await self.hub.delete(kind, name)
        for kind, name in platform:
            await self.hub.gone(kind, name)
        await self.operator.stop()

    def kubeconfig(self, worker: str) -> Manifest:
        """The Secret by which the operator reaches a workload cluster."""
        text = self.fleet.inner_kubeconfig(worker).read_text()
        return kinds.secret(SYSTEM, f"{worker}-kubeconfig", kubeconfig=text)

    @property
    def clusters(self) -> Iterable[Cluster]:
        return (self.hub, *self.workers.values())

    def trails(self) -> Sequence[Trail]:
        """What the operator asks from now on, cluster by cluster."""
        return [Trail(one.name, self.fleet.audit_log(one.name), audited) for one in self.clusters]

    # Asking ---

    async def chat(
        self, namespace: str, service: str = "model", *, stream: bool = False, tokens: int = 8, seconds: float = 60
    ) -> Reply:
        """Ask once, whatever the answer; a stream is read to its end, and breaks off with an exception."""
        asked = {
            "model": "org/model",
            "messages": [{"role": "user", "content": "Who are you?"}],
            "max_tokens": tokens,
            "stream": stream,
        }
        began, status = time.monotonic(), 0
        try:
            async with (
                asyncio.timeout(seconds),
                self.session.post(f"{self.gateway}/{namespace}/{service}/v1/chat/completions", json=asked) as answer,
            ):
                text = (await answer.read()).decode()
                if stream and answer.status == 200 and not text.rstrip().endswith("data: [DONE]"):
                    raise aiohttp.ClientPayloadError("the stream ended before its end")
                status = answer.status
                who = (answer.headers.get(f"x-localfleet-{part}", "") for part in ("cluster", "pod"))
                return Reply(status, text, *who)
        finally:
            self.readiness.answered(namespace, service, began, status)

    async def answered(self, namespace: str, service: str = "model", seconds: float = SECONDS) -> Reply:
        """The first answer that is one."""
        last = ["nobody answered"]

        async def look() -> Reply | None:
            try:
                reply = await self.chat(namespace, service)
            except (aiohttp.ClientError, TimeoutError) as error:
                last[0] = repr(error)
                return None
            last[0] = f"{reply.status} {reply.text[:200]}"
            return reply if reply.status == 200 else None

        return await _explained(until(f"an answer of {namespace}/{service}", look, seconds), last)

    @asynccontextmanager
    async def load(
        self, namespace: str, service: str = "model", *, plain: int = 3, streams: int = 3
    ) -> AsyncGenerator[Load]:
        """Ask all the time, some of it as streams of a second or two, for as long as the block runs."""
        load, ended = Load(), asyncio.Event()

        async def ask(*, stream: bool) -> None:
            while not ended.is_set():
                await asyncio.sleep(PAUSE)
                try:
                    reply = await self.chat(namespace, service, stream=stream, tokens=200 if stream else 8)
                except (aiohttp.ClientError, TimeoutError) as error:
                    load.failures.append(f"{datetime.now(UTC):%T} {'stream' if stream else 'request'}: {error!r}")
                else:
                    load.replies.append(reply)
                    if reply.status != 200:
                        load.failures.append(f"{datetime.now(UTC):%T} {reply.status} {reply.text[:200]}")

        async with asyncio.TaskGroup() as group:
            for number in range(plain + streams):
                group.create_task(ask(stream=number < streams))
            try:
                yield load
            finally:
                ended.set()

    # Looking ---

    async def replicas(self, namespace: str, deployment: str = "model") -> dict[str, Manifest]:
        """The ModelReplicas of a deployment by name."""
        found = await self.hub.list("ModelReplica", namespace, f"modelplane.ai/deployment={deployment}")
        return {one["metadata"]["name"]: one for one in found}

    async def placed(self, namespace: str, deployment: str = "model") -> Counter[str]:
        """How many replicas of a deployment are on which cluster."""
        return Counter(one["spec"]["clusterName"] for one in (await self.replicas(namespace, deployment)).values())

    async def pods(self, namespace: str, worker: str = "") -> dict[str, Manifest]:
        """The pods of a hub namespace by `cluster/name`, on one cluster or all, but for endpoint pickers."""
        names = [worker] if worker else list(self.workers)
        return {
            f"{name}/{one['metadata']['name']}": one
            for name in names
            for one in await self.workers[name].list("Pod", remote(namespace))
            if "modelplane.ai/picker" not in one["metadata"].get("labels", {})
        }

    async def serving(self, namespace: str, count: int, name: str = "model") -> None:
        """Wait until so many replicas of a deployment are Ready, no more exist, and its service answers."""
        await self.hub.ready("ModelDeployment", name, namespace)

        async def there() -> bool:
            return len(await self.replicas(namespace, name)) == count

        await until(f"{count} replicas of {name}", there)
        await self.answered(namespace, name)


def remote(namespace: str) -> str:
    """Where the objects of a hub namespace are on workload clusters."""
    return f"modelplane-{namespace}"


@asynccontextmanager
async def staged(fleet: Fleet, folder: Path, flags: Sequence[str] = FLAGS) -> AsyncGenerator[Stage]:
    """A stage on a fleet that is up; the platform is prepared, and cleared at the end."""
    async with AsyncExitStack() as open_:
        clients = {name: await open_.enter_async_context(connect(fleet.kubeconfig(name))) for name in (HUB, *WORKERS)}
        clusters = {name: Cluster(name, client) for name, client in clients.items()}
        # A connection per request, as from many clients: what is kept open would stay with one backend.
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        session = await open_.enter_async_context(aiohttp.ClientSession(connector=connector))
        gateway = f"http://127.0.0.1:{fleet.cluster(HUB)['ports']['gateway']}"
        operator = Operator(fleet, folder / "operator.log", flags)
        stage = Stage(fleet, operator, clusters.pop(HUB), clusters, session, gateway)
        try:
            await stage.prepare()
            yield stage
            await stage.clear()
        finally:
            if operator.is_up:
                await operator.kill()
