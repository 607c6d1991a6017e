"""The operator's HTTP/2 on the `h2` package in place of frames of our own, to be measured beside them.

`H2_HEADERS=hpack python -m benchmarks.over_h2 run ...` is the operator on it. `hpack` reads and writes all headers as
`h2` does by itself; `ours` has `h2` use our own way with headers, which passes over those that nobody looks at.
With H2_BARE=1 it goes without the two bounds that a hostile server makes necessary: of settings, and of bytes at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import h2.config
import h2.connection
import h2.events as told
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError as Broken
from h2.settings import SettingCodes, Settings
from hpack import HPACKError, NeverIndexedHeaderTuple

from modelplane_operator.__main__ import main
from modelplane_operator.clients import http2 as pool
from modelplane_operator.clients import http2_connection as ours
from modelplane_operator.clients import http2_frames, http2_headers
from modelplane_operator.clients.http2_frames import ProtocolError
from modelplane_operator.clients.http2_stream import STREAM_WINDOW, Stream
from modelplane_operator.clients.limits import KIB
from modelplane_operator.clients.transport import BrokenOff, NotHttp, Unprocessed

KINDS = ("hpack", "ours")  # whose way with headers
BARE = bool(os.environ.get("H2_BARE"))
SLICE = 4 * KIB  # of what has come: the package gives no frame before it has read all that it was given
_CONFIGURATION = h2.config.H2Configuration(
    client_side=True,
    header_encoding=None,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
)
_SAID = {
    SettingCodes.HEADER_TABLE_SIZE: 0,
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    SettingCodes.MAX_HEADER_LIST_SIZE: http2_headers.LARGEST_HEADERS,
}


class _Headers:
    """Our own way with headers, as `h2` calls it."""

    header_table_size = 0

    @staticmethod
    def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
        return http2_headers.write_block((name.decode(), value.decode("latin-1")) for name, value in fields)

    @staticmethod
    def decode(block: bytes, raw: bool) -> list[tuple[bytes, bytes]]:  # noqa: FBT001 - as hpack has it
        try:
            return [(name.encode(), value.encode()) for name, value in http2_headers.read_block(block).items()]
        except ProtocolError as error:
            raise HPACKError(*error.args) from error


class _H2(h2.connection.H2Connection):
    MAX_CLOSED_STREAMS = 128  # of 65,536, which a connection that lives for weeks fills

    def _receive_settings_frame(self, frame: Any) -> tuple[list[Any], list[told.Event]]:
        """Each entry is kept for ever, those too that mean nothing."""
        if not BARE and len(frame.settings) > http2_frames.MOST_SETTINGS:
            raise Broken("it has too many settings")
        return super()._receive_settings_frame(frame)

    def _receive_goaway_frame(self, frame: Any) -> tuple[list[Any], list[told.Event]]:
        """What the server has accepted goes on, and may be acknowledged."""
        event = told.ConnectionTerminated()
        event.last_stream_id = frame.last_stream_id
        return [], [event]


class _Stream(Stream):
    __slots__ = ()

    def take(self, data: bytes, padding: int) -> None:
        if data:
            self._chunks.append(data)
            self.wake()
        if padding:
            self._return(padding)

    def _return(self, size: int) -> None:
        cast(OverH2, self._connection).acknowledge(self, size)

    def cut(self) -> None:
        if left := sum(map(len, self._chunks)):
            self._return(left)
        super().cut()


class OverH2(ours.Http2Connection):
    """One connection, whose frames and windows are the package's, and whose bounds are ours."""

    headers = "hpack"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        del self._frames
        spoken = self._h2 = _H2(_CONFIGURATION)
        spoken.local_settings = Settings(client=True, initial_values=_SAID)
        spoken.decoder.max_header_list_size = http2_headers.LARGEST_HEADERS
        spoken.decoder.max_allowed_table_size = 0
        if self.headers == "ours":
            spoken.encoder = spoken.decoder = cast(Any, _Headers)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if transport.get_extra_info("ssl_object").selected_alpn_protocol() != ours.PROTOCOL:
            self._fail(ours.NotSpoken())
            return
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(ours.CONNECTION_WINDOW - http2_frames.FIRST_WINDOW)
        self._flush()

    async def send(self, block: Any, payload: bytes | None) -> Stream:
        stream = _Stream(self, self._next, 0)
        self._next += 2
        self.draining |= self._next > http2_frames.LARGEST_WINDOW
        self.streams[stream.id] = stream
        try:
            self._h2.send_headers(stream.id, block, end_stream=not payload)
            self._flush()
            self._liveness.ask()
            if payload:
                await self._send_body(stream, payload)
            else:
                stream.sent = True
            await stream.answered()
        except BaseException:
            stream.cut()
            raise
        return stream

    async def _send_body(self, stream: Stream, payload: bytes) -> None:
        sent = 0
        self._updates += 64 + len(payload) // 512
        while sent < len(payload) and not stream.status:
            room = min(self._h2.local_flow_control_window(stream.id), self._h2.max_outbound_frame_size)
            size = min(len(payload) - sent, room)
            if size <= 0 or not self._writable:
                await stream.news()
                continue
            part, sent = payload[sent : sent + size], sent + size
            self._h2.send_data(stream.id, part, end_stream=sent == len(payload))
            self._flush()
        stream.sent = sent == len(payload)

    def acknowledge(self, stream: Stream, size: int) -> None:
        """Let the server send as much again, now and then."""
        if self._transport is not None and not self._transport.is_closing():
            self._h2.acknowledge_received_data(size, stream.id)
            self._flush()

    def drop(self, stream: Stream) -> None:
        if self.streams.pop(stream.id, None) is None:
            return
        if not stream.ended:
            stream.end(BrokenOff())
            self._take_back(stream)
            if not stream.status:
                self._liveness.gave_up()
        self._changed()

    def _over(self, stream: Stream, error: Exception | None = None) -> None:
        stream.end(error)
        self.streams.pop(stream.id, None)
        if not stream.sent and error is None:
            self._take_back(stream)
        self._changed()

    def _take_back(self, stream: Stream) -> None:
        self._h2.reset_stream(stream.id, ErrorCodes.CANCEL)
        self._flush()

    def _flush(self) -> None:
        if said := self._h2.data_to_send():
            self.write(said)

    def data_received(self, data: bytes) -> None:
        if self._liveness.heard():
            self._on_change()
        size = len(data) if BARE else SLICE
        self._read(data[at : at + size] for at in range(0, len(data), size))

    def _read(self, frames: Iterator[Any]) -> None:
        """Take some slices; the rest when others have had their turn."""
        count = 0
        try:
            for part in frames:
                events = self._h2.receive_data(part)
                count += len(events)
                for event in events:
                    self._event(event)
                if count >= ours.FRAMES_AT_ONCE and self._transport is not None:
                    break
        except (Broken, ProtocolError) as error:
            self._fail(NotHttp(f"the answer is not HTTP/2 as it may be: {error}"))
            self._on_broken(str(error))
            return
        self._flush()
        wait = self._share.charge((1 + count) * ours.OF_A_FRAME) if self._share is not None else 0.0
        if self._transport is not None and (count >= ours.FRAMES_AT_ONCE or wait > ours.A_PAUSE):
            self._transport.pause_reading()
            self._rest = frames if count >= ours.FRAMES_AT_ONCE else None
            self._loop.call_later(max(wait, 0.0), self._resume)

    def _event(self, event: Any) -> None:  # noqa: PLR0912 - a case for each kind
        stream = self.streams.get(getattr(event, "stream_id", 0) or 0)
        match event:
            case told.DataReceived():
                if len(event.data) < ours.LITTLE and not event.stream_ended:
                    self._idle_talk()
                if stream is None:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                else:
                    stream.take(event.data, event.flow_controlled_length - len(event.data))
            case told.ResponseReceived():
                fields = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
                if stream is not None:
                    stream.told({name: value for name, value in fields if name in http2_headers.READ})
            case told.StreamEnded():
                if stream is not None:
                    self._over(stream)
            case told.StreamReset():
                if stream is not None:
                    refused = event.error_code == ErrorCodes.REFUSED_STREAM
                    self._over(stream, Unprocessed() if refused else BrokenOff())
            case told.WindowUpdated():
                self._updates -= 1
                if self._updates < 0:
                    raise ProtocolError("there are too many WINDOW_UPDATEs")
                if stream is not None:
                    stream.wake()
                else:
                    self._wake()
            case told.RemoteSettingsChanged():
                self._idle_talk()
                if not self.ready.done():
                    self.most = 2**31
                    self.ready.set_result(None)
                if (most := event.changed_settings.get(SettingCodes.MAX_CONCURRENT_STREAMS)) is not None:
                    self.most = most.new_value
                self._wake()
                self._on_change()
            case told.ConnectionTerminated():
                self._idle_talk()
                self.draining = True
                for one in [one for one in self.streams.values() if one.id > (event.last_stream_id or 0)]:
                    self._over(one, Unprocessed())
                self._changed()
            case _:
                self._idle_talk()


def speak(headers: str) -> None:
    """Have all connections of this process speak through `h2`, with hpack's headers or with ours."""
    OverH2.headers = headers
    pool.Http2Connection = OverH2  # type: ignore[misc]

    def secret(fields: Iterable[tuple[str, str]]) -> list[Any]:
        return [NeverIndexedHeaderTuple(*one) if one[0] == "authorization" else one for one in fields]

    pool.http2_headers = cast(Any, SimpleNamespace(write_block=secret if headers == "hpack" else list))


if __name__ == "__main__":
    speak(os.environ["H2_HEADERS"])
    main()
