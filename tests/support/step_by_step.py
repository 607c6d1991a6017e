"""One controller at work on one object, step by step, with the real Helm: to be ended in the middle and begun anew."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeloop.backoff import Backoff
from kubeloop.cache.connection import Connection
from kubeloop.cache.prober import ConnectionPace
from kubeloop.cache.reflector import WatchPace
from kubeloop.cache.store import Store
from kubeloop.cache.watches import Watched
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube
from kubeloop.client.wire import Call
from kubeloop.helm.driver import Helm
from kubeloop.helm.records import revisions
from kubeloop.helm.release import Revision
from kubeloop.loop import Clients, Controller, reconcile
from kubeloop.objects import Key
from kubeloop.queue import Outcome
from kubeloop.resource import Resource
from kubeloop.steps import KUBE
from kubeloop.types import HUB, SECRET
from modelplane_operator.api import crd
from tests.support.helm import kill
from tests.support.waiting import until

Manifest = dict[str, Any]


@asynccontextmanager
async def watching(
    access: Access, near: Sequence[Watched], there: Sequence[Watched], *, name: str
) -> AsyncIterator[tuple[Connection, Connection, list[Call]]]:
    """One API server as the hub, and under a name as a workload cluster, once all is seen; and what it is asked."""
    store, calls = Store(asyncio.get_running_loop().time), list[Call]()
    pace = ConnectionPace(watch=WatchPace(unserved=Backoff(first=0.2, longest=0.2)))
    hub = Connection(HUB, access, near, store, jitter=lambda: 0.5, pace=pace, on_call=calls.append)
    remote = Connection(name, access, there, store, jitter=lambda: 0.5, pace=pace, on_call=calls.append)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in (hub, remote)]
        await until(lambda: all(one.synced and one.health.answers for one in (hub, remote)), "the first lists")
        yield hub, remote, calls
        for task in tasks:
            task.cancel()


@dataclass
class Operator:
    """An operator with one controller and one object. Its folder has Helm (`noted_helm`), and charts in `mirror`."""

    kube: Kube
    folder: Path
    hub: Connection
    remote: Connection
    calls: list[Call]
    build: Callable[[Helm], Controller[Any, Any]]
    key: Key
    ahead: timedelta = timedelta()
    """How much later it is for the operator than for everybody else."""
    clients: Clients = field(init=False)
    helm: Helm = field(init=False)
    controller: Controller[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another operator takes over: it knows nothing of what the one before had begun."""
        self.helm = Helm(
            self.now,
            executable=str(self.folder / "helm"),
            mirror=str(self.folder / "mirror"),
            timeout=60.0,
            environment={"PATH": os.environ["PATH"]},
            folder=self.folder,
        )
        self.controller = self.build(self.helm)
        fleet = {self.remote.name: self.remote}
        executors = {**KUBE, **self.controller.executors}
        self.clients = Clients(self.hub, fleet.__getitem__, lambda: None, self.now, executors=executors)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    async def end(self) -> None:
        """Leave no Helm behind."""
        kill(self.folder)
        await self.helm.close(20)

    async def step(self) -> Outcome:
        return await reconcile(self.controller, self.key, self.clients)

    async def until(self, holds: Callable[[Manifest], object], what: str) -> Manifest:
        """Reconcile again and again until the object looks like that; what is gone is an empty one."""
        found: Manifest = {}
        try:
            async with asyncio.timeout(180):
                while not holds(found := await self.kube.find(self.controller.type, self.key) or {}):
                    await self.step()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pytest.fail(f"waited 180 s for {what}, in vain: {found.get('status')}")
        return found

    async def live(self) -> Manifest:
        return await self.kube.get(self.controller.type, self.key)

    async def ask(self, **spec: Any) -> None:
        """Have the object ask for something else."""
        live = await self.live()
        stored = await self.kube.replace({**live, "spec": {**live["spec"], **spec}})
        await until(lambda: self._sees(stored), "the watch to show it")

    async def annotate(self, **annotations: str) -> None:
        """Have somebody annotate the object."""
        live = await self.live()
        merged = {**live["metadata"].get("annotations", {}), **annotations}
        stored = await self.kube.replace({**live, "metadata": {**live["metadata"], "annotations": merged}})
        await until(lambda: self._sees(stored), "the watch to show it")

    async def delete(self) -> None:
        """Have somebody delete the object."""
        live = await self.live()
        await self.kube.delete(self.controller.type, self.key, uid=live["metadata"]["uid"])
        await until(self._sees_it_going, "the watch to show it")

    def _sees(self, manifest: Manifest) -> bool:
        informer = self.hub.find(self.controller.type)
        entry = informer.entry(self.key) if informer else None
        return entry is not None and entry.version >= int(manifest["metadata"]["resourceVersion"])

    def _sees_it_going(self) -> bool:
        informer = self.hub.find(self.controller.type)
        seen = informer.get(self.key) if informer else None
        return seen is not None and "deletionTimestamp" in seen["metadata"]

    def history(self, release: Key) -> tuple[Revision, ...]:
        """What Helm has noted of a release, the newest first, as the workload cluster's watch for Secrets tells it."""
        return revisions(self.remote.find(SECRET) or ()).get(release, ())

    def status(self, release: Key) -> str:
        """How its newest revision stands; empty when there is none."""
        return next((one.status for one in self.history(release)), "")

    def runs(self) -> list[str]:
        """What Helm was run for, in order: verb and release."""
        return (self.folder / "runs").read_text().splitlines()


async def define(kube: Kube, kinds: Sequence[type[Resource[Any, Any]]]) -> None:
    """Have a server know these kinds of ours."""
    for kind in kinds:
        await kube.create(yaml.safe_load(crd.to_yaml(kind)))
    async with asyncio.timeout(60):
        for kind in kinds:
            while kind.definition.kind not in await kube.serves(kind.definition.api_version):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


def _condition(manifest: Manifest, kind: str) -> Manifest:
    known = manifest.get("status", {}).get("conditions", [])
    return next((one for one in known if one["type"] == kind), {})


def reason(manifest: Manifest, kind: str) -> str:
    return _condition(manifest, kind).get("reason", "")


def message(manifest: Manifest, kind: str) -> str:
    return _condition(manifest, kind).get("message", "")
