"""A stream of an HTTP/2 connection: one request and its response."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from kubeloop.client import http2_frames as http2
from kubeloop.client import http2_headers
from kubeloop.client.http2_frames import FrameType, ProtocolError
from kubeloop.client.limits import KIB
from kubeloop.client.transport import BrokenOff

STREAM_WINDOW = 256 * KIB  # bytes that a server may send ahead of the reader: 5 MB/s at a round trip of 50 ms
INFLATED = 64 * KIB  # bytes that are decompressed at once


class Inflating(Protocol):
    """The standard library's zlib decompressor, whose type has no name there."""

    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...
    def flush(self) -> bytes: ...


class StreamOwner(Protocol):
    """The connection, as its streams use it."""

    def write(self, data: bytes) -> None: ...
    def drop(self, stream: Stream) -> None: ...


class Stream:
    """A request and its response."""

    __slots__ = (
        "_chunks",
        "_connection",
        "_ended",
        "_error",
        "_fields",
        "_inflating",
        "_owed",
        "_waiter",
        "id",
        "room",
        "sent",
        "status",
        "window",
    )

    def __init__(self, connection: StreamOwner, number: int, room: int) -> None:
        self.id = number
        self.status = 0
        self.sent = False
        """True if the full request is sent."""
        self.window = STREAM_WINDOW
        """The bytes that the server may still send."""
        self.room = room
        """The bytes that we may still send."""
        self._connection = connection
        self._chunks: list[bytes] = []
        self._owed = 0
        self._ended = False
        self._error: Exception | None = None
        self._fields: Mapping[str, str] = {}
        self._inflating: Inflating | None = None
        self._waiter: asyncio.Future[None] | None = None

    def header(self, name: str) -> str | None:
        """Return a header of the response by its name in lower case, or None."""
        return self._fields.get(name)

    async def wait_for_headers(self) -> None:
        """Wait for the headers of the response."""
        while not self.status:
            await self.wait_for_data()

    async def chunk(self) -> bytes:
        """Return the data that has arrived, decompressed; empty at the end."""
        while True:
            if self._inflating is not None and (tail := self._inflating.unconsumed_tail):
                return self._decompress(tail)
            if self._chunks:
                data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
                self._chunks.clear()
                self._renew_window(len(data))
                if self._inflating is not None:
                    data = self._decompress(data)
                if data:
                    return data
            elif self._ended:
                data, self._inflating = self._inflating.flush() if self._inflating else b"", None
                return data
            else:
                await self.wait_for_data()

    def abort(self) -> None:
        """Drop the response."""
        self._chunks.clear()
        self._connection.drop(self)

    async def wait_for_data(self) -> None:
        """Wait until data has arrived or may be sent; raises the error that has ended the stream."""
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._error is not None and not self._chunks:
            raise self._error

    # Called by the connection ----------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True if nothing more will arrive."""
        return self._ended or self._error is not None

    def wake(self) -> None:
        """Wake the task that reads or writes the stream."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def on_headers(self, fields: Mapping[str, str]) -> None:
        """Take the headers of the response."""
        self._fields, self.status = fields, http2_headers.status(fields)
        if fields.get("content-encoding", "identity") == "gzip":
            self._inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self.wake()

    def take(self, data: bytes, padding: int) -> None:
        """Take data of the response; raises ProtocolError if it exceeds the window."""
        self.window -= len(data) + padding
        if self.window < 0:
            raise ProtocolError("a stream has more than its window")
        if data:
            self._chunks.append(data)
            self.wake()
        if padding:
            self._renew_window(padding)

    def end(self, error: Exception | None = None) -> None:
        """End the stream: the response is complete, or failed with this error."""
        self._ended, self._error = error is None, error
        self.wake()

    def _renew_window(self, size: int) -> None:
        """Renew the window after reading, in larger steps."""
        self._owed += size
        if self._owed >= STREAM_WINDOW // 2 and not self.ended:
            self._connection.write(http2.number(FrameType.WINDOW_UPDATE, self._owed, stream=self.id))
            self.window += self._owed
            self._owed = 0

    def _decompress(self, packed: bytes) -> bytes:
        """Decompress up to INFLATED bytes; raises BrokenOff if the data is invalid."""
        try:
            return cast(Inflating, self._inflating).decompress(packed, INFLATED)
        except zlib.error as error:
            raise BrokenOff from error


@dataclass(slots=True)
class HeaderBlock:
    """A header block whose frames are still arriving."""

    id: int
    stream: Stream | None
    ends: bool
    content: bytearray = field(default_factory=bytearray)
    parts: int = 0
