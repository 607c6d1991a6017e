"""A server that takes what is asked and answers nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Silence:
    port: int = 0
    asked: int = 0
    """How many have connected."""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until(self, asked: int) -> None:
        """Wait until so many have connected."""
        async with asyncio.timeout(30), self._news:
            await self._news.wait_for(lambda: self.asked >= asked)

    async def hold(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._news:
            self.asked += 1
            self._news.notify_all()
        await self._over.wait()
        writer.close()

    def end(self) -> None:
        self._over.set()


@asynccontextmanager
async def silence() -> AsyncIterator[Silence]:
    """Whoever waits for it is cut off at its end, and whoever comes then, too."""
    quiet = Silence()
    server = await asyncio.start_server(quiet.hold, "127.0.0.1", 0)
    quiet.port = server.sockets[0].getsockname()[1]
    try:
        yield quiet
    finally:
        quiet.end()
        server.close()
