"""B21: what one of ten pods takes that share a fleet, and leads it besides.

The nine others are member Leases that somebody renews. What they would hold nobody holds: of their clusters there is
what the hub has, statuses included.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from benchmarks.live import scene as scenes
from benchmarks.live.operator import Operator
from benchmarks.live.scene import AT_ONCE, OURS, SYSTEM, Scene
from benchmarks.report import Figure
from localfleet.kubeclient import MERGE, Manifest
from modelplane_operator.api import labels
from modelplane_operator.clients.shares import member_lease

PODS = 10
REPLICAS = 10  # of each deployment
DEPLOYMENTS = 50
RENEWED = 2.0
STEADY = 15.0
LEASE = "modelplane-operator"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"


async def shared(size: int, seconds: float) -> AsyncIterator[Figure]:
    """So many clusters, of which one pod of ten holds its part; then nothing changes for so many seconds."""
    async with scenes.scene(clusters=size) as scene, _others(scene):
        flags = ("--share-clusters=on", f"--lease-namespace={SYSTEM}")
        with scene.operator("one", *flags) as one:
            began = time.monotonic()
            await scene.leading(one)
            yield Figure("B21", size, "from start to leading", round(time.monotonic() - began, 2), "s")
            held = await _held(scene, one)
            yield Figure("B21", size, "clusters of this pod", held, "clusters")
            yield Figure("B21", size, "until its clusters are Ready", round(time.monotonic() - began, 2), "s")
            await _tell_of_others(scene)
            await scene.quiet(one)
            yield Figure("B21", size, "resident, clusters alone", round(one.memory(), 1), "MB")
            before = await asyncio.to_thread(one.usage)
            await asyncio.sleep(seconds)
            after = await asyncio.to_thread(one.usage)
            yield Figure("B21", size, "at rest: CPU", round(after.core_since(before), 4), "core")
            asked = (after.reads - before.reads).total() / after.seconds_since(before)
            yield Figure("B21", size, "at rest: requests", round(asked, 2), "requests/s")
            writes = after.writes - before.writes
            yield Figure("B21", size, "at rest: writes", writes.total(), "writes")
            for what, count in sorted(writes.items()):
                yield Figure("B21", size, f"at rest: of those, {what}", count, "writes")
            decided = await _decided(scene)
            yield Figure("B21", size, "decided and stored on the hub, each", round(decided * 1e3, 1), "ms")
            yield Figure("B21", size, "resident, with 500 replicas decided", round(one.memory(), 1), "MB")


@asynccontextmanager
async def _others(scene: Scene) -> AsyncGenerator[None]:
    """The other pods, as far as this one can tell."""
    names = [f"other-{number}" for number in range(1, PODS)]
    for name in names:
        await scene.hub.request("POST", LEASES, _member(name))

    async def renew() -> None:
        while True:
            for name in names:
                spec = _member(name)["spec"]
                await scene.hub.request(
                    "PATCH", f"{LEASES}/{member_lease(LEASE, name)}", {"spec": spec}, content_type=MERGE
                )
            await asyncio.sleep(RENEWED)

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()


def _member(name: str) -> Manifest:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": member_lease(LEASE, name), "labels": {labels.SHARING: LEASE}},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 15, "renewTime": now},
    }


async def _held(scene: Scene, one: Operator) -> int:
    """How many clusters it holds, once it takes no more and all of them are Ready."""
    held, since = -1.0, time.monotonic()
    while not held > 0 or time.monotonic() - since < STEADY:
        await asyncio.sleep(1.0)
        if (now := await asyncio.to_thread(one.value, "modelplane_clusters_held")) != held:
            held, since = now, time.monotonic()
    await scene.ours("inferenceclusters").until(
        f"{held:g} clusters to be Ready", lambda found: sum(map(scenes.is_ready, found.values())) == held
    )
    return int(held)


async def _tell_of_others(scene: Scene) -> None:
    """Write into the clusters that nobody holds what a pod would that does."""
    found = scene.ours("inferenceclusters").mirror.objects
    status = next(one["status"] for one in found.values() if scenes.is_ready(one))
    slots = asyncio.Semaphore(AT_ONCE)

    async def tell(name: str) -> None:
        async with slots:
            path = f"{OURS}/inferenceclusters/{name}/status"
            await scene.hub.request("PATCH", path, {"status": status}, content_type=MERGE)

    async with asyncio.TaskGroup() as group:
        for (_, name), one in tuple(found.items()):
            if not scenes.is_ready(one):
                group.create_task(tell(name))


async def _decided(scene: Scene) -> float:
    """The seconds for each replica until all are stored."""
    began, wanted = time.monotonic(), DEPLOYMENTS * REPLICAS
    await scene.apply(scenes.deployment(number, replicas=REPLICAS) for number in range(DEPLOYMENTS))
    ended = await scene.ours("modelreplicas").until("all replicas", lambda found: len(found) == wanted)
    return (ended - began) / wanted
