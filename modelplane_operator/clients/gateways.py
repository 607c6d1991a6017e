"""Whether a gateway answers, asked by opening a connection: for when the API server behind it does not say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

CONNECT_SECONDS = 2.0
REMEMBER_SECONDS = 5.0  # all replicas of a lost cluster ask at once
ATTEMPTS = 2  # one lost packet is no outage


@dataclass(slots=True)
class Gateways:
    """What the gateways have answered lately, by address."""

    now: Callable[[], float]
    _asked: dict[tuple[str, int], tuple[float, asyncio.Task[bool]]] = field(
        default_factory=dict[tuple[str, int], tuple[float, asyncio.Task[bool]]], init=False
    )

    async def answers(self, address: str, port: int) -> bool:
        """Whether something takes connections there."""
        began, task = self._asked.get((address, port), (float("-inf"), None))
        if task is None or (task.done() and began < self.now() - REMEMBER_SECONDS):
            task = asyncio.create_task(self._knock(address, port), name=f"gateway {address}")
            self._asked[address, port] = (self.now(), task)
        return await asyncio.shield(task)

    async def _knock(self, address: str, port: int) -> bool:
        for _ in range(ATTEMPTS):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, writer = await asyncio.open_connection(address, port)
            except (OSError, TimeoutError):
                continue
            writer.close()
            return True
        return False
