"""What a fleet costs: `bring-up` with its `memory` and `writes`, `rest`, and the `restart` of the operator."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator

from benchmarks.live import testbed as testbeds
from benchmarks.live.floor import floor
from benchmarks.live.operator import Operator, Usage
from benchmarks.live.testbed import Testbed
from benchmarks.report import Figure, percentile
from modelplane_operator.settings import Settings

REPLICAS = 10  # of each deployment
PER_CLUSTER = 5
SCRAPES = 20
ASKING = frozenset({"get", "list", "discover"})  # what goes on as long as it lasts, pings and watches, is not for them
MADE = (
    f"{testbeds.OURS}/modelreplicas",
    f"{testbeds.OURS}/modelendpoints",
    "/api/v1/services",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/gateway.networking.k8s.io/v1/httproutes",
)
"""Types of the hub whose objects are made for replicas."""
DEFAULT_RESYNC = Settings().resync


async def measure_fleet(size: int, seconds: float) -> AsyncIterator[Figure]:
    """Bring up so many clusters with five replicas each, change nothing for so many seconds, and start again.

    No resync falls into that time. What operator costs is measured with a second operator, whose resyncs are much more
    frequent than by default.
    """
    async with testbeds.start_testbed(clusters=size) as testbed:
        with testbed.operator() as operator:
            async for figure in _bring_up(testbed, operator, size):
                yield figure
            await testbed.wait_until_quiet(operator)
            resting = await _measure_rest(operator, seconds)
            for figure in _rest_figures(size, resting, "without a resync"):
                yield figure
            for figure in await asyncio.to_thread(_measure_scrapes, operator, size):
                yield figure
            yield Figure("memory", size, "resident, with replicas", round(resting[1].memory, 1), "MB")
            yield Figure("memory", size, "at its peak", round(resting[1].peak, 1), "MB")
            yield Figure("memory", size, "open files and connections", operator.open_files(), "files")
        async for figure in _restart(testbed, size, seconds, resting):
            yield figure
        for figure in await floor("rest", size, testbed.hub):
            yield figure


async def _bring_up(testbed: Testbed, operator: Operator, size: int) -> AsyncIterator[Figure]:
    began = time.monotonic()
    await testbed.wait_until_leading(operator)
    connected = await testbed.wait_until_ready("inferenceclusters", size) - began
    await testbed.watch_own("inferencegateways").wait_for(
        "the hub gateway", lambda found: all(map(testbeds.is_ready, found.values()))
    )
    await testbed.wait_until_quiet(operator)
    empty = operator.usage()
    yield Figure("memory", size, "resident, clusters alone", round(empty.memory, 1), "MB")
    yield Figure("bring-up", size, "until all clusters are Ready", round(connected, 2), "s")
    count = max(size * PER_CLUSTER // REPLICAS, 1)
    began = time.monotonic()
    await testbed.apply(testbeds.service(number) for number in range(count))
    await testbed.apply(testbeds.deployment(number, replicas=REPLICAS) for number in range(count))
    replicas = count * REPLICAS
    decided = (
        await testbed.watch_own("modelreplicas").wait_for("all replicas", lambda found: len(found) == replicas) - began
    )
    ready = await testbed.wait_until_ready("modeldeployments", count) - began
    await testbed.wait_until_ready("modelservices", count)
    await testbed.wait_until_quiet(operator)
    full = operator.usage()
    yield Figure("bring-up", size, "replicas, of ten to a deployment", replicas, "replicas")
    yield Figure(
        "bring-up",
        size,
        "from apply until decided and stored, for each replica",
        round(decided / replicas * 1e3, 1),
        "ms",
    )
    yield Figure("bring-up", size, "from apply until all of it is Ready", round(ready, 2), "s")
    yield Figure("bring-up", size, "rate", round(replicas / ready, 1), "replicas/s")
    yield Figure(
        "bring-up", size, "CPU of the operator for each replica", round(full.cpu_since(empty) / replicas * 1e3, 2), "ms"
    )
    for figure in _write_figures(size, replicas, full.writes - empty.writes):
        yield figure
    asked = Counter({what: count for what, count in (full.reads - empty.reads).items() if what.split()[1] in ASKING})
    yield Figure("writes", size, "reads for each replica", round(asked.total() / replicas, 2), "requests")
    stored = await asyncio.to_thread(testbed.server.etcd.size)
    yield Figure("bring-up", size, "etcd of the hub, with its history", round(stored / 1e6, 1), "MB")
    yield Figure(
        "writes",
        size,
        "stored on the hub for each replica",
        round(await _count_stored_bytes(testbed) / replicas / 1e3, 2),
        "kB",
    )


async def _count_stored_bytes(testbed: Testbed) -> int:
    """Return the bytes of the objects that are made for replicas, as the hub's API server gives them."""
    stored = 0
    for path in MADE:
        found = (await testbed.hub.request("GET", path))["items"]
        stored += sum(len(json.dumps(one, separators=(",", ":"))) for one in found)
    return stored


