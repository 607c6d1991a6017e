"""HTTP/2 frames as bytes (RFC 9113), as far as a client needs them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from kubeloop.client.limits import KIB

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_FRAME = 16 * KIB  # the protocol's default; larger frames would only delay other streams
LARGEST_WINDOW = 2**31 - 1
MOST_SETTINGS = 32  # in a frame; six are defined
FIRST_WINDOW = 65_535  # the protocol's default for streams and connections
_HEAD = struct.Struct(">HBBBI")


class ProtocolError(Exception):
    """The server has violated the protocol or a limit."""


class FrameType(IntEnum):
    """The types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20


class Setting(IntEnum):
    """The settings of a peer."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """The error codes of streams and connections."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    REFUSED_STREAM = 7
    CANCEL = 8


class Frame(NamedTuple):
    """A frame: its type, flags, stream and payload."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    def content(self) -> bytes:
        """Return the payload of DATA or HEADERS without padding and priority; raises ProtocolError."""
        begin, padding = 0, 0
        if self.flags & PADDED:
            begin, padding = 1, self.payload[0] if self.payload else 0
        if self.kind == FrameType.HEADERS and self.flags & PRIORITISED:
            begin += 5
        end = len(self.payload) - padding
        if end < begin:
            raise ProtocolError("a frame has more padding than there is of it")
        return self.payload[begin:end] if begin or padding else self.payload

    def number(self) -> int:
        """Return the value of a WINDOW_UPDATE or RST_STREAM; raises ProtocolError."""
        if len(self.payload) != 4:
            raise ProtocolError("a frame is not as long as its type is")
        return int.from_bytes(self.payload)


class Frames:
    """Splits the bytes of a connection into frames."""

    __slots__ = ("_needed", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._needed = _HEAD.size

    def read(self, data: bytes) -> Iterator[Frame]:
        """Yield all frames that are complete with these bytes; raises ProtocolError."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:  # parsing the buffer again for each byte would be quadratic
                return
            data = bytes(self._rest)
            self._rest.clear()
        begin, end = 0, len(data)
        while True:
            self._needed = _HEAD.size
            if end - begin < self._needed:
                break
            high, low, kind, flags, stream = _HEAD.unpack_from(data, begin)
            length = high << 8 | low
            if length > LARGEST_FRAME:
                raise ProtocolError(f"a frame has {length} bytes")
            self._needed += length
            if end - begin < self._needed:
                break
            payload = data[begin + _HEAD.size : begin + self._needed]
            begin += self._needed
            yield Frame(kind, flags, stream & LARGEST_WINDOW, payload)
        self._rest += data[begin:]


def frame(kind: FrameType, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Return a frame as bytes."""
    length = len(payload)
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def settings(values: Mapping[Setting, int]) -> bytes:
    """Return our settings as a frame."""
    return frame(FrameType.SETTINGS, b"".join(struct.pack(">HI", name, value) for name, value in values.items()))


def read_settings(payload: bytes) -> dict[int, int]:
    """Return the last value of each setting; raises ProtocolError."""
    if len(payload) % 6:
        raise ProtocolError("SETTINGS are not as long as their type is")
    if len(payload) > 6 * MOST_SETTINGS:
        raise ProtocolError(f"it has more than {MOST_SETTINGS} settings")
    return dict(struct.iter_unpack(">HI", payload))


def number(kind: FrameType, value: int, *, stream: int = 0) -> bytes:
    """Return a WINDOW_UPDATE or RST_STREAM as bytes."""
    return frame(kind, value.to_bytes(4), stream=stream)


def headers(block: bytes, *, stream: int, ends: bool, largest: int) -> Iterator[bytes]:
    """Yield a header block as frames, which must be sent without others in between."""
    kind, flags = FrameType.HEADERS, END_STREAM if ends else 0
    while True:
        piece, block = block[:largest], block[largest:]
        yield frame(kind, piece, flags=flags | (0 if block else END_HEADERS), stream=stream)
        if not block:
            return
        kind, flags = FrameType.CONTINUATION, 0
