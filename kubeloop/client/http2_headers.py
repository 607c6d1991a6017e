"""Header blocks of HTTP/2 (RFC 7541), as a client needs them.

Neither side keeps a table of headers: we write each of them out, and tell the server to do the same. So a block can be
read without those before it, and a server that names an entry of a table breaks the protocol.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache

from hpack import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from kubeloop.client.http2_frames import ProtocolError
from kubeloop.client.limits import KIB

LARGEST_HEADERS = 16 * KIB  # of an answer, as sent and as read; those of an API server have less than one
READ = frozenset({":status", "content-encoding", "retry-after"})
"""The headers of an answer that somebody looks at."""
_KNOWN = tuple((name.decode(), value.decode()) for name, value in HeaderTable.STATIC_TABLE)
_SECRET = frozenset({"authorization"})
_LONGEST_NAME = 64  # as it is sent; nobody looks at a header with a longer one
_OVERHEAD = 32  # what RFC 7541 has each header count for, beyond its letters
_LONGEST_NUMBER = 28  # bits that follow the prefix; no length here needs more


def write_block(fields: Iterable[tuple[str, str]]) -> bytes:
    """Headers, each written out; nobody on the way may keep a secret one in a table."""
    written = bytearray()
    for name, value in fields:
        written.append(0x10 if name in _SECRET else 0x00)
        for text in (name.encode("ascii"), value.encode("latin-1")):
            _write_length(written, len(text))
            written += text
    return bytes(written)


def _write_length(written: bytearray, length: int) -> None:
    """An integer with a prefix of seven bits."""
    if length < 0x7F:
        written.append(length)
        return
    written.append(0x7F)
    length -= 0x7F
    while length >= 0x80:
        written.append(length & 0x7F | 0x80)
        length >>= 7
    written.append(length)


def read_block(block: bytes, names: Container[str] = READ) -> Mapping[str, str]:
    """Those headers of an answer, the last where one is there twice; raises ProtocolError.

    What nobody looks at is passed over as it is: to decode it would be most of the work of reading an answer.
    """
    try:
        return {name: _text(value) for name, value in _fields(block) if name in names}
    except (IndexError, UnicodeDecodeError, HPACKDecodingError) as error:
        raise ProtocolError("a header block cannot be read") from error


def status(fields: Mapping[str, str]) -> int:
    """The status of an answer; raises ProtocolError."""
    said = fields.get(":status", "")
    if len(said) != 3 or not (said.isascii() and said.isdigit()) or said[0] == "0":
        raise ProtocolError("an answer has no status")
    return int(said)


def _fields(block: bytes) -> Iterator[tuple[str, str | bytes]]:
    """Each header with its value, as a string literal where it is one."""
    at, size = 0, 0
    while at < len(block):
        first = block[at]
        value: str | bytes
        if first & 0x80:
            index, at = _number(block, at, 7)
            name, value = _known(index)
        elif first & 0xE0 == 0x20:
            room, at = _number(block, at, 5)
            if room or size:
                raise ProtocolError("a table of headers is asked for, or begins among headers")
            continue
        else:
            index, at = _number(block, at, 6 if first & 0x40 else 4)
            literal = b""
            if not index:
                literal, at = _literal(block, at)
            name = _known(index)[0] if index else _name(literal)
            value, at = _literal(block, at)
        size += len(name) + len(value) + _OVERHEAD
        if size > LARGEST_HEADERS:
            raise ProtocolError("the headers of an answer are too long")
        yield name, value


def _known(index: int) -> tuple[str, str]:
    if not 0 < index <= len(_KNOWN):
        raise ProtocolError("a header is named by an entry of a table that is not kept")
    return _KNOWN[index - 1]


def _number(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """An integer with a prefix of so many bits, and where it ends."""
    full = (1 << prefix) - 1
    value = block[at] & full
    at += 1
    if value < full:
        return value, at
    for shift in range(0, _LONGEST_NUMBER, 7):
        more = block[at]
        at += 1
        value += (more & 0x7F) << shift
        if more < 0x80:
            return value, at
    raise ProtocolError("a number in a header block has no end")


def _literal(block: bytes, at: int) -> tuple[bytes, int]:
    """A string literal with the byte that its length begins with, and where it ends."""
    length, begin = _number(block, at, 7)
    end = begin + length
    if end > len(block):
        raise ProtocolError("a header ends beyond its block")
    return block[at : at + 1] + block[begin:end], end


def _name(literal: bytes) -> str:
    """A name that nobody looks at may be empty."""
    return _short_name(literal) if len(literal) <= _LONGEST_NAME else ""


@lru_cache(maxsize=256)
def _short_name(literal: bytes) -> str:
    return _text(literal)


def _text(literal: str | bytes) -> str:
    """What a string literal says, in Huffman's code or without it."""
    if isinstance(literal, str):
        return literal
    return (decode_huffman(literal[1:]) if literal[0] & 0x80 else literal[1:]).decode("latin-1")
