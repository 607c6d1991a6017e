"""An LLMInference on a real API server: the hub, a cluster of the fleet, and a tenant's own cluster in one."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from kubeloop.cache.connection import Connection
from kubeloop.cache.fleet import Fleet
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.cache.store import Store
from kubeloop.cache.watches import Watched
from kubeloop.client.access import Access, write_kubeconfig
from kubeloop.client.kube import Kube
from kubeloop.client.wire import Call
from kubeloop.errors import NotLeading
from kubeloop.loop import Clients, Controller, reconcile
from kubeloop.objects import Key, Manifest, key_of
from kubeloop.resource import of
from kubeloop.steps import KUBE
from kubeloop.types import DEPLOYMENT, HUB, INGRESS, NAMESPACE, SECRET, SERVICE, VLLM_RUNTIME
from kubeloop.wiring import PER_CONCURRENCY_KEY, WORKERS, runner
from modelplane_operator.api import InferenceCluster, LLMInference, ModelDeployment, ModelService, labels
from modelplane_operator.models.llm_inference import controller as llm_inference
from modelplane_operator.models.llm_inference.controller import INDEXES, INFERENCES
from modelplane_operator.models.llm_inference.tenant_clusters import TenantClusters
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.endpoint.hub_networks import HubRanges
from tests.support.step_by_step import define, message, reason
from tests.support.vllm import DEFINITION, say
from tests.support.waiting import SECONDS, until

pytestmark = [pytest.mark.fleet, pytest.mark.usefixtures("there")]

OURS = (LLMInference, InferenceCluster, ModelDeployment, ModelService)
WRITES = {"apply", "create", "delete", "replace", "replace_status", "set_finalizers"}
CLUSTER = "production"
MADE = (VLLM_RUNTIME, DEPLOYMENT, SERVICE, INGRESS)
"""What may be made on a cluster."""


@dataclass
class Operator:
    """An operator with the controller of LLMInferences; `end_at` is the write at which it is killed."""

    kube: Kube
    hub: Connection
    fleet: Fleet
    tenants: TenantClusters
    controller: Controller[Any, Any]
    home: str
    end_at: int | None = None
    writes: int = field(default=0)

    @property
    def key(self) -> Key:
        return Key(self.home, "qwen")

    def may_write(self) -> None:
        self.writes += 1
        if self.has_ended:
            raise NotLeading("ended here")

    @property
    def has_ended(self) -> bool:
        return self.end_at is not None and self.writes >= self.end_at

    async def step(self) -> None:
        clients = Clients(self.hub, self.fleet.cluster, self.may_write, lambda: datetime.now(UTC), executors={**KUBE})
        await reconcile(self.controller, self.key, clients)

    async def until(self, holds: Callable[[Manifest], object], what: str) -> Manifest:
        """Reconcile again and again until it looks like that; what is gone is an empty one."""
        found: Manifest = {}
        try:
            async with asyncio.timeout(SECONDS):
                while not holds(found := await self.kube.find(INFERENCES, self.key) or {}) and not self.has_ended:
                    await self.step()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"waited {SECONDS:g} s for {what}, in vain: {found.get('status')}")
        return found

    async def until_ended(self, holds: Callable[[Manifest], object]) -> Manifest:
        """The same, unless it is killed before."""
        await self.until(holds, "that, or the write at which it is killed")
        return await self.kube.find(INFERENCES, self.key) or {}

    async def make(self, name: str = "qwen", namespace: str = "", **spec: Any) -> None:
        wanted = {"model": "Qwen/Qwen2.5-1.5B-Instruct", **spec}
        metadata = {"name": name, "namespace": namespace or self.home}
        kind = {"apiVersion": INFERENCES.api_version, "kind": INFERENCES.kind}
        stored = await self.kube.create({**kind, "metadata": metadata, "spec": wanted})
        await self._seen(stored)

    async def ask(self, **spec: Any) -> None:
        """Have it ask for something else; None takes a field away."""
        live = await self.kube.get(INFERENCES, self.key)
        wanted = {name: value for name, value in {**live["spec"], **spec}.items() if value is not None}
        await self._seen(await self.kube.replace({**live, "spec": wanted}))

    async def delete(self) -> None:
        live = await self.kube.get(INFERENCES, self.key)
        await self.kube.delete(INFERENCES, self.key, uid=live["metadata"]["uid"])
        gone = {"metadata": {"deletionTimestamp": ""}}  # at once, where nothing was made
        await until(lambda: "deletionTimestamp" in (self._informed() or gone)["metadata"], "the watch to show it")

    async def _seen(self, stored: Manifest) -> None:
        key, version = key_of(stored), int(stored["metadata"]["resourceVersion"])
        await until(
            lambda: (
                int((self._informed(key) or {"metadata": {"resourceVersion": 0}})["metadata"]["resourceVersion"])
                >= version
            ),
            "the watch to show it",
        )

    def _informed(self, key: Key | None = None) -> Manifest | None:
        informer = self.hub.find(INFERENCES)
        return informer.get(key or self.key) if informer else None

    async def runtimes(self) -> list[str]:
        """The namespaces that have one."""
        return [where for kind, where in await there_are(self.kube) if kind == VLLM_RUNTIME.kind]


@pytest.fixture(scope="module")
def reached() -> Reach:
    return Reach(("127.0.0.0/8",))


@asynccontextmanager
async def operating(
    access: Access,
    kube: Kube,
    home: str,
    reach: Reach,
    grants: frozenset[tuple[str, str]] = frozenset(),
    *,
    hosts: frozenset[tuple[str, str]] = frozenset(),
) -> AsyncIterator[Operator]:
    loop = asyncio.get_running_loop()
    store, calls = Store(loop.time), list[Call]()
    near = [Watched(of(kind), None, indexes=INDEXES.get(of(kind), {})) for kind in OURS]
    hub = Connection(HUB, access, near, store, jitter=lambda: 0.5, on_call=calls.append)

    def opened(name: str, way: Access) -> Connection:
        return Connection(name, way, (), store, jitter=lambda: 0.5)

    fleet = Fleet(store, opened)
    tenants = TenantClusters(loop.time, HubRanges(lambda: kube, loop.time), reach, lambda _: None)
    fleet.run_in_background(tenants.fleet)
    fleet.set(CLUSTER, access)
    referenced = ReferencedObjects(lambda: kube, loop.time, 0.0)
    controller = llm_inference.controller(referenced, tenants, grants, hosts)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in (hub, fleet, tenants)]
        await until(lambda: hub.synced and hub.health.answers, "the first lists")
        yield Operator(kube, hub, fleet, tenants, controller, home)
        for task in tasks:
            task.cancel()


@pytest.fixture
async def there(kube: Kube) -> AsyncIterator[None]:
    """The kinds, on a server where they stay."""
    if INFERENCES.kind not in await kube.serves(INFERENCES.api_version):
        await define(kube, OURS)
    await _runtimes(kube)
    yield
    for kind in MADE:
        for one in (await kube.list(kind)).items:
            if one["metadata"]["name"] != "kubernetes":
                await kube.delete(kind, key_of(one), uid=one["metadata"]["uid"])


async def _runtimes(kube: Kube) -> None:
    if VLLM_RUNTIME.kind not in await kube.serves(VLLM_RUNTIME.api_version):
        await kube.create(DEFINITION)
        async with asyncio.timeout(60):
            while VLLM_RUNTIME.kind not in await kube.serves(VLLM_RUNTIME.api_version):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def another(kube: Kube) -> str:
    made = await kube.create({"apiVersion": "v1", "kind": NAMESPACE.kind, "metadata": {"generateName": "target-"}})
    return made["metadata"]["name"]


async def give(kube: Kube, access: Access, home: str, name: str = "dev") -> None:
    text = base64.b64encode(write_kubeconfig(access).encode()).decode()
    metadata = {"name": name, "namespace": home}
    await kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"kubeconfig": text}})


def is_made(found: Manifest) -> bool:
    """Whether there is a runtime, of which nobody says anything."""
    return reason(found, "RuntimeAvailable") == "Available" and reason(found, "ModelReady") == "Unknown"


def is_ready(found: Manifest) -> bool:
    return reason(found, "Ready") == "Available"


async def test_a_secret_of_the_tenant_leads_there_and_the_copy_follows_the_namespace_and_goes(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    first, second = await another(kube), await another(kube)
    await give(kube, access, namespace)
    async with operating(access, kube, namespace, reached) as operator:
        await operator.make(providerConfigName="dev", targetNamespace=first, ingressHost="qwen.127.0.0.1.nip.io")
        found = await operator.until(is_made, "the runtime")
        runtime = await kube.get(VLLM_RUNTIME, Key(first, "qwen"))
        ingress = await kube.get(INGRESS, Key(first, "qwen"))
        assert runtime["metadata"]["labels"][labels.OWNER_UID] == found["metadata"]["uid"]
        assert ingress["spec"]["rules"][0]["host"] == "qwen.127.0.0.1.nip.io"
        await say(kube, Key(first, "qwen"), "Ready")
        found = await operator.until(is_ready, "the model")
        assert (found["status"]["url"], found["status"]["replicas"]) == ("http://qwen.127.0.0.1.nip.io", 1)

        operator.writes = 0
        await operator.step()
        assert operator.writes == 0  # at rest nothing is written

        await operator.ask(targetNamespace=second, ingressHost=None)
    # Whoever comes after that knows where the old copy is.
    async with operating(access, kube, namespace, reached) as operator:
        await operator.until(lambda one: reason(one, "OldCopiesRemoved") == "Removed", "the old copy to go")
        assert await operator.runtimes() == [second]
        assert await kube.find(INGRESS, Key(first, "qwen")) is None
        await operator.delete()
        await operator.until(lambda one: not one, "the end")
        assert await operator.runtimes() == []


async def test_kubernetes_runs_the_engine_where_it_is_asked_to_and_nothing_of_that_stays(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    first, second = await another(kube), await another(kube)
    await give(kube, access, namespace)
    async with operating(access, kube, namespace, reached) as operator:
        await operator.make(
            providerConfigName="dev", targetNamespace=first, runtime="Deployment", gpu=2, ingressHost="a.example.com"
        )
        found = await operator.until(lambda one: reason(one, "ModelReady") == "NotReady", "the engine to be made")
        assert reason(found, "RuntimeAvailable") == "NotNeeded"
        assert await there_are(kube) == [(kind, first) for kind in ("Deployment", "Ingress", "Service")]

        live = await kube.get(DEPLOYMENT, Key(first, "qwen"))
        counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "updatedReplicas"), 1)
        # Unlike a Deployment's controller we take its annotations away with this: they are applied again, which counts.
        observed = {"observedGeneration": live["metadata"]["generation"] + 1}
        await kube.replace_status({**live, "status": {**observed, **counts}})
        found = await operator.until(is_ready, "the model")
        assert (found["status"]["url"], found["status"]["replicas"]) == ("http://a.example.com", 1)
        operator.writes = 0
        await operator.step()
        assert operator.writes == 0

        await operator.ask(targetNamespace=second, ingressHost=None)
        await operator.until(lambda one: reason(one, "OldCopiesRemoved") == "Removed", "the old copy to go")
        assert await there_are(kube) == [(kind, second) for kind in ("Deployment", "Service")]
        await operator.delete()
        await operator.until(lambda one: not one, "the end")
        assert await there_are(kube) == []


async def test_a_cluster_of_the_fleet_takes_those_that_it_lets_in(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    target = await another(kube)
    cluster = {
        "apiVersion": of(InferenceCluster).api_version,
        "kind": "InferenceCluster",
        "metadata": {"name": CLUSTER},
        "spec": {"cluster": {"source": "Existing", "existing": {"secretRef": {"name": "a", "key": "kubeconfig"}}}},
    }
    stored = await kube.create(cluster)
    async with operating(access, kube, namespace, reached) as operator:
        await operator.make(providerConfigName=CLUSTER, targetNamespace=target)
        refused = await operator.until(lambda one: reason(one, "TargetResolved") == "NotGranted", "the refusal")
        assert "llmInferences" in message(refused, "TargetResolved")
        assert await operator.runtimes() == []

        grants: list[dict[str, Any]] = [{"namespace": namespace, "targetNamespaces": [target]}]
        await kube.replace({**stored, "spec": {**stored["spec"], "llmInferences": grants}})
        await operator.until(is_made, "the runtime")
        assert await operator.runtimes() == [target]

        await operator.ask(ingressHost="qwen.team.example.com")
        refused = await operator.until(lambda one: reason(one, "TargetResolved") == "HostNotGranted", "the refusal")
        assert "ingressHosts" in message(refused, "TargetResolved")
        assert await there_are(kube) == [("VLLMRuntime", target)]
        live = await kube.get(of(InferenceCluster), Key("", CLUSTER))
        grants[0]["ingressHosts"] = ["*.team.example.com"]
        await kube.replace({**live, "spec": {**live["spec"], "llmInferences": grants}})
        await operator.until(is_made, "the runtime")
        assert await there_are(kube) == [("Ingress", target), ("VLLMRuntime", target)]

        await operator.ask(targetNamespace="kube-system")
        await operator.until(lambda one: reason(one, "TargetResolved") == "NotGranted", "the refusal")
        assert await operator.runtimes() == [target]
        await operator.delete()
        await operator.until(lambda one: not one, "the end")
        assert await operator.runtimes() == []


async def test_the_hub_itself_is_open_only_where_the_settings_say_so(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    target = await another(kube)
    grants, hosts = frozenset({(namespace, target)}), frozenset({(namespace, "qwen.example.com")})
    async with operating(access, kube, namespace, reached, grants, hosts=hosts) as operator:
        await operator.make(providerConfigName="incluster")
        await operator.until(lambda one: reason(one, "TargetResolved") == "NotGranted", "the refusal")
        for closed in ("modelplane-system", "kube-system", "default"):
            await operator.ask(targetNamespace=closed)
            await operator.until(lambda one, closed=closed: closed in message(one, "TargetResolved"), "the refusal")
        await operator.ask(targetNamespace=target, ingressHost="console.example.com")
        await operator.until(lambda one: reason(one, "TargetResolved") == "HostNotGranted", "the refusal")
        assert await there_are(kube) == []

        await operator.ask(ingressHost="qwen.example.com")
        await operator.until(is_made, "the runtime")
        assert await there_are(kube) == [("Ingress", target), ("VLLMRuntime", target)]
        await operator.delete()
        await operator.until(lambda one: not one, "the end")
        assert await operator.runtimes() == []


async def test_a_secret_of_another_namespace_leads_nowhere(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    theirs = await another(kube)
    await give(kube, access, theirs)
    async with operating(access, kube, namespace, reached) as operator:
        await operator.make(providerConfigName="dev", targetNamespace=theirs)
        await operator.until(lambda one: reason(one, "TargetResolved") == "NotGranted", "the refusal")
        assert list(operator.tenants.fleet) == []


async def test_secrets_of_one_name_in_two_namespaces_lead_each_to_its_own_cluster(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    mine, theirs = await another(kube), await another(kube)
    async with silent() as (server, asked), operating(access, kube, namespace, reached) as operator:
        operator.tenants.plain_http = True
        await give(kube, access, namespace)
        await give(kube, Access(server, token="t"), theirs)  # noqa: S106 - nobody asks for it
        await operator.make(providerConfigName="dev", targetNamespace=mine)
        await operator.make(namespace=theirs, providerConfigName="dev", targetNamespace=mine)
        await operator.until(is_made, "the runtime")
        operator.home = theirs
        await operator.until(lambda _: asked, "the other's cluster to be asked")
        runtime = await kube.get(VLLM_RUNTIME, Key(mine, "qwen"))
        assert runtime["metadata"]["labels"][labels.OWNER_NAMESPACE] == namespace
        assert all("production-stack" in one for one in asked)
        servers = {one.name: one.server for one in operator.tenants.fleet}
        assert servers == {f"llminference:{namespace}/dev": access.server, f"llminference:{theirs}/dev": server}


async def test_who_comes_second_to_a_name_on_a_cluster_takes_nothing_from_the_first(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    target, theirs = await another(kube), await another(kube)
    for home in (namespace, theirs):
        await give(kube, access, home)
    async with operating(access, kube, namespace, reached) as operator:
        await operator.make(providerConfigName="dev", targetNamespace=target, ingressHost="a.example.com")
        await operator.until(is_made, "the runtime")
        before = [await kube.get(kind, Key(target, "qwen")) for kind in (VLLM_RUNTIME, INGRESS)]
        operator.home = theirs
        for runtime in ("VLLMRuntime", "Deployment"):
            spec = {"runtime": runtime, "targetNamespace": target, "ingressHost": "b.example.com"}
            await operator.make(providerConfigName="dev", **spec)
            found = await operator.until(lambda one: reason(one, "ModelReady") == "NameTaken", "the refusal")
            for kind in ("VLLMRuntime", "Ingress"):
                assert f"{kind} {target}/qwen" in message(found, "ModelReady")
            await operator.delete()
            await operator.until(lambda one: not one, "the end")
        assert [await kube.get(kind, Key(target, "qwen")) for kind in (VLLM_RUNTIME, INGRESS)] == before


async def test_the_production_stack_does_not_get_the_deployment_of_another(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    """It makes a Deployment of its runtime's name, and would take what is there."""
    target, theirs = await another(kube), await another(kube)
    for home in (namespace, theirs):
        await give(kube, access, home)
    async with operating(access, kube, namespace, reached) as operator:
        await operator.make(providerConfigName="dev", targetNamespace=target, runtime="Deployment")
        await operator.until(lambda one: reason(one, "ModelReady") == "NotReady", "the engine to be made")
        operator.home = theirs
        await operator.make(namespace=theirs, providerConfigName="dev", targetNamespace=target)
        await operator.until(lambda one: reason(one, "ModelReady") == "NameTaken", "the refusal")
        assert await there_are(kube) == [("Deployment", target), ("Service", target)]


