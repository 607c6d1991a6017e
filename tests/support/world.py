"""A world for controllers: one API server that is the hub and, in another namespace, a workload cluster as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from kubeloop.cache.connection import Connection
from kubeloop.cache.fleet import Fleet
from kubeloop.cache.store import Store
from kubeloop.cache.watches import Watched
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube
from kubeloop.client.wire import Call
from kubeloop.condition_types import Ready
from kubeloop.errors import NotLeading
from kubeloop.loop import Clients, Controller, reconcile
from kubeloop.objects import Key, key_of
from kubeloop.plan import LET_GO, Plan, Step, delete
from kubeloop.queue import Outcome
from kubeloop.resource import of
from kubeloop.steps import KUBE
from kubeloop.types import CONFIG_MAP, HUB
from modelplane_operator.api import ModelCache, labels
from modelplane_operator.api.model_cache import ModelCacheStatus
from tests.api.contract import rich
from tests.support.api_fixtures import Manifest
from tests.support.waiting import until

CACHES = of(ModelCache)
READS = {"get", "list", "watch", "ping", "discover"}
WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the toy controller observed."""

    cache: ModelCache
    children: tuple[Manifest, ...]
    remote: tuple[Manifest, ...]
    now: datetime


Planner = Callable[[Seen], Plan]


@dataclass(slots=True)
class World:
    """An operator with one toy controller; `calls` are what it sent."""

    namespace: str
    clients: Clients
    hub: Connection
    worker: Connection
    kube: Kube
    calls: list[Call]
    leading: bool = True
    sums_up: bool = False
    planner: Planner = field(default=lambda _: Plan())

    @property
    def controller(self) -> Controller[ModelCache, Seen]:
        return Controller(ModelCache, self._observe, self.planner, sums_up=self.sums_up)

    async def _observe(self, cache: ModelCache, clients: Clients) -> Seen:
        uid = cache.metadata.uid or ""

        def children(cluster: str) -> tuple[Manifest, ...]:
            found = clients.cluster(cluster).find(CONFIG_MAP)
            return tuple(found.children_of(uid)) if found else ()

        return Seen(cache, children(HUB), children(WORKER), clients.now())

    async def step(self, name: str = "subject", *, failures: int = 0) -> Outcome:
        """One reconcile; `calls` then holds what it sent."""
        self.calls.clear()
        return await reconcile(self.controller, Key(self.namespace, name), self.clients, failures=failures)

    @property
    def writes(self) -> list[str]:
        return [f"{call.verb} {call.resource}" for call in self.calls if call.verb not in READS]

    async def cache(self, name: str = "subject") -> Manifest:
        """A ModelCache that the operator has seen."""
        manifest = {**rich()["ModelCache"], "metadata": {"name": name, "namespace": self.namespace}}
        made = await self.kube.create({part: value for part, value in manifest.items() if part != "status"})
        await self.seen(made)
        return made

    async def live(self, name: str = "subject") -> Manifest:
        return await self.kube.get(CACHES, Key(self.namespace, name))

    async def seen(self, manifest: Manifest) -> None:
        """Wait until the operator's watch has seen this version."""
        kind = CACHES if manifest["kind"] == "ModelCache" else CONFIG_MAP
        informer = self.hub.find(kind)
        assert informer is not None
        version = int(manifest["metadata"]["resourceVersion"])

        def there() -> bool:
            entry = informer.entry(key_of(manifest))
            return entry is not None and entry.version >= version

        await until(there, f"the watch to show {manifest['kind']} at {version}")

    async def lose(self, name: str) -> None:
        """Have somebody delete a child, and the operator's watch tell of it."""
        live = await self.kube.get(CONFIG_MAP, Key(self.namespace, name))
        await self.kube.delete(CONFIG_MAP, key_of(live), uid=live["metadata"]["uid"])
        maps = self.hub.find(CONFIG_MAP)
        assert maps is not None
        await until(lambda: maps.get(key_of(live)) is None, f"the watch to show that {name} is gone")

    def synced(self, manifest: Manifest) -> tuple[str, str, str]:
        conditions = manifest["status"]["conditions"]
        found = next(one for one in conditions if one["type"] == "Synced")
        return found["status"], found["reason"], found.get("message", "")


def child(seen: Seen, name: str, data: str = "1", room: str | None = None) -> Manifest:
    """A child of the toy controller's object."""
    owner = {labels.OWNER_UID: seen.cache.metadata.uid, labels.OWNER_KIND: "ModelCache"}
    owner |= {labels.OWNER_NAMESPACE: seen.cache.key.namespace, labels.OWNER_NAME: seen.cache.key.name}
    metadata = {"name": name, "namespace": room or seen.cache.key.namespace, "labels": owner}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": data}}


def available(seen: Seen, *steps: Step) -> Plan:
    return Plan(steps, ModelCacheStatus(conditions=(Ready.AVAILABLE.condition(seen.now, message="all of it"),)))


def torn_down(seen: Seen) -> Plan:
    """Delete all that is remote, and let go when it is gone."""
    if seen.remote:
        return Plan(tuple(delete(one, cluster=WORKER) for one in seen.remote))
    return Plan((LET_GO,))


@asynccontextmanager
async def operating(access: Access, kube: Kube, namespace: str) -> AsyncIterator[World]:
    """An operator that has just begun."""
    store = Store(asyncio.get_running_loop().time)
    calls: list[Call] = []

    def opened(name: str, access: Access) -> Connection:
        watched = [Watched(CONFIG_MAP), *([Watched(CACHES, None)] if name == HUB else [])]
        return Connection(name, access, watched, store, jitter=lambda: 0.5, on_call=calls.append)

    fleet = Fleet(store, opened)
    hub = opened(HUB, access)
    fleet.set(WORKER, access)
    world: World

    def may_write() -> None:
        if not world.leading:
            raise NotLeading("another operator may hold the lease")

    clients = Clients(hub, fleet.cluster, may_write, lambda: datetime.now(UTC), executors=KUBE)
    world = World(namespace, clients, hub, fleet.cluster(WORKER), kube, calls)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(hub.run()), group.create_task(fleet.run())]
        await until(lambda: all(one.synced and one.health.answers for one in (hub, world.worker)), "the first lists")
        yield world
        for task in tasks:
            task.cancel()


@pytest.fixture
async def world(access: Access, kube: Kube, namespace: str) -> AsyncIterator[World]:
    async with operating(access, kube, namespace) as world:
        yield world


@pytest.fixture
async def through_proxy(access_through: Access, kube: Kube, namespace: str) -> AsyncIterator[World]:
    """The same, whose operator has the fault proxy before its API server."""
    async with operating(access_through, kube, namespace) as world:
        yield world
