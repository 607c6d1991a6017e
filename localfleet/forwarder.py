"""Byte pipes: from sockets that were opened elsewhere to addresses that are reachable here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

CONNECT_SECONDS = 10.0
CHUNK = 1 << 16

Target = Callable[[], tuple[str, int] | None]
"""Where the next connection goes; None closes it at once."""

Latency = Callable[[], float]
"""Seconds that what arrives now is to wait."""

CARRYING = set[asyncio.Task[Any]]()
"""Connections that are carried: asyncio itself forgets one that is half closed, and the collector ends it."""


async def serve(listener: socket.socket, target: Target, latency: Latency | None = None) -> asyncio.Server:
    """Carry every connection of the listener to the target, until the server is closed."""

    def carried(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> Coroutine[Any, Any, None]:
        return pour(source, sink) if latency is None else pour_late(source, sink, latency)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            CARRYING.add(task)
            task.add_done_callback(CARRYING.discard)
        # The peers see a closed connection, which says it all.
        with contextlib.closing(writer), contextlib.suppress(OSError, TimeoutError):
            address = target()
            if address is not None:
                async with asyncio.timeout(CONNECT_SECONDS):
                    inner_reader, inner_writer = await asyncio.open_connection(*address)
                with contextlib.closing(inner_writer):
                    async with asyncio.TaskGroup() as group:
                        group.create_task(carried(reader, inner_writer))
                        group.create_task(carried(inner_reader, writer))

    return await asyncio.start_server(carry, sock=listener)


async def pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy until the source ends; then let the sink know, so that half-closed connections stay half-closed."""
    try:
        while chunk := await source.read(CHUNK):
            sink.write(chunk)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
    except OSError:
        sink.close()


async def pour_late(source: asyncio.StreamReader, sink: asyncio.StreamWriter, latency: Latency) -> None:
    """Copy, every byte as much later as `latency` says when it comes in."""
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)
    now = asyncio.get_running_loop().time
    held = asyncio.StreamReader()

    async def arrive() -> None:
        while chunk := await source.read(CHUNK):
            await under_way.put((now() + latency(), chunk))
        await under_way.put((now() + latency(), b""))

    async def travel() -> None:
        while True:
            due, chunk = await under_way.get()
            await asyncio.sleep(max(0.0, due - now()))
            if not chunk:
                held.feed_eof()
                return
            held.feed_data(chunk)

    try:
        async with asyncio.TaskGroup() as group:
            for part in (arrive(), travel(), pour(held, sink)):
                group.create_task(part)
    except* OSError:
        sink.close()


class Forwarder:
    """An event loop in a thread of its own that forwards whatever listeners it is given."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: dict[str, asyncio.Server] = {}
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def add(self, name: str, listener: socket.socket, target: Target, latency: Latency | None = None) -> None:
        listener.setblocking(False)  # noqa: FBT003 - the standard library's own signature
        self._servers[name] = asyncio.run_coroutine_threadsafe(serve(listener, target, latency), self._loop).result()

    def remove(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self._servers.pop(name).close)
