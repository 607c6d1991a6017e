"""HTTP/2 before a server that speaks HTTP/1.1: each stream is to it a connection of its own with one request.

Whatever such a server does to a connection happens to the stream: one that it closes before the answer is whole is
reset. Whoever gets at the socket, to break it, breaks the connection with all its streams.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from h2.errors import ErrorCodes

PROTOCOLS = ("h2", "http/1.1")
BUFFERED = 64 * 1024  # of a stream's answer, beyond which its server has to wait
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding"})

NewHandler = Callable[[], asyncio.Protocol]


def front(new_handler: NewHandler, tls: ssl.SSLContext) -> Callable[[], asyncio.Protocol]:
    """A factory of protocols for `create_server`; `tls` learns to offer both versions."""
    tls.set_alpn_protocols([*PROTOCOLS])
    return lambda: _Front(new_handler)


class _Front(asyncio.Protocol):
    """One connection, before it is known what it speaks."""

    def __init__(self, new_handler: NewHandler) -> None:
        self._new_handler = new_handler

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls = transport.get_extra_info("ssl_object")
        protocol = _Connection(self._new_handler) if tls.selected_alpn_protocol() == "h2" else self._new_handler()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class _Connection(asyncio.Protocol):
    def __init__(self, new_handler: NewHandler) -> None:
        self._new_handler = new_handler
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="latin-1"))
        self._streams: dict[int, _Stream] = {}
        self._writable = True
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            events = []
            self.flush()
            cast(asyncio.Transport, self.transport).close()
        for event in events:
            self._received(event)
        self.flush()

    def _received(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(number), headers=headers):
                self._streams[number] = _Stream(self, number, dict(cast(list[tuple[str, str]], headers)))
            case h2.events.DataReceived(stream_id=int(number), data=data):
                if stream := self._streams.get(number):
                    stream.body += data or b""
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, number)
            case h2.events.StreamEnded(stream_id=int(number)):
                if stream := self._streams.get(number):
                    stream.begin(self._new_handler())
            case h2.events.StreamReset(stream_id=int(number)):
                if stream := self._streams.pop(number, None):
                    stream.lost(ConnectionResetError())
            case _:
                pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        streams, self._streams = [*self._streams.values()], {}
        for stream in streams:
            stream.lost(exc or ConnectionResetError())

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.flush()

    def flush(self) -> None:
        """Send what the windows have room for."""
        if self.transport is None or self.transport.is_closing():
            return
        for number, stream in [*self._streams.items()]:
            self._send(number, stream)
        if said := self._h2.data_to_send():
            self.transport.write(said)

    def _send(self, number: int, stream: "_Stream") -> None:
        if stream.headers:
            self._h2.send_headers(number, stream.headers)
            stream.headers = []
        while stream.pending and self._writable:
            size = min(
                len(stream.pending), self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size
            )
            if size <= 0:
                break
            self._h2.send_data(number, bytes(stream.pending[:size]))
            del stream.pending[:size]
        stream.pace()
        if stream.ended and not stream.pending:
            if stream.whole:
                self._h2.end_stream(number)
            else:
                self._h2.reset_stream(number, ErrorCodes.INTERNAL_ERROR)
            del self._streams[number]

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Stream(asyncio.Transport):
    """A connection, as the server behind takes it to be: one request of it, and the answer as HTTP/1.1."""

    def __init__(self, connection: _Connection, number: int, asked: dict[str, str]) -> None:
        super().__init__()
        self.number = number
        self.body = bytearray()
        self.headers: list[tuple[str, str]] = []
        self.pending = bytearray()
        self.ended = self.whole = False
        self._connection, self._asked = connection, asked
        self._handler: asyncio.Protocol | None = None
        self._head = bytearray()
        self._answered = False
        self._chunked = False
        self._left: int | None = None
        self._raw = bytearray()
        self._paused = False
        self.broken = self._closed = False

    def begin(self, handler: asyncio.Protocol) -> None:
        """Have the request handled."""
        asked = self._asked
        lines = [f"{asked[':method']} {asked[':path']} HTTP/1.1", f"Host: {asked[':authority']}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in asked.items() if name[0] != ":" and name != "content-length"]
        lines += [f"Content-Length: {len(self.body)}"] if self.body else []
        self._handler = handler
        handler.connection_made(self)
        handler.data_received("\r\n".join([*lines, "", ""]).encode("latin-1") + self.body)

    def lost(self, error: Exception | None) -> None:
        """The stream is over, and so is what the server behind takes for a connection."""
        self.ended = self._closed = True
        if self._handler is not None:
            handler, self._handler = self._handler, None
            handler.connection_lost(error)

    def pace(self) -> None:
        """Have the server behind wait while there is much that the client has not taken."""
        full = len(self.pending) > BUFFERED
        if full != self._paused and self._handler is not None:
            self._paused = full
            (self._handler.pause_writing if full else self._handler.resume_writing)()

    # The transport ---------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self.ended:
            return
        self._raw += data
        if not self._answered and b"\r\n\r\n" in self._raw:
            self._answer(bytes(self._raw.partition(b"\r\n\r\n")[0]).decode("latin-1"))
            del self._raw[: self._raw.index(b"\r\n\r\n") + 4]
        if self._answered:
            self._take()
        self._connection.flush()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _answer(self, head: str) -> None:
        status, *lines = head.split("\r\n")
        fields = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        known = dict(fields)
        self._answered, self._chunked = True, known.get("transfer-encoding") == "chunked"
        self._left = None if self._chunked else int(known.get("content-length", "0"))
        self.headers = [(":status", status.split()[1]), *((n, v) for n, v in fields if n not in HOP_BY_HOP)]

    def _take(self) -> None:
        """Move what is the body's to what is to be sent."""
        while self._chunked and b"\r\n" in self._raw:
            line, _, rest = bytes(self._raw).partition(b"\r\n")
            size = int(line, 16)
            if len(rest) < size + 2:
                return
            self.pending += rest[:size]
            del self._raw[: len(line) + 2 + size + 2]
            if not size:
                self.ended = self.whole = True
                return
        if self._left is not None:
            self.pending += self._raw
            self._left -= len(self._raw)
            self._raw.clear()
            self.ended = self.whole = self._left <= 0

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._closed:
            return
        self.ended = self._closed = True
        if self.broken:
            self._connection.abort()
        else:
            self._connection.flush()
        asyncio.get_running_loop().call_soon(self.lost, None)

    def is_closing(self) -> bool:
        return self._closed or self._connection.transport is None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = default if self._connection.transport is None else self._connection.transport.get_extra_info(name)
        return _Socket(found, self) if name == "socket" and found is not None else found

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return len(self.pending)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class _Socket:
    """The socket of the whole connection, as a stream sees it."""

    def __init__(self, real: Any, stream: _Stream) -> None:
        self._real, self._stream = real, stream

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        self._real.setsockopt(level, option, value)
        self._stream.broken |= option == socket.SO_LINGER

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
