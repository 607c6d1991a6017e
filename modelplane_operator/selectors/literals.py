"""Parse literals: numbers, strings and bytes."""

import math
import re
from collections.abc import Callable

import lark

from modelplane_operator.selectors.tree import CompileError
from modelplane_operator.selectors.values import UINT64_MAX, UInt, Value

ESCAPE = r"""\\(?:[abfnrtv"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"""
"""Escapes that CEL allows in texts and bytes."""


_CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
"""Characters of the escapes that consist of one letter."""


def _parse_integer(token: lark.Token) -> int:
    """Parse an integer without a sign. `builder` checks its range together with the sign; 30 digits never fit."""
    digits = str(token)
    if len(digits) > 30:
        raise CompileError("the number has more than 64 bits", token.start_pos or 0)
    return int(digits, 16 if digits[:2] == "0x" else 10)


def _parse_double(token: lark.Token) -> float:
    """Parse a double. Raise CompileError if it is too large for one."""
    value = float(token)
    if math.isinf(value):
        raise CompileError("the number is too large", token.start_pos or 0)
    return value


def _parse_unsigned(token: lark.Token) -> UInt:
    """Parse an unsigned integer, without its suffix `u`. Raise CompileError beyond 64 bits."""
    value = _parse_integer(lark.Token(token.type, token[:-1], start_pos=token.start_pos))
    if value > UINT64_MAX:
        raise CompileError("the number has more than 64 bits", token.start_pos or 0)
    return UInt(value)


def _split_quotes(token: str) -> tuple[str, bool]:
    """Return the text between the quotes, and True if it is raw, so that escapes have no meaning."""
    raw = token[0] in "rR"
    quoted = token[1:] if raw else token
    width = 3 if quoted[:3] in ('"""', "'''") else 1
    return quoted[width:-width].replace("\r\n", "\n").replace("\r", "\n"), raw


def _parse_string(token: lark.Token) -> str:
    """Parse a string. Raise CompileError for an escape of an invalid character."""
    contents, raw = _split_quotes(token)

    def character(escape: re.Match[str]) -> str:
        """Return the character of an escape."""
        code = escape[0][1:]
        if code[0] in "xXuU01234567"[: 12 if len(code) > 1 else 0]:
            point = int(code, 8) if code[0].isdigit() else int(code[1:], 16)
            if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
                raise CompileError(f"{escape[0]} is no character", (token.start_pos or 0) + escape.start())
            return chr(point)
        return _CONTROL.get(code, code)

    return contents if raw else re.sub(ESCAPE, character, contents)


def _parse_bytes(token: lark.Token) -> bytes:
    """Parse bytes. Raise CompileError for a Unicode escape."""
    contents, raw = _split_quotes(token[1:])

    def octets(escape: re.Match[str]) -> str:
        """Return the character of an escape, or a private one for a byte."""
        code = escape[0][1:]
        if code[0] in "uU":
            raise CompileError(f"{escape[0]} cannot be written in bytes", (token.start_pos or 0) + escape.start())
        if code[0] in "xX":
            return chr(int(code[1:], 16) + _BYTE)
        if code[0].isdigit():
            return chr(int(code, 8) + _BYTE)
        return _CONTROL.get(code, code)

    # Bytes with numeric escapes become private characters until the rest is encoded.
    escaped = contents if raw else re.sub(ESCAPE, octets, contents)
    return b"".join(bytes([ord(c) - _BYTE]) if _BYTE <= ord(c) < _BYTE + 256 else c.encode() for c in escaped)


_BYTE = 0x10FF00
"""First of 256 private characters, at the end of Unicode, that stand for bytes."""

LITERALS: dict[str, Callable[[lark.Token], Value]] = {
    "INT_LIT": _parse_integer,
    "UINT_LIT": _parse_unsigned,
    "FLOAT_LIT": _parse_double,
    "STRING_LIT": _parse_string,
    "MLSTRING_LIT": _parse_string,
    "BYTES_LIT": _parse_bytes,
    "BOOL_LIT": lambda token: str(token).startswith("t"),
    "NULL_LIT": lambda _: None,
}
