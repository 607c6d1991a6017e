"""B2, B4, B9, B13, B14: what a fleet costs to be brought up, to be at rest, and to be seen anew after a restart."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator

from benchmarks.live import scene as scenes
from benchmarks.live.floor import floor
from benchmarks.live.operator import Operator, Usage
from benchmarks.live.scene import Scene
from benchmarks.report import Figure, percentile
from modelplane_operator.settings import Settings

REPLICAS = 10  # of each deployment
PER_CLUSTER = 5
SCRAPES = 20
ASKING = frozenset({"get", "list", "discover"})  # what goes on as long as it lasts, pings and watches, is not for them
MADE = (
    f"{scenes.OURS}/modelreplicas",
    f"{scenes.OURS}/modelendpoints",
    "/api/v1/services",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/gateway.networking.k8s.io/v1/httproutes",
)
"""Types of the hub whose objects are made for replicas."""
DEFAULT_RESYNC = Settings().resync


async def at_rest(size: int, seconds: float) -> AsyncIterator[Figure]:
    """So many clusters with five replicas each; then nothing changes for so many seconds.

    No resync falls into that time. What one costs is measured with a second operator, which looks at everything again
    much more often than by default.
    """
    async with scenes.scene(clusters=size) as scene:
        with scene.operator() as one:
            async for figure in _brought_up(scene, one, size):
                yield figure
            await scene.quiet(one)
            resting = await _rest(one, seconds)
            for figure in _at_rest(size, resting, "no resync falls into it"):
                yield figure
            for figure in await asyncio.to_thread(_scraped, one, size):
                yield figure
            yield Figure("B13", size, "resident, with all of it", round(resting[1].memory, 1), "MB")
            yield Figure("B13", size, "at its peak", round(resting[1].peak, 1), "MB")
            yield Figure("B13", size, "open files, a connection for each cluster among them", one.open_files(), "files")
        async for figure in _seen_anew(scene, size, seconds, resting):
            yield figure
        for figure in await floor("B4", size, scene.hub):
            yield figure


async def _brought_up(scene: Scene, one: Operator, size: int) -> AsyncIterator[Figure]:
    began = time.monotonic()
    await scene.leading(one)
    connected = await scene.until_ready("inferenceclusters", size) - began
    await scene.ours("inferencegateways").until(
        "the hub gateway", lambda found: all(map(scenes.is_ready, found.values()))
    )
    await scene.quiet(one)
    empty = one.usage()
    yield Figure("B13", size, "resident, clusters alone", round(empty.memory, 1), "MB")
    yield Figure("B2", size, "until all clusters are Ready", round(connected, 2), "s")
    count = max(size * PER_CLUSTER // REPLICAS, 1)
    began = time.monotonic()
    await scene.apply(scenes.service(number) for number in range(count))
    await scene.apply(scenes.deployment(number, replicas=REPLICAS) for number in range(count))
    replicas = count * REPLICAS
    decided = await scene.ours("modelreplicas").until("all replicas", lambda found: len(found) == replicas) - began
    ready = await scene.until_ready("modeldeployments", count) - began
    await scene.until_ready("modelservices", count)
    await scene.quiet(one)
    full = one.usage()
    yield Figure("B2", size, "replicas, of ten to a deployment", replicas, "replicas")
    yield Figure("B2", size, "decided and stored on the hub, each", round(decided / replicas * 1e3, 1), "ms")
    yield Figure("B2", size, "from apply until all of it is Ready", round(ready, 2), "s")
    yield Figure("B2", size, "rate", round(replicas / ready, 1), "replicas/s")
    yield Figure(
        "B2", size, "CPU of the operator for each replica", round(full.cpu_since(empty) / replicas * 1e3, 2), "ms"
    )
    for figure in _economy(size, replicas, full.writes - empty.writes):
        yield figure
    asked = Counter({what: count for what, count in (full.reads - empty.reads).items() if what.split()[1] in ASKING})
    yield Figure("B14", size, "reads for each replica", round(asked.total() / replicas, 2), "requests")
    stored = await asyncio.to_thread(scene.server.etcd.size)
    yield Figure("B2", size, "etcd of the hub, with its history", round(stored / 1e6, 1), "MB")
    yield Figure("B14", size, "on the hub for each replica", round(await _stored(scene) / replicas / 1e3, 2), "kB")


async def _stored(scene: Scene) -> int:
    """Bytes of the objects that are made for replicas, as the hub's API server gives them."""
    stored = 0
    for path in MADE:
        found = (await scene.hub.request("GET", path))["items"]
        stored += sum(len(json.dumps(one, separators=(",", ":"))) for one in found)
    return stored