def _write_figures(size: int, replicas: int, writes: Counter[str]) -> list[Figure]:
    """Return the writes for each replica, its part of those for its deployment and service included."""
    sides = Counter[str]()
    for what, count in writes.items():
        sides[what.partition(" ")[0]] += count
    per_side = [
        Figure("writes", size, f"writes to the {side} for each replica", round(count / replicas, 2), "writes")
        for side, count in sorted(sides.items())
    ]
    return per_side + [
        Figure("writes", size, f"of those, {what}", round(count / replicas, 3), "writes")
        for what, count in sorted(writes.items())
    ]


async def _measure_rest(operator: Operator, seconds: float) -> tuple[Usage, Usage]:
    before = await asyncio.to_thread(operator.usage)
    await asyncio.sleep(seconds)
    return before, await asyncio.to_thread(operator.usage)


def _rest_figures(size: int, found: tuple[Usage, Usage], when: str) -> list[Figure]:
    before, after = found
    seconds = after.seconds_since(before)
    reads, writes = after.reads - before.reads, after.writes - before.writes
    return [
        Figure("rest", size, f"{when}: CPU", round(after.core_since(before), 4), "core"),
        Figure("rest", size, f"{when}: writes", writes.total(), "writes"),
        *(Figure("rest", size, f"{when}: of those, {what}", count, "writes") for what, count in sorted(writes.items())),
        Figure("rest", size, f"{when}: reads", round(reads.total() / seconds, 2), "requests/s"),
        Figure("rest", size, f"{when}: memory grown", round(after.memory - before.memory, 1), "MB"),
    ]


def _measure_scrapes(operator: Operator, size: int) -> list[Figure]:
    """Measure what each scrape by Prometheus costs."""
    took, text = list[float](), b""
    for _ in range(SCRAPES):
        began = time.perf_counter()
        text = operator.scrape_metrics()
        took.append((time.perf_counter() - began) * 1e3)
    return [
        Figure("rest", size, "a scrape of its metrics: p50", round(percentile(took, 50), 1), "ms"),
        Figure("rest", size, "a scrape of its metrics: size", round(len(text) / 1e6, 3), "MB"),
    ]


async def _restart(testbed: Testbed, size: int, seconds: float, resting: tuple[Usage, Usage]) -> AsyncIterator[Figure]:
    """Start a new operator on a fleet that is up."""
    resync = max(seconds / 2, 10.0)
    began = time.monotonic()
    with testbed.operator("second", f"--resync={resync:g}") as operator:
        await testbed.wait_until_leading(operator)
        leading = time.monotonic() - began
        cpu = operator.cpu()
        probe = testbeds.deployment(99_999, replicas=1)
        applied = time.monotonic()
        await testbed.apply([probe])
        await testbed.watch(f"{testbeds.OURS}/modelreplicas").wait_for(
            "the replica of another deployment",
            lambda found: any(key[1].startswith("model-99999-") for key in found),
        )
        decided = time.monotonic() - began
        yield Figure("restart", size, "from start to leading", round(leading, 2), "s")
        yield Figure("restart", size, "CPU until leading", round(cpu, 2), "s")
        yield Figure("restart", size, "from start to a decision about something new", round(decided, 2), "s")
        yield Figure("restart", size, "from its apply to that decision", round(time.monotonic() - applied, 2), "s")
        await testbed.wait_until_ready("modeldeployments", len(testbed.watch_own("modeldeployments").mirror.objects))
        await testbed.wait_until_connected(operator, size)
        yield Figure(
            "restart", size, "from start until all clusters are connected", round(time.monotonic() - began, 2), "s"
        )
        await testbed.wait_until_quiet(operator)
        yield Figure("restart", size, "CPU until all is reconciled once", round(operator.cpu(), 2), "s")
        again = await _measure_rest(operator, 2 * resync)
        for figure in _rest_figures(size, again, f"a resync every {resync:g} s"):
            yield figure
        base = resting[1].core_since(resting[0])
        looked = max(again[1].core_since(again[0]) - base, 0.0) * resync
        yield Figure("rest", size, "CPU of operator resync", round(looked, 3), "s")
        core = base + looked / DEFAULT_RESYNC
        yield Figure("rest", size, f"a resync every {DEFAULT_RESYNC:g} s, the default: CPU", round(core, 4), "core")
