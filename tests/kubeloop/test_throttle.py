"""A cluster may wake much at once, and little for ever; nobody else is held up by it, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from kubeloop.cache.informer import Informer
from kubeloop.client.kube import Event
from kubeloop.loop import Clients, Controller
from kubeloop.queue import Done, Outcome, Queue, QueuePace
from kubeloop.resource import of
from kubeloop.steps import KUBE
from kubeloop.throttle import PRUNED_AT, Rates, Throttle
from kubeloop.types import POD
from kubeloop.wiring import owner_of_kind, runner
from kubeloop.workers import Workers
from modelplane_operator.api import ModelReplica, labels
from tests.support import virtual_time
from tests.support.manifests import Manifest

REPLICA = of(ModelReplica)
RATES = Rates(of_key=(30.0, 1.0), of_cluster=(100.0, 10.0))
Scene = Callable[[Throttle[str], Counter[str]], Coroutine[Any, Any, None]]


def played(scene: Scene, *, rates: Rates = RATES) -> Counter[str]:
    """How often each key has run in a scene."""

    async def play() -> Counter[str]:
        runs = Counter[str]()

        async def reconcile(key: str) -> Outcome:
            runs[key] += 1
            return Done()

        queue = Queue[str](lambda _: ("", ""), jitter=lambda: 0.5, pace=QueuePace(resync=1e6))
        workers = Workers(queue, reconcile, 16)
        async with asyncio.TaskGroup() as group:
            working = group.create_task(workers.run())
            await asyncio.sleep(0)
            await scene(Throttle(workers, rates), runs)
            working.cancel()
        return runs

    return virtual_time.run(play())


def test_what_a_cluster_does_now_and_then_is_looked_at_at_once() -> None:
    async def scene(throttle: Throttle[str], runs: Counter[str]) -> None:
        for number in range(50):
            throttle.wake(f"key-{number}", "one")
        await asyncio.sleep(0.01)
        assert runs.total() == 50

    played(scene)


def test_a_key_that_flips_for_ever_runs_once_a_second_and_sees_the_last_of_it() -> None:
    async def scene(throttle: Throttle[str], runs: Counter[str]) -> None:
        for _ in range(100 * 60):
            throttle.wake("flipping", "one")
            await asyncio.sleep(0.01)
        assert runs["flipping"] <= 30 + 61
        before = runs["flipping"]
        throttle.wake("flipping", "one")
        await asyncio.sleep(1.1)
        assert runs["flipping"] > before, "the last change is not lost"

    played(scene)


def test_a_cluster_without_end_holds_up_no_other_and_no_user() -> None:
    async def scene(throttle: Throttle[str], runs: Counter[str]) -> None:
        for number in range(1000):
            throttle.wake(f"flood-{number}", "hostile")
        throttle.wake("theirs", "honest")
        throttle.wake("flood-998", "honest")
        throttle.workers.add("flood-999", edited=True)
        await asyncio.sleep(0.01)
        assert runs["theirs"] == 1
        assert runs["flood-998"] == 1, "the other cluster wakes it as ever"
        assert runs["flood-999"] == 1, "its user has changed it"
        assert runs.total() <= 100 + 3
        await asyncio.sleep(10.0)
        assert runs.total() <= 200 + 3 + 1, "so many a second"
        await asyncio.sleep(100.0)
        assert len(runs) == 1001, "none is forgotten"

    played(scene)


def test_that_a_cluster_is_back_is_not_lost_in_a_wake_that_waits_for_its_time() -> None:
    async def scene() -> list[bool]:
        told: list[bool] = []
        queue = Queue[str](lambda _: ("", ""), jitter=lambda: 0.5)
        workers = SimpleNamespace(queue=queue, add=lambda _, forgiven: told.append(forgiven))
        throttle = Throttle[str](cast(Any, workers), Rates(of_key=(1.0, 1.0)))
        for forgiven in (False, False, True, False):
            throttle.wake("a", "one", forgiven=forgiven)
        await asyncio.sleep(1.1)
        return told

    assert virtual_time.run(scene()) == [False, True]


def test_keys_that_are_no_more_are_forgotten() -> None:
    async def scene(throttle: Throttle[str], _: Counter[str]) -> None:
        for number in range(3 * PRUNED_AT):
            throttle.wake(f"forged-{number}", "hostile")
            await asyncio.sleep(0.001)
        assert len(throttle._of_key) <= 2 * PRUNED_AT

    played(scene, rates=Rates(of_cluster=(1e6, 1e6)))


async def test_labels_that_name_what_is_not_on_the_hub_wake_nobody() -> None:
    replicas, elsewhere = (Informer(kind, lambda: 0.0, cluster=where) for kind, where in ((REPLICA, ""), (POD, "east")))
    hub = cast(Any, SimpleNamespace(find={REPLICA: replicas}.get))
    clients = Clients(hub, fleet=cast(Any, None), may_write=lambda: None, now=lambda: datetime.now(UTC), executors=KUBE)
    controller = Controller(
        ModelReplica, cast(Any, None), cast(Any, None), remote_watches={POD: owner_of_kind("ModelReplica")}
    )
    known = runner(controller, clients, on_reconciled=lambda *_: None)
    known.add_event_handlers(elsewhere)
    known.workers.enqueue_all(())

    elsewhere.on_event(Event("ADDED", owned("forged", by="nobody")))
    assert len(known.workers.queue) == 0
    replicas.on_event(Event("ADDED", owned("somebody")))
    elsewhere.on_event(Event("ADDED", owned("honest", by="somebody")))
    assert len(known.workers.queue) == 1


def owned(name: str, *, by: str = "") -> Manifest:
    owner = {labels.OWNER_KIND: "ModelReplica", labels.OWNER_NAMESPACE: "team", labels.OWNER_NAME: by}
    return {"metadata": {"namespace": "team", "name": name, "uid": name, "resourceVersion": "1", "labels": owner}}