def _economy(size: int, replicas: int, writes: Counter[str]) -> list[Figure]:
    """Writes for each replica, its share of its deployment's and service's included."""
    sides = Counter[str]()
    for what, count in writes.items():
        sides[what.partition(" ")[0]] += count
    per_side = [
        Figure("B14", size, f"writes to the {side} for each replica", round(count / replicas, 2), "writes")
        for side, count in sorted(sides.items())
    ]
    return per_side + [
        Figure("B14", size, f"of those, {what}", round(count / replicas, 3), "writes")
        for what, count in sorted(writes.items())
    ]


async def _rest(one: Operator, seconds: float) -> tuple[Usage, Usage]:
    before = await asyncio.to_thread(one.usage)
    await asyncio.sleep(seconds)
    return before, await asyncio.to_thread(one.usage)


def _at_rest(size: int, found: tuple[Usage, Usage], when: str) -> list[Figure]:
    before, after = found
    seconds = after.seconds_since(before)
    reads, writes = after.reads - before.reads, after.writes - before.writes
    return [
        Figure("B4", size, f"{when}: CPU", round(after.core_since(before), 4), "core"),
        Figure("B4", size, f"{when}: writes", writes.total(), "writes"),
        *(Figure("B4", size, f"{when}: of those, {what}", count, "writes") for what, count in sorted(writes.items())),
        Figure("B4", size, f"{when}: reads", round(reads.total() / seconds, 2), "requests/s"),
        Figure("B4", size, f"{when}: memory grown", round(after.memory - before.memory, 1), "MB"),
    ]


def _scraped(one: Operator, size: int) -> list[Figure]:
    """What Prometheus costs it, each time."""
    took, text = list[float](), b""
    for _ in range(SCRAPES):
        began = time.perf_counter()
        text = one.scraped()
        took.append((time.perf_counter() - began) * 1e3)
    return [
        Figure("B4", size, "a scrape of its metrics: p50", round(percentile(took, 50), 1), "ms"),
        Figure("B4", size, "a scrape of its metrics: size", round(len(text) / 1e6, 3), "MB"),
    ]


async def _seen_anew(scene: Scene, size: int, seconds: float, resting: tuple[Usage, Usage]) -> AsyncIterator[Figure]:
    """A new operator on what is there already."""
    resync = max(seconds / 2, 10.0)
    began = time.monotonic()
    with scene.operator("second", f"--resync={resync:g}") as one:
        await scene.leading(one)
        leading = time.monotonic() - began
        cpu = one.cpu()
        probe = scenes.deployment(99_999, replicas=1)
        applied = time.monotonic()
        await scene.apply([probe])
        await scene.seen(f"{scenes.OURS}/modelreplicas").until(
            "the replica of another deployment",
            lambda found: any(key[1].startswith("model-99999-") for key in found),
        )
        decided = time.monotonic() - began
        yield Figure("B9", size, "from start to leading", round(leading, 2), "s")
        yield Figure("B9", size, "CPU until leading", round(cpu, 2), "s")
        yield Figure("B9", size, "from start to a decision about something new", round(decided, 2), "s")
        yield Figure("B9", size, "of that, since it was applied", round(time.monotonic() - applied, 2), "s")
        await scene.until_ready("modeldeployments", len(scene.ours("modeldeployments").mirror.objects))
        await scene.known(one, size)
        yield Figure("B9", size, "from start until all clusters are known", round(time.monotonic() - began, 2), "s")
        await scene.quiet(one)
        yield Figure("B9", size, "CPU until it has looked at everything once", round(one.cpu(), 2), "s")
        again = await _rest(one, 2 * resync)
        for figure in _at_rest(size, again, f"all is looked at again every {resync:g} s"):
            yield figure
        base = resting[1].core_since(resting[0])
        looked = max(again[1].core_since(again[0]) - base, 0.0) * resync
        yield Figure("B4", size, "CPU of looking at everything once", round(looked, 3), "s")
        core = base + looked / DEFAULT_RESYNC
        yield Figure("B4", size, f"so every {DEFAULT_RESYNC:g} s, as by default: CPU", round(core, 4), "core")