async def test_a_kubeconfig_that_leads_inside_is_not_followed(
    access: Access,
    kube: Kube,
    namespace: str,
) -> None:
    await give(kube, access, namespace)
    async with operating(access, kube, namespace, Reach()) as operator:
        await operator.make(providerConfigName="dev")
        found = await operator.until(lambda one: reason(one, "TargetResolved") == "InvalidKubeconfig", "the refusal")
        assert "cannot be used" in message(found, "TargetResolved")
        assert list(operator.tenants.fleet) == []


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[str, list[str]]]:
    """An API server that says that it is ready, and nothing else; its address, and what it was asked."""
    asked, serving, over = list[str](), set[asyncio.Task[Any]](), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            serving.add(task)
        try:
            while b"/readyz" in (head := await reader.readuntil(b"\r\n\r\n")):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            asked.append(head.split(b" ")[1].decode())
            await over.wait()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def test_clusters_of_one_namespace_that_do_not_answer_hold_up_no_other_namespace(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    theirs = await another(kube)
    async with silent() as (server, asked), operating(access, kube, namespace, reached) as operator:
        operator.tenants.plain_http = True
        await give(kube, Access(server, token="t"), namespace)  # noqa: S106 - nobody asks for it
        secret = await kube.get(SECRET, Key(namespace, "dev"))
        way = operator.tenants.connect(
            Key(namespace, "dev"), await operator.tenants.access(Key(namespace, "dev"), secret)
        )
        await until(lambda: operator.fleet.cluster(way).health.answers, "it to say that it is ready")
        clients = Clients(
            operator.hub, operator.fleet.cluster, lambda: None, lambda: datetime.now(UTC), executors={**KUBE}
        )
        workers = runner(operator.controller, clients, on_reconciled=lambda _, __, ___: None).workers
        for number in range(WORKERS + 4):
            await operator.make(f"slow-{number}", providerConfigName="dev")
            workers.add(Key(namespace, f"slow-{number}"))
        working = asyncio.create_task(workers.run())
        await until(lambda: len(asked) >= PER_CONCURRENCY_KEY, "the first of them to be asked for")

        await operator.make("quick", theirs, providerConfigName="nothing")
        workers.add(Key(theirs, "quick"))
        informer = operator.hub.find(INFERENCES)
        await until(
            lambda: informer and (informer.get(Key(theirs, "quick")) or {}).get("status"), "the other namespace's turn"
        )
        assert len(asked) == PER_CONCURRENCY_KEY
        working.cancel()
        await asyncio.wait({working})


async def test_what_others_have_under_that_name_is_left_alone(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    target = await another(kube)
    kind = {"apiVersion": VLLM_RUNTIME.api_version, "kind": VLLM_RUNTIME.kind}
    theirs = await kube.create({**kind, "metadata": {"name": "qwen", "namespace": target}, "spec": {"model": {}}})
    await give(kube, access, namespace)
    async with operating(access, kube, namespace, reached) as operator:
        await operator.make(providerConfigName="dev", targetNamespace=target)
        await operator.until(lambda one: reason(one, "ModelReady") == "NameTaken", "the refusal")
        await operator.delete()
        await operator.until(lambda one: not one, "the end")
        assert await kube.get(VLLM_RUNTIME, Key(target, "qwen")) == theirs


async def test_a_deletion_waits_for_a_secret_that_is_gone_until_it_is_let_go_of(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    target = await another(kube)
    await give(kube, access, namespace)
    async with operating(access, kube, namespace, reached) as operator:
        await operator.make(providerConfigName="dev", targetNamespace=target)
        await operator.until(is_made, "the runtime")
        secret = await kube.get(SECRET, Key(namespace, "dev"))
        await kube.delete(SECRET, Key(namespace, "dev"), uid=secret["metadata"]["uid"])
        await operator.until(lambda one: reason(one, "TargetResolved") == "NotFound", "the loss")
        assert await operator.runtimes() == [target]
        await operator.delete()
        await operator.until(lambda one: labels.ABANDON in message(one, "Ready"), "the way out to be told")

        live = await kube.get(INFERENCES, operator.key)
        metadata = {**live["metadata"], "annotations": {labels.ABANDON: "true"}}
        await operator._seen(await kube.replace({**live, "metadata": metadata}))  # pyright: ignore[reportPrivateUsage]
        await operator.until(lambda one: not one, "the end")
        assert await operator.runtimes() == [target]


async def test_the_fleet_takes_over_and_gives_back(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
) -> None:
    target, key = await another(kube), Key(namespace, "qwen")
    await give(kube, access, namespace)
    async with operating(access, kube, namespace, reached) as operator:
        await operator.make(providerConfigName="dev", targetNamespace=target)
        await operator.until(is_made, "the runtime")

        await operator.ask(placement="Fleet", providerConfigName=None, targetNamespace=None)
        found = await operator.until(lambda one: reason(one, "OldCopiesRemoved") == "Removed", "the runtime to go")
        assert found["status"]["memoryPerGpu"] == "7Gi"
        assert await operator.runtimes() == []
        assert await kube.find(of(ModelDeployment), key)
        assert await kube.find(of(ModelService), key)

        await operator.ask(placement="Cluster", providerConfigName="dev", targetNamespace=target)
        await operator.until(is_made, "the runtime")
        await operator.until(lambda one: reason(one, "OldCopiesRemoved") == "Removed", "the deployment to go")
        assert await kube.find(of(ModelDeployment), key) is None
        assert await kube.find(of(ModelService), key) is None


Act = Callable[[Operator], Awaitable[None]]


def life(runtime: str, first: str, second: str) -> Iterator[tuple[Act, Callable[[Manifest], object]]]:
    """Make it, have it go elsewhere, delete it; and what each of these leads to."""
    spec = {"providerConfigName": "dev", "ingressHost": "a.example.com", "runtime": runtime}
    yield lambda one: one.make(targetNamespace=first, **spec), lambda one: one.get("status", {}).get("url")
    yield lambda one: one.ask(targetNamespace=second), lambda one: reason(one, "OldCopiesRemoved") == "Removed"
    yield Operator.delete, lambda one: not one


@pytest.mark.parametrize("runtime", ["VLLMRuntime", "Deployment"])
async def test_operators_that_end_after_each_write_leave_nothing_behind(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
    *,
    runtime: str,
) -> None:
    first, second = await another(kube), await another(kube)
    await give(kube, access, namespace)
    operators = 0
    for act, holds in life(runtime, first, second):
        found: Manifest = {}
        begun = False
        while not (begun and holds(found)):
            operators += 1
            assert operators < 40, f"they come to no end: {found}"
            async with operating(access, kube, namespace, reached) as operator:
                if not begun:
                    await act(operator)
                begun, operator.end_at = True, 2
                found = await operator.until_ended(holds)
    assert await there_are(kube) == []
    assert operators > 6  # else none of them was ended


@pytest.mark.long
@pytest.mark.parametrize("runtime", ["VLLMRuntime", "Deployment"])
@pytest.mark.parametrize("write", range(1, 14))
async def test_an_operator_that_ends_at_any_write_leaves_nothing_behind(
    access: Access,
    kube: Kube,
    namespace: str,
    reached: Reach,
    *,
    write: int,
    runtime: str,
) -> None:
    """The first operator is ended at that write, and another goes on."""
    first, second = await another(kube), await another(kube)
    await give(kube, access, namespace)
    before = 0
    for act, holds in life(runtime, first, second):
        async with operating(access, kube, namespace, reached) as operator:
            await act(operator)
            operator.end_at = write - before if write > before else None
            await operator.until_ended(holds)
            before += operator.writes
        async with operating(access, kube, namespace, reached) as operator:
            await operator.until(holds, "what the one before had begun")
    assert await there_are(kube) == []


async def there_are(kube: Kube) -> list[tuple[str, str]]:
    """What is made, kind and namespace."""
    made = [(kind.kind, key_of(one)) for kind in MADE for one in (await kube.list(kind)).items]
    return sorted((kind, key.namespace) for kind, key in made if key.name != "kubernetes")
