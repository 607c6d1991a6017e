"""The operator, as a process of its own."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from localfleet.network import free_ports
from localfleet.processes import Command, Running, start
from tests.support.manifests import ROOT

Manifest = dict[str, Any]

TOY, REAL = "tests.support.toy_operator", "modelplane_operator"
START_SECONDS = 120.0  # of a loaded machine: two Pythons begin at once


@dataclass(frozen=True, slots=True)
class Process:
    """An operator that runs."""

    running: Running
    port: int

    @property
    def pid(self) -> int:
        return self.running.process.pid

    @property
    def name(self) -> str:
        """What its identity begins with."""
        return self.running.command.name

    def signal(self, number: int) -> None:
        self.running.process.send_signal(number)

    def lines(self) -> list[Manifest]:
        return [orjson.loads(line) for line in self.running.command.log.read_bytes().splitlines()]

    def said(self, event: str) -> list[Manifest]:
        return [line for line in self.lines() if line["event"] == event]

    async def page(self, path: str) -> tuple[int, str]:
        """Status and text; 0 while nobody listens, for the process has to live."""
        self.running.check()
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as page:
                return page.status, await page.text()
        except aiohttp.ClientConnectionError:
            return 0, ""

    async def value(self, series: str) -> float | None:
        """What /metrics says of one series."""
        _, text = await self.page("/metrics")
        found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else None

    async def ended(self, seconds: float) -> int:
        """The exit code; it must come within so many seconds."""
        async with asyncio.timeout(seconds):
            return await asyncio.to_thread(self.running.process.wait)

    async def leads(self) -> None:
        await eventually(lambda: self.value("modelplane_leading"), lambda value: value == 1.0, f"{self.pid} to lead")


async def eventually(
    ask: Callable[[], Any], holds: Callable[[Any], bool], what: str, within: float = START_SECONDS
) -> Any:
    """What is answered when it holds."""
    answer: Any = None
    try:
        async with asyncio.timeout(within):
            while not holds(answer := await ask()):  # noqa: ASYNC110 - other processes wake nobody
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"waited {within:g} s for {what}, in vain; the last answer: {answer}")
    return answer


@contextmanager
def operating(
    kubeconfig: Path,
    folder: Path,
    *flags: str,
    module: str = TOY,
    environment: dict[str, str] | None = None,
    within: Sequence[str] = (),
) -> Iterator[Process]:
    """An operator's process, ended with the block."""
    (port,) = free_ports(1)
    name = f"operator-{port}"
    command = Command(
        name,
        [
            *within,
            *(sys.executable, "-m", module, "run", f"--kubeconfig={kubeconfig}", f"--listen=127.0.0.1:{port}"),
            *flags,
        ],
        folder / f"{name}.log",
        {**(environment or {}), "PYTHONPATH": str(ROOT)},
    )
    running = start(command, tied=True)
    try:
        yield Process(running, port)
    finally:
        running.end()
