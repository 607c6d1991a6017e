"""One HTTP/2 connection to one API server: a stream for each request and each watch, all of them read in one place.

Who reads one stream slowly holds up that one alone: the server may be ahead of its reader by STREAM_WINDOW bytes, and
the connection takes whatever comes. So a connection keeps no more than that for each stream that is under way.
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

CONNECTION_WINDOW = 2**30  # never what holds a server up
FEW_PARTS = 8  # frames of one header block
NOISE = (50.0, 1000.0)  # frames a second that ask for nothing and carry nothing, and at once
UNREAD = 100  # acknowledgements that wait for a server which does not read; an honest one has asked for one or two
OF_A_FRAME = 1 / 64  # of an event, in what it costs
FRAMES_AT_ONCE = 256  # some three milliseconds of work: then others have their turn
LITTLE = 64  # bytes of a body in a frame: less carries nothing, as no object is that short
A_PAUSE = 0.02  # to stop reading for less is not worth it
PROTOCOL = "h2"  # as TLS names it
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
    """The server does not speak HTTP/2."""


class Http2Connection(asyncio.Protocol):
    """The frames of one connection, and whose they are."""

    def __init__(self, share: Share | None, on_change: Callable[[], None], on_broken: Callable[[str], None]) -> None:
        """`on_change`: told when there may be room for another stream, or the connection has ended."""
        self.draining = False
        """Whether the server wants no more requests on it."""
        self.most = 0
        """How many streams the server takes."""
        self.streams: dict[int, Stream] = {}
        loop = self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        """Resolved by the server's first words."""
        self.closed: asyncio.Future[None] = loop.create_future()
        self._share, self._on_change, self._on_broken = share, on_change, on_broken
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._rest: Iterator[Frame] | None = None
        """What has come, and waits for its turn."""
        self._block: HeaderBlock | None = None
        self._next = 1
        self._largest = 16 * KIB
        self._room = self._first_room = http2.FIRST_WINDOW
        """What we may send, on all streams and on a new one."""
        self._window = CONNECTION_WINDOW
        self._late = 0
        """What may still come on streams that we have let go of."""
        self._noise = Bucket(*NOISE)
        self._updates = NOISE[1]
        """How many WINDOW_UPDATEs the server may send: some for each thing that we send."""
        self._liveness = Liveness(
            ping=lambda: self.write(http2.frame(FrameType.PING, b"\0" * 8)),
            dead=lambda: self._fail(Dead()),
            listening=lambda: self._transport is not None and self._transport.is_reading(),
        )
        self._writable = True
        self._unread = 0
        """What was acknowledged since it is not."""

    # Asking ----------------------------------------------------------------------------------------------------------

    def takes(self, *, stays: bool) -> bool:
        """Whether it has room for another stream. Those that stay leave a quarter of it to the others."""
        room = self.most - (self.most // 4 if stays else 0)
        return not self.draining and not self._liveness.suspect and self.ready.done() and len(self.streams) < room

    async def send(self, block: bytes, payload: bytes | None) -> Stream:
        """Open a stream with these headers; its answer, as soon as it has begun. Raises an OSError or NotHttp."""
        stream = Stream(self, self._next, self._first_room)
        self._next += 2
        self.draining |= self._next > http2.LARGEST_WINDOW
        self.streams[stream.id] = stream
        try:
            for part in http2.headers(block, stream=stream.id, ends=not payload, largest=self._largest):
                self.write(part)
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
        """Send what the server has room for, and wait for more room; an answer before the end is an answer, too."""
        sent = 0
        self._updates += 64 + len(payload) // 512
        while sent < len(payload) and not stream.status:
            size = min(len(payload) - sent, self._room, stream.room, self._largest)
            if size <= 0 or not self._writable:
                await stream.news()
                continue
            part, sent = payload[sent : sent + size], sent + size
            self._room -= size
            stream.room -= size
            flags = http2.END_STREAM if sent == len(payload) else 0
            self.write(http2.frame(FrameType.DATA, part, flags=flags, stream=stream.id))
        stream.sent = sent == len(payload)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def drop(self, stream: Stream) -> None:
        """Let go of a stream; one that is not over is taken back."""
        if self.streams.pop(stream.id, None) is None:
            return
        if not stream.ended:
            self._late += stream.window
            stream.end(BrokenOff())
            self.write(http2.number(FrameType.RST_STREAM, Code.CANCEL, stream=stream.id))
            if not stream.status:
                self._liveness.gave_up()  # others need not wait where this one has
        self._changed()

    def close(self) -> None:
        """End it at once: a farewell would wait for the other side's, which may be long gone."""
        self._rest = None
        self._liveness.stop()
        if self._transport is not None:
            self._transport.abort()

    # What comes in ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        tls = transport.get_extra_info("ssl_object")
        if tls.selected_alpn_protocol() == PROTOCOL:
            self._transport.write(_OPENING)
        else:
            self._fail(NotSpoken())

    def data_received(self, data: bytes) -> None:
        if self._liveness.heard():
            self._on_change()
        self._read(self._frames.read(data))

    def _read(self, frames: Iterator[Frame]) -> None:
        """Take some frames, and of a connection that has ended all; the rest when others have had their turn."""
        count = 0
        try:
            for frame in islice(frames, FRAMES_AT_ONCE if self._transport is not None else None):
                count += 1
                self._received(frame)
        except ProtocolError as error:
            self._fail(NotHttp(f"the answer is not HTTP/2 as it may be: {error}"))
            self._on_broken(str(error))
            return
        wait = self._share.charge((1 + count) * OF_A_FRAME) if self._share is not None else 0.0
        if self._transport is not None and (count == FRAMES_AT_ONCE or wait > A_PAUSE):
            self._transport.pause_reading()
            self._rest = frames if count == FRAMES_AT_ONCE else None
            self._loop.call_later(max(wait, 0.0), self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._read_rest()

    def _read_rest(self) -> None:
        rest, self._rest = self._rest, None
        if rest is not None:
            self._read(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._read_rest()  # an answer may be whole that the server has closed behind
        self.closed.set_result(None)
        self._fail(exc or ConnectionResetError())

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable, self._unread = True, 0
        self._wake()

    def _received(self, frame: Frame) -> None:
        if self._block is not None and frame.kind != FrameType.CONTINUATION:
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
                self._idle_talk()

    def _data(self, frame: Frame) -> None:
        size, content = len(frame.payload), frame.content()
        self._window -= size
        if self._window < CONNECTION_WINDOW // 2:
            self.write(http2.number(FrameType.WINDOW_UPDATE, CONNECTION_WINDOW - self._window))
            self._window = CONNECTION_WINDOW
        ends = bool(frame.flags & http2.END_STREAM)
        if len(content) < LITTLE and not ends:
            self._idle_talk()
        stream = self._stream(frame)
        if stream is None:
            self._late -= size
            if self._late < 0:
                raise ProtocolError("it goes on with streams that were taken back")
            return
        if not stream.status:
            raise ProtocolError("an answer has a body before it has headers")
        stream.take(content, size - len(content))
        if ends:
            self._over(stream)

    def _headers(self, frame: Frame) -> None:
        if frame.kind == FrameType.HEADERS:
            self._block = HeaderBlock(frame.stream, self._stream(frame), bool(frame.flags & http2.END_STREAM))
        block = self._block
        if block is None or block.id != frame.stream:
            raise ProtocolError("a header block has no beginning")
        block.content += frame.content() if frame.kind == FrameType.HEADERS else frame.payload
        block.parts += 1
        if len(block.content) > http2_headers.LARGEST_HEADERS or block.parts > FEW_PARTS:
            raise ProtocolError("its headers are too long")
        if frame.flags & http2.END_HEADERS:
            self._block = None
            self._answer(block)

    def _answer(self, block: HeaderBlock) -> None:
        stream, fields = block.stream, http2_headers.read_block(bytes(block.content))
        if stream is None:
            self._idle_talk()
        elif stream.status:
            if not block.ends:
                raise ProtocolError("an answer has headers twice")
            self._over(stream)  # by trailers, of which an API server has none
        elif http2_headers.status(fields) >= 200:
            stream.told(fields)
            if block.ends:
                self._over(stream)
        elif block.ends:
            raise ProtocolError("an answer ends before it has begun")
        else:
            self._idle_talk()

    def _reset(self, frame: Frame) -> None:
        stream, code = self._stream(frame), frame.number()
        if stream is None:
            self._idle_talk()
            return
        self._over(stream, Unprocessed() if code == Code.REFUSED_STREAM else BrokenOff())

    def _settings(self, frame: Frame) -> None:
        self._idle_talk()
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
                self._largest = min(value, 64 * KIB)
            elif name == Setting.INITIAL_WINDOW_SIZE:
                grown, self._first_room = value - self._first_room, value
                for stream in self.streams.values():
                    stream.room += grown
                if max((value, *(stream.room for stream in self.streams.values()))) > http2.LARGEST_WINDOW:
                    raise ProtocolError("a window is larger than any")
        self._acknowledge(FrameType.SETTINGS)
        if not self.ready.done():
            self.ready.set_result(None)
        self._wake()
        self._on_change()

    def _ping(self, frame: Frame) -> None:
        if frame.stream or len(frame.payload) != 8:
            raise ProtocolError("a PING is not as long as its type is")
        self._idle_talk()
        if not frame.flags & http2.ACK:
            self._acknowledge(FrameType.PING, frame.payload)

    def _acknowledge(self, kind: FrameType, payload: bytes = b"") -> None:
        self._unread += not self._writable
        if self._unread > UNREAD:
            raise ProtocolError("it asks for answers and reads none")
        self.write(http2.frame(kind, payload, flags=http2.ACK))

    def _goaway(self, frame: Frame) -> None:
        if frame.stream or len(frame.payload) < 8:
            raise ProtocolError("a GOAWAY is not as long as its type is")
        self._idle_talk()
        self.draining = True
        last = int.from_bytes(frame.payload[:4]) & http2.LARGEST_WINDOW
        for stream in [one for one in self.streams.values() if one.id > last]:
            self._over(stream, Unprocessed())
        self._changed()

    def _update(self, frame: Frame) -> None:
        more = frame.number() & http2.LARGEST_WINDOW
        self._updates -= 1
        if not more or self._updates < 0:
            raise ProtocolError("a WINDOW_UPDATE is none, or there are too many")
        if not frame.stream:
            self._room += more
            if self._room > http2.LARGEST_WINDOW:
                raise ProtocolError("a window is larger than any")
            self._wake()
        elif stream := self._stream(frame):
            stream.room += more
            if stream.room > http2.LARGEST_WINDOW:
                raise ProtocolError("a window is larger than any")
            stream.wake()

    def _stream(self, frame: Frame) -> Stream | None:
        """Whose a frame is; None for a stream that is over. Raises ProtocolError for one that never was."""
        if not frame.stream % 2 or frame.stream >= self._next:
            raise ProtocolError("a frame is of a stream that nobody has opened")
        return self.streams.get(frame.stream)

    def _idle_talk(self) -> None:
        """Count a frame that carries nothing."""
        now = self._loop.time()
        if self._noise.take(now) > now:
            raise ProtocolError("it sends many frames that carry nothing")

    def _over(self, stream: Stream, error: Exception | None = None) -> None:
        stream.end(error)
        self.streams.pop(stream.id, None)
        if not stream.sent and not isinstance(error, Unprocessed):
            self.write(http2.number(FrameType.RST_STREAM, Code.CANCEL, stream=stream.id))
        self._changed()

    def _changed(self) -> None:
        if self.draining and not self.streams:
            self.close()
        self._on_change()

    def _wake(self) -> None:
        for stream in self.streams.values():
            stream.wake()

    def _fail(self, error: Exception) -> None:
        """End the connection and all that is under way on it."""
        self.draining = True
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # it may be that nobody waits any more
        streams, self.streams = [*self.streams.values()], {}
        for stream in streams:
            broke_off = stream.status and isinstance(error, ConnectionResetError | NotHttp)
            stream.end(BrokenOff() if broke_off else error)
        self.close()
        self._on_change()
