"""B8, B10: what many connections cost, how they come back, and how soon another operator goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from benchmarks.live import scene as scenes
from benchmarks.live.operator import Operator
from benchmarks.report import Figure

OUTAGE = 15.0  # seconds
WORKLOADS = "/apis/apps/v1/deployments"


async def watches(size: int, seconds: float) -> AsyncIterator[Figure]:
    """So many idle clusters; then all of them are gone for a while, and come back at once."""
    async with scenes.scene(clusters=0) as scene:
        with scene.operator() as one:
            await scene.leading(one)
            await asyncio.sleep(seconds)
            empty = one.usage()
            await asyncio.sleep(seconds)
            alone = one.usage()
            await scene.platform(size)
            await scene.brought_up(one, size)
            before = one.usage()
            await asyncio.sleep(seconds)
            after = one.usage()
            idle = after.core_since(before)
            nothing = alone.core_since(empty)
            memory = (after.memory - alone.memory) / size
            yield Figure("B8", size, "memory for each idle cluster", round(memory, 2), "MB")
            yield Figure("B8", size, "CPU for each idle cluster", round((idle - nothing) / size * 1000, 3), "mCPU")
            async for figure in _all_at_once(scene, one, size):
                yield figure


async def _all_at_once(scene: scenes.Scene, one: Operator, size: int) -> AsyncIterator[Figure]:
    clusters = scene.ours("inferenceclusters")
    await scene.cut()
    await clusters.until("no cluster to be Ready", lambda found: not any(map(scenes.is_ready, found.values())))
    await asyncio.sleep(OUTAGE)
    before = one.usage()
    began = time.monotonic()
    await scene.heal()
    resumed = await scene.until_ready("inferenceclusters", size) - began  # asking the operator would cost it CPU
    await scene.quiet(one, 2.0)
    after = one.usage()
    reads = after.reads - before.reads
    lag = one.value("modelplane_loop_lag_seconds")
    refused = sum(
        count for labels, count in one.metrics()["modelplane_request_seconds_count"] if labels["outcome"] == "TooMany"
    )
    yield Figure("B8", size, "all back: until all are Ready again", round(resumed, 2), "s")
    yield Figure("B8", size, "all back: lists", reads["workload list"], "requests")
    yield Figure("B8", size, "all back: watches", reads["workload watch"], "requests")
    yield Figure("B8", size, "all back: CPU", round(after.cpu_since(before), 2), "s")
    yield Figure("B8", size, "all back: peak of memory", round(after.peak, 1), "MB")
    yield Figure("B8", size, "all back: worst delay of the loop", round(lag * 1000, 1), "ms")
    yield Figure("B8", size, "refused with 429, all the time", refused, "requests")


async def failover(size: int) -> AsyncIterator[Figure]:
    """The leader is killed while it places replicas; so many more are applied at that moment."""
    clusters = 3
    async with scenes.scene(clusters=clusters) as scene:
        with scene.operator("first") as first:
            await scene.brought_up(first, clusters)
            with scene.operator("second") as second:
                await asyncio.to_thread(
                    second.running.wait_until,
                    lambda: second.serves() and second.value("modelplane_ready") == 1,
                    seconds=60,
                    what="the standby to have seen the hub",
                )
                replicas = scene.ours("modelreplicas")
                await scene.apply([scenes.deployment(0, replicas=size)])
                await replicas.until("the first replica", bool)
                first.kill()
                killed = time.monotonic()
                await scene.apply([scenes.deployment(1, replicas=1)])
                leads = asyncio.create_task(scene.leading(second))
                placed = await replicas.until(
                    "a replica by the successor",
                    lambda found: any(key[1].startswith("model-00001-") for key in found),
                )
                await leads
                ready = await scene.until_ready("modeldeployments", 2)
                await scene.quiet(second)
                made = {name for _, name in replicas.mirror.objects}
                workloads = scene.seen(WORKLOADS, remote=True)
                await workloads.until("the workloads", lambda found: len(found) >= size + 1)
                there = len(workloads.mirror.objects)
        yield Figure(
            "B10", size, "from the kill to the first decision of the successor", round(placed - killed, 2), "s"
        )
        yield Figure("B10", size, "from the kill until all is Ready", round(ready - killed, 2), "s")
        yield Figure("B10", size, "replicas that are too many", len(made) - (size + 1), "replicas")
        yield Figure("B10", size, "workload objects that are too many", there - (size + 1), "objects")
