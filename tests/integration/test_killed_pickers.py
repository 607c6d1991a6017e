"""Pickers that are killed: on a cluster of their own, as connections outlast the pools of other tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.integration.harness import Cluster, Stage, remote, until
from tests.integration.pickers import behind_a_picker, copies, picks

pytestmark = pytest.mark.fleet

SECOND_THOUGHTS = 3.0  # seconds of failures that a killed picker may cost


async def test_pickers_that_are_killed_under_load_cost_seconds_and_come_back(
    stage: Stage, space: str, pools: Cluster
) -> None:
    async with behind_a_picker(stage, space, pools, copies()):
        failures: list[tuple[float, str]] = []
        stop = asyncio.Event()

        async def ask() -> None:
            while not stop.is_set():
                try:
                    reply = await stage.chat(space, seconds=20)
                    why = "" if reply.status == 200 else f"{reply.status} {reply.text[:80]}"
                except (aiohttp.ClientError, TimeoutError) as error:
                    why = repr(error)
                if why:
                    failures.append((time.monotonic(), why))
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(ask())
            await asyncio.sleep(2)
            assert failures == []
            [pool] = await pools.list("InferencePool", remote(space))
            kill(pool["metadata"]["name"])
            began = time.monotonic()
            await asyncio.sleep(SECOND_THOUGHTS + 5)
            stop.set()
        late = sorted(Counter(round(each - began, 1) for each, _ in failures).items())
        assert all(each < began + SECOND_THOUGHTS for each, _ in failures), (late, {why for _, why in failures})
        await until("a picker to answer again", lambda: picks(stage, pools, space))


def kill(pool: str) -> None:
    """Kill the processes of all pickers of a pool, as a node does that is out of memory."""
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"--pool-name={pool}" in (process / "cmdline").read_text().split("\0"):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
    assert killed == 2, killed
