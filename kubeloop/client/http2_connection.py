"""One HTTP/2 connection to one API server, with a stream for each request and watch.

A slow reader of one stream delays only that one: the server may send STREAM_WINDOW bytes ahead of it, and the
connection itself accepts everything. So a connection buffers at most that much for each open stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, cast

from kubeloop.client import http2_frames as http2
from kubeloop.client import http2_headers
from kubeloop.client.http2_frames import Code, Frame, Frames, FrameType, ProtocolError, Setting
from kubeloop.client.http2_liveness import Liveness
from kubeloop.client.http2_stream import STREAM_WINDOW, HeaderBlock, Stream
from kubeloop.client.limits import KIB, Bucket, Share
from kubeloop.client.transport import BrokenOff, Dead, NotHttp, Unprocessed

CONNECTION_WINDOW = 2**30  # so large that only the windows of streams matter
FEW_PARTS = 8  # frames of one header block
NOISE = (50.0, 1000.0)  # frames without content per second, and the burst
UNREAD = 100  # acknowledgements that wait for a server that does not read; an honest one causes one or two
OF_A_FRAME = 1 / 64  # the cost of a frame, in events
FRAMES_AT_ONCE = 256  # about three milliseconds of work, after which other tasks run
LITTLE = 64  # bytes in a DATA frame; fewer count as no content, as every object is longer
A_PAUSE = 0.02  # seconds; reading is not paused for less
PROTOCOL = "h2"  # the name in TLS ALPN
_OPENING: Final = (
    http2.PREFACE
    + http2.settings(
        {
            Setting.HEADER_TABLE_SIZE: 0,
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_HEADER_LIST_SIZE: http2_headers.LARGEST_HEADERS,
        }
    )
    + http2.number(FrameType.WINDOW_UPDATE, CONNECTION_WINDOW - http2.FIRST_WINDOW)
)


class NotSpoken(Exception):  # noqa: N818 - a finding is named for what was found
    """The server does not support HTTP/2."""


class Http2Connection(asyncio.Protocol):
    """The frames of one connection, and the streams that they belong to."""

    def __init__(self, share: Share | None, on_change: Callable[[], None], on_broken: Callable[[str], None]) -> None:
        """Set the connection up.

        `on_change` is called when there may be room for a stream, or the connection has ended.
        """
        self.draining = False
        """True if no new stream may be opened."""
        self.most = 0
        """The maximum number of streams that the server allows."""
        self.streams: dict[int, Stream] = {}
        loop = self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        """Resolved by the server's first SETTINGS."""
        self.closed: asyncio.Future[None] = loop.create_future()
        self._share, self._on_change, self._on_broken = share, on_change, on_broken
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._pending_frames: Iterator[Frame] | None = None
        """Frames that were received and not processed yet."""
        self._header_block: HeaderBlock | None = None
        self._next_stream_id = 1
        self._max_frame_size = 16 * KIB
        self._send_window = self._initial_send_window = http2.FIRST_WINDOW
        """The bytes that we may send: on the connection, and on a new stream."""
        self._receive_window = CONNECTION_WINDOW
        self._late_allowance = 0
        """The bytes that may still arrive on streams that we have cancelled."""
        self._noise_bucket = Bucket(*NOISE)
        self._updates_left = NOISE[1]
        """The number of WINDOW_UPDATEs that the server may still send, increased by what we send."""
        self._liveness = Liveness(
            ping=lambda: self.write(http2.frame(FrameType.PING, b"\0" * 8)),
            dead=lambda: self._fail(Dead()),
            listening=lambda: self._transport is not None and self._transport.is_reading(),
        )
        self._writable = True
        self._unread_acks = 0
        """The number of acknowledgements written since writing was paused."""

    # Sending ---------------------------------------------------------------------------------------------------------

    def takes(self, *, keep_open: bool) -> bool:
        """True if another stream can be opened. Watches leave a quarter of the streams to requests."""
        room = self.most - (self.most // 4 if keep_open else 0)
        return not self.draining and not self._liveness.suspect and self.ready.done() and len(self.streams) < room

    async def send(self, block: bytes, payload: bytes | None) -> Stream:
        """Open a stream with these headers, and return it when the response has begun. Raises an OSError or NotHttp."""
        stream = Stream(self, self._next_stream_id, self._initial_send_window)
        self._next_stream_id += 2
        self.draining |= self._next_stream_id > http2.LARGEST_WINDOW
        self.streams[stream.id] = stream
        try:
            for frame_bytes in http2.headers(block, stream=stream.id, ends=not payload, largest=self._max_frame_size):
                self.write(frame_bytes)
            self._liveness.ask()
            if payload:
                await self._send_body(stream, payload)
            else:
                stream.sent = True
            await stream.wait_for_headers()
        except BaseException:
            stream.abort()
            raise
        return stream

    async def _send_body(self, stream: Stream, payload: bytes) -> None:
        """Send the body as far as the windows allow, until all is sent or the response begins."""
        sent = 0
        self._updates_left += 64 + len(payload) // 512
        while sent < len(payload) and not stream.status:
            size = min(len(payload) - sent, self._send_window, stream.room, self._max_frame_size)
            if size <= 0 or not self._writable:
                await stream.wait_for_data()
                continue
            piece, sent = payload[sent : sent + size], sent + size
            self._send_window -= size
            stream.room -= size
            flags = http2.END_STREAM if sent == len(payload) else 0
            self.write(http2.frame(FrameType.DATA, piece, flags=flags, stream=stream.id))
        stream.sent = sent == len(payload)

    def write(self, data: bytes) -> None:
        """Write bytes, unless the connection is closing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def drop(self, stream: Stream) -> None:
        """Remove a stream, and cancel it if it has not ended."""
        if self.streams.pop(stream.id, None) is None:
            return
        if not stream.ended:
            self._late_allowance += stream.window
            stream.end(BrokenOff())
            self.write(http2.number(FrameType.RST_STREAM, Code.CANCEL, stream=stream.id))
            if not stream.status:
                self._liveness.gave_up()  # so that other requests use another connection
        self._notify_change()

    def close(self) -> None:
        """Abort the connection. A proper closure would wait for the peer, which may be gone."""
        self._pending_frames = None
        self._liveness.stop()
        if self._transport is not None:
            self._transport.abort()

    # Receiving -------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start HTTP/2, or fail with NotSpoken if the server has not chosen it."""
        self._transport = cast(asyncio.Transport, transport)
        tls = transport.get_extra_info("ssl_object")
        if tls.selected_alpn_protocol() == PROTOCOL:
            self._transport.write(_OPENING)
        else:
            self._fail(NotSpoken())

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if self._liveness.note_sign_of_life():
            self._on_change()
        self._process(self._frames.read(data))

    def _process(self, frames: Iterator[Frame]) -> None:
        """Process some frames, or all if the connection has ended. The rest follows after other tasks have run."""
        count = 0
        try:
            for frame in islice(frames, FRAMES_AT_ONCE if self._transport is not None else None):
                count += 1
                self._dispatch(frame)
        except ProtocolError as error:
            self._fail(NotHttp(f"the answer is not HTTP/2 as it may be: {error}"))
            self._on_broken(str(error))
            return
        wait = self._share.charge((1 + count) * OF_A_FRAME) if self._share is not None else 0.0
        if self._transport is not None and (count == FRAMES_AT_ONCE or wait > A_PAUSE):
            self._transport.pause_reading()
            self._pending_frames = frames if count == FRAMES_AT_ONCE else None
            self._loop.call_later(max(wait, 0.0), self._resume)

    def _resume(self) -> None:
        """Resume reading after a pause."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._process_pending()

    def _process_pending(self) -> None:
        """Process the pending frames."""
        frames, self._pending_frames = self._pending_frames, None
        if frames is not None:
            self._process(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        """Process what was received, and end all streams."""
        self._transport = None
        self._process_pending()  # the server may have closed after a complete response
        self.closed.set_result(None)
        self._fail(exc or ConnectionResetError())

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        """Wake the streams that wait to write."""
        self._writable, self._unread_acks = True, 0
        self._wake_streams()

    def _dispatch(self, frame: Frame) -> None:
        """Dispatch a frame by its type; raises ProtocolError."""
        if self._header_block is not None and frame.kind != FrameType.CONTINUATION:
            raise ProtocolError("a header block has no end")
        if not self.ready.done() and frame.kind != FrameType.SETTINGS:
            raise ProtocolError("its first frame is not SETTINGS")
        match frame.kind:
            case FrameType.DATA:
                self._data(frame)
            case FrameType.HEADERS | FrameType.CONTINUATION:
                self._headers(frame)
            case FrameType.RST_STREAM:
                self._reset(frame)
            case FrameType.SETTINGS:
                self._settings(frame)
            case FrameType.PING:
                self._ping(frame)
            case FrameType.GOAWAY:
                self._goaway(frame)
            case FrameType.WINDOW_UPDATE:
                self._update(frame)
            case FrameType.PUSH_PROMISE:
                raise ProtocolError("it pushes what nobody asked for")
            case _:
                self._count_noise()

    def _data(self, frame: Frame) -> None:
        """Pass the content of a DATA frame to its stream, and renew the connection's window."""
        size, content = len(frame.payload), frame.content()
        self._receive_window -= size
        if self._receive_window < CONNECTION_WINDOW // 2:
            self.write(http2.number(FrameType.WINDOW_UPDATE, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        ends = bool(frame.flags & http2.END_STREAM)
        if len(content) < LITTLE and not ends:
            self._count_noise()
        stream = self._stream(frame)
        if stream is None:
            self._late_allowance -= size
            if self._late_allowance < 0:
                raise ProtocolError("it goes on with streams that were taken back")
            return
        if not stream.status:
            raise ProtocolError("an answer has a body before it has headers")
        stream.take(content, size - len(content))
        if ends:
            self._finish(stream)

    def _headers(self, frame: Frame) -> None:
        """Collect the frames of a header block, and handle it when it is complete."""
        if frame.kind == FrameType.HEADERS:
            self._header_block = HeaderBlock(frame.stream, self._stream(frame), bool(frame.flags & http2.END_STREAM))
        block = self._header_block
        if block is None or block.id != frame.stream:
            raise ProtocolError("a header block has no beginning")
        block.content += frame.content() if frame.kind == FrameType.HEADERS else frame.payload
        block.parts += 1
        if len(block.content) > http2_headers.LARGEST_HEADERS or block.parts > FEW_PARTS:
            raise ProtocolError("its headers are too long")
        if frame.flags & http2.END_HEADERS:
            self._header_block = None
            self._handle_headers(block)

    def _handle_headers(self, block: HeaderBlock) -> None:
        """Handle a complete header block: the headers of a response, informational ones, or trailers."""
        stream, fields = block.stream, http2_headers.read_block(bytes(block.content))
        if stream is None:
            self._count_noise()
        elif stream.status:
            if not block.ends:
                raise ProtocolError("an answer has headers twice")
            self._finish(stream)  # trailers, which API servers do not send
        elif http2_headers.status(fields) >= 200:
            stream.on_headers(fields)
            if block.ends:
                self._finish(stream)
        elif block.ends:
            raise ProtocolError("an answer ends before it has begun")
        else:
            self._count_noise()

    def _reset(self, frame: Frame) -> None:
        """End a stream that the server has reset."""
        stream, code = self._stream(frame), frame.number()
        if stream is None:
            self._count_noise()
            return
        self._finish(stream, Unprocessed() if code == Code.REFUSED_STREAM else BrokenOff())

    def _settings(self, frame: Frame) -> None:
        """Apply the server's settings and acknowledge them."""
        self._count_noise()
        if frame.stream or (frame.flags & http2.ACK and frame.payload):
            raise ProtocolError("SETTINGS are of a stream, or acknowledge what they say")
        if frame.flags & http2.ACK:
            return
        if not self.ready.done():
            self.most = 2**31
        for name, value in http2.read_settings(frame.payload).items():
            if name == Setting.MAX_CONCURRENT_STREAMS:
                self.most = value
            elif name == Setting.MAX_FRAME_SIZE:
                if not 16 * KIB <= value < 2**24:
                    raise ProtocolError("its frames have no size that there is")
                self._max_frame_size = min(value, 64 * KIB)
            elif name == Setting.INITIAL_WINDOW_SIZE:
                difference, self._initial_send_window = value - self._initial_send_window, value
                for stream in self.streams.values():
                    stream.room += difference
                if max((value, *(stream.room for stream in self.streams.values()))) > http2.LARGEST_WINDOW:
                    raise ProtocolError("a window is larger than any")
        self._acknowledge(FrameType.SETTINGS)
        if not self.ready.done():
            self.ready.set_result(None)
        self._wake_streams()
        self._on_change()

    def _ping(self, frame: Frame) -> None:
        """Acknowledge a PING of the server."""
        if frame.stream or len(frame.payload) != 8:
            raise ProtocolError("a PING is not as long as its type is")
        self._count_noise()
        if not frame.flags & http2.ACK:
            self._acknowledge(FrameType.PING, frame.payload)

    def _acknowledge(self, kind: FrameType, payload: bytes = b"") -> None:
        """Write an acknowledgement; raises ProtocolError if the server does not read them."""
        self._unread_acks += not self._writable
        if self._unread_acks > UNREAD:
            raise ProtocolError("it asks for answers and reads none")
        self.write(http2.frame(kind, payload, flags=http2.ACK))

    def _goaway(self, frame: Frame) -> None:
        """Open no more streams, and end those that the server has not processed."""
        if frame.stream or len(frame.payload) < 8:
            raise ProtocolError("a GOAWAY is not as long as its type is")
        self._count_noise()
        self.draining = True
        last = int.from_bytes(frame.payload[:4]) & http2.LARGEST_WINDOW
        for stream in [stream_above for stream_above in self.streams.values() if stream_above.id > last]:
            self._finish(stream, Unprocessed())
        self._notify_change()

    def _update(self, frame: Frame) -> None:
        """Enlarge the window of the connection or of a stream."""
        increment = frame.number() & http2.LARGEST_WINDOW
        self._updates_left -= 1
        if not increment or self._updates_left < 0:
            raise ProtocolError("a WINDOW_UPDATE is none, or there are too many")
        if not frame.stream:
            self._send_window += increment
            if self._send_window > http2.LARGEST_WINDOW:
                raise ProtocolError("a window is larger than any")
            self._wake_streams()
        elif stream := self._stream(frame):
            stream.room += increment
            if stream.room > http2.LARGEST_WINDOW:
                raise ProtocolError("a window is larger than any")
            stream.wake()

    def _stream(self, frame: Frame) -> Stream | None:
        """Return the stream of a frame, or None if it has ended; raises ProtocolError if it was never opened."""
        if not frame.stream % 2 or frame.stream >= self._next_stream_id:
            raise ProtocolError("a frame is of a stream that nobody has opened")
        return self.streams.get(frame.stream)

    def _count_noise(self) -> None:
        """Count a frame without content; raises ProtocolError if there are too many."""
        now = self._loop.time()
        if self._noise_bucket.take(now) > now:
            raise ProtocolError("it sends many frames that carry nothing")

    def _finish(self, stream: Stream, error: Exception | None = None) -> None:
        """End a stream, and cancel it if its request is not fully sent."""
        stream.end(error)
        self.streams.pop(stream.id, None)
        if not stream.sent and not isinstance(error, Unprocessed):
            self.write(http2.number(FrameType.RST_STREAM, Code.CANCEL, stream=stream.id))
        self._notify_change()

    def _notify_change(self) -> None:
        """Close a draining connection without streams, and call `on_change`."""
        if self.draining and not self.streams:
            self.close()
        self._on_change()

    def _wake_streams(self) -> None:
        """Wake all streams that wait for room."""
        for stream in self.streams.values():
            stream.wake()

    def _fail(self, error: Exception) -> None:
        """End the connection and all of its streams with an error."""
        self.draining = True
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # mark it as retrieved, as the caller may be gone
        streams, self.streams = [*self.streams.values()], {}
        for stream in streams:
            broke_off = stream.status and isinstance(error, ConnectionResetError | NotHttp)
            stream.end(BrokenOff() if broke_off else error)
        self.close()
        self._on_change()
