"""The other side of an HTTP/2 connection, frame by frame: what it says is what a test has it say."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trustme

from kubeloop.client import http2_frames as http2
from kubeloop.client import http2_headers
from kubeloop.client.access import Access
from kubeloop.client.http2_frames import Frame, FrameType, Setting


@dataclass
class Peer:
    """One connection of a client."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seen: list[Frame] = field(default_factory=list[Frame])

    async def next(self, *kinds: FrameType) -> Frame:
        """The next frame of one of these types; those before it are only noted."""
        while True:
            head = await self.reader.readexactly(9)
            length, stream = int.from_bytes(head[:3]), int.from_bytes(head[5:]) & http2.LARGEST_WINDOW
            frame = Frame(head[3], head[4], stream, await self.reader.readexactly(length))
            self.seen.append(frame)
            if frame.kind in kinds:
                return frame

    async def asked(self) -> tuple[int, str]:
        """The next request: its stream and its path."""
        frame = await self.next(FrameType.HEADERS)
        return frame.stream, http2_headers.read_block(frame.payload, {":path"})[":path"]

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    def begin(self, stream: int, status: int = 200) -> None:
        """Begin an answer."""
        self.send(http2.frame(FrameType.HEADERS, answered(status), flags=http2.END_HEADERS, stream=stream))

    def body(self, stream: int, content: bytes, *, ends: bool = True) -> None:
        parts = [content[at : at + 16_000] for at in range(0, len(content), 16_000)] or [b""]
        for part in parts:
            last = ends and part is parts[-1]
            self.send(http2.frame(FrameType.DATA, part, flags=http2.END_STREAM if last else 0, stream=stream))

    def answer(self, stream: int, content: bytes = b"{}", status: int = 200) -> None:
        self.begin(stream, status)
        self.body(stream, content)


def answered(status: int = 200, **more: str) -> bytes:
    return http2_headers.write_block([(":status", str(status)), *more.items()])


Talk = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def talking(
    talk: Talk, settings: dict[Setting, int] | None = None, *, opening: bytes | None = None
) -> AsyncIterator[Access]:
    """A server that speaks HTTP/2, and says `talk` on each connection after its SETTINGS, or after `opening`."""
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    tls.set_alpn_protocols(["h2"])
    count = 0
    tasks = set[asyncio.Task[None]]()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        tasks.add(task := asyncio.current_task())  # pyright: ignore[reportArgumentType]
        try:
            await reader.readexactly(len(http2.PREFACE))
            writer.write(http2.settings(settings or {}) if opening is None else opening)
            await talk(Peer(count, reader, writer))
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            tasks.discard(task)  # pyright: ignore[reportArgumentType]

    server = await asyncio.start_server(converse, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Access(f"https://127.0.0.1:{port}", authority=authority.cert_pem.bytes().decode())
    finally:
        server.close()
        for task in [*tasks]:
            task.cancel()
        if tasks:
            await asyncio.wait([*tasks])
