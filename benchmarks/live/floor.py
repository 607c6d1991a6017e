"""The floor under each result: the time that this machine takes for a flush, a read and a write."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator

from benchmarks.report import Figure, percentile
from localfleet.kubeclient import APPLY, KubeClient

FLUSHES, QUESTIONS, WRITES = 200, 200, 100


def measure_flushes() -> list[float]:
    """Return the milliseconds to have 2.3 kB, about a small object, on the disk."""
    found: list[float] = []
    with tempfile.TemporaryFile(dir=os.environ.get("TMPDIR")) as file:
        for _ in range(FLUSHES):
            began = time.perf_counter()
            file.write(bytes(2300))
            file.flush()
            os.fdatasync(file.fileno())
            found.append((time.perf_counter() - began) * 1000)
    return found


async def measure_hub(client: KubeClient) -> tuple[list[float], list[float]]:
    """Return the milliseconds of reads and of writes of a small object, one after the other."""
    reads: list[float] = []
    writes: list[float] = []
    path = "/api/v1/namespaces/default/configmaps/floor"
    for number in range(max(WRITES, QUESTIONS)):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "floor"}, "data": {"n": str(number)}}
        began = time.perf_counter()
        await client.request("PATCH", path, body, content_type=APPLY, params={"fieldManager": "bench"})
        written = time.perf_counter()
        await client.request("GET", path)
        writes.append((written - began) * 1000)
        reads.append((time.perf_counter() - written) * 1000)
    return reads, writes


async def floor(benchmark: str, size: int, client: KubeClient) -> Iterator[Figure]:
    """Return the floor of a benchmark. The etcd here does not flush: one that does adds that time to a write."""
    reads, writes = await measure_hub(client)
    return iter(
        Figure(benchmark, size, f"floor: {what}, {name}", round(percentile(values, percent), 2), "ms")
        for what, values in (
            ("read from the hub", reads),
            ("write to the hub", writes),
            ("flush of a disk", measure_flushes()),
        )
        for name, percent in (("p50", 50), ("p99", 99))
    )
