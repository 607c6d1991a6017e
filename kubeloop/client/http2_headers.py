"""HTTP/2 header blocks (RFC 7541), as far as a client needs them.

No dynamic table is used: we write every header literally, and tell the server to do the same. So a block can be read
without the ones before it, and a server that refers to an entry of the table violates the protocol.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache

from hpack import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from kubeloop.client.http2_frames import ProtocolError
from kubeloop.client.limits import KIB

LARGEST_HEADERS = 16 * KIB  # of a response, compressed and not; those of API servers have less than 1 KiB
READ = frozenset({":status", "content-encoding", "retry-after"})
"""The headers of a response that are read."""
_STATIC_TABLE = tuple((name.decode(), value.decode()) for name, value in HeaderTable.STATIC_TABLE)
_NEVER_INDEXED = frozenset({"authorization"})
_LONGEST_NAME = 64  # bytes as sent; longer names are not read
_OVERHEAD = 32  # bytes that RFC 7541 counts for each header besides its text
_LONGEST_NUMBER = 28  # bits after the prefix; no length here needs more


def write_block(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return headers as a block of literals; secret ones are marked so that no proxy may store them."""
    written = bytearray()
    for name, value in fields:
        written.append(0x10 if name in _NEVER_INDEXED else 0x00)
        for text in (name.encode("ascii"), value.encode("latin-1")):
            _write_length(written, len(text))
            written += text
    return bytes(written)


def _write_length(written: bytearray, length: int) -> None:
    """Append an integer with a prefix of seven bits."""
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
    """Return the named headers of a block, the last value of each; raises ProtocolError.

    Other values are skipped without decoding, which would be most of the work.
    """
    try:
        return {name: _decode_text(value) for name, value in _read_fields(block) if name in names}
    except (IndexError, UnicodeDecodeError, HPACKDecodingError) as error:
        raise ProtocolError("a header block cannot be read") from error


def status(fields: Mapping[str, str]) -> int:
    """Return the status of a response; raises ProtocolError."""
    text = fields.get(":status", "")
    if len(text) != 3 or not (text.isascii() and text.isdigit()) or text[0] == "0":
        raise ProtocolError("an answer has no status")
    return int(text)


def _read_fields(block: bytes) -> Iterator[tuple[str, str | bytes]]:
    """Yield the name of each header with its value, as text or as an undecoded literal."""
    at, size = 0, 0
    while at < len(block):
        first = block[at]
        value: str | bytes
        if first & 0x80:
            index, at = _read_integer(block, at, 7)
            name, value = _static_entry(index)
        elif first & 0xE0 == 0x20:
            table_size, at = _read_integer(block, at, 5)
            if table_size or size:
                raise ProtocolError("a table of headers is asked for, or begins among headers")
            continue
        else:
            index, at = _read_integer(block, at, 6 if first & 0x40 else 4)
            if index:
                name = _static_entry(index)[0]
            else:
                literal, at = _read_literal(block, at)
                name = _short_name(literal) if len(literal) <= _LONGEST_NAME else ""  # longer ones are not read
            value, at = _read_literal(block, at)
        size += len(name) + len(value) + _OVERHEAD
        if size > LARGEST_HEADERS:
            raise ProtocolError("the headers of an answer are too long")
        yield name, value


def _static_entry(index: int) -> tuple[str, str]:
    """Return an entry of the static table; raises ProtocolError."""
    if not 0 < index <= len(_STATIC_TABLE):
        raise ProtocolError("a header is named by an entry of a table that is not kept")
    return _STATIC_TABLE[index - 1]


def _read_integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Return an integer with a prefix of this many bits, and the position behind it."""
    max_prefix = (1 << prefix) - 1
    value = block[at] & max_prefix
    at += 1
    if value < max_prefix:
        return value, at
    for shift in range(0, _LONGEST_NUMBER, 7):
        octet = block[at]
        at += 1
        value += (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
    raise ProtocolError("a number in a header block has no end")


def _read_literal(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a string literal with the first byte of its length, and the position behind it."""
    length, begin = _read_integer(block, at, 7)
    end = begin + length
    if end > len(block):
        raise ProtocolError("a header ends beyond its block")
    return block[at : at + 1] + block[begin:end], end


@lru_cache(maxsize=256)
def _short_name(literal: bytes) -> str:
    """Decode a name, cached."""
    return _decode_text(literal)


def _decode_text(literal: str | bytes) -> str:
    """Decode a string literal, Huffman-coded or not."""
    if isinstance(literal, str):
        return literal
    return (decode_huffman(literal[1:]) if literal[0] & 0x80 else literal[1:]).decode("latin-1")
