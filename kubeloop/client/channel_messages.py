"""Messages between the operator and the process that reads from servers that strangers run.

A message is a JSON list followed by bytes. The size of both is limited, and nothing in them is ever executed. The side
that sends a request chooses its number, and the answer carries the same one:

    open number access http2 events     answered when a channel of that number is open
    send number channel request + body  answered with the status and HEADERS of a response of that number
    more number + none                  answered with more of that response's body; no bytes at its end
    close number                        not answered: closes a channel or response
    judged number words                 the reason why the addresses of `judge` may not be dialled; empty if they may

    answer number status headers + body
    failed number kind words            instead of an answer
    judge number channel name addresses asks whether a channel may dial these
    broken channel words                its server has sent something that is not HTTP
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final, cast

import orjson

from kubeloop.client.limits import KIB, MIB
from kubeloop.client.transport import NotHttp, Worded
from kubeloop.errors import KubeconfigError

LARGEST_HEAD: Final = 128 * KIB  # fits a kubeconfig's certificates, and the longest response of a name server
LARGEST_BODY: Final = 8 * MIB  # of a request; API servers accept three
CHUNK: Final = 64 * KIB  # of a response
HEADERS: Final = ("retry-after",)
"""The headers of a response that are passed on as text: those that the operator reads."""
OUT_OF_MEMORY: Final = 3
"""The exit code of the process when it has no memory left."""
FAILURES: Final[Mapping[str, type[Exception]]] = {
    "network": Worded,
    "http": NotHttp,
    "kubeconfig": KubeconfigError,
    "defect": RuntimeError,
}
"""The exceptions for the kinds of failures in a `failed` message."""

Message = tuple[list[Any], bytes]
"""The list and the bytes of a message."""
_SIZES: Final = Struct(">II")


class Garbled(Exception):  # noqa: N818 - a finding is named for what was found
    """The other side has sent an invalid message."""


def write_message(*head: object, body: bytes = b"") -> bytes:
    """Return a message as bytes; raises Worded if it is too large."""
    encoded = orjson.dumps(head)
    if len(encoded) > LARGEST_HEAD or len(body) > LARGEST_BODY:
        raise Worded("it is larger than what may be sent there")
    return b"".join((_SIZES.pack(len(encoded), len(body)), encoded, body))


async def read_message(reader: asyncio.StreamReader, largest_body: int) -> Message:
    """Read the next message; raises Garbled if it is invalid, and IncompleteReadError at the end."""
    head, body = _SIZES.unpack(await reader.readexactly(_SIZES.size))
    if head > LARGEST_HEAD or body > largest_body:
        raise Garbled("a message is larger than any")
    try:
        message: object = orjson.loads(await reader.readexactly(head))
    except orjson.JSONDecodeError as error:
        raise Garbled("a message is not JSON") from error
    if not isinstance(message, list):
        raise Garbled("a message is no list")
    return cast(list[Any], message), await reader.readexactly(body)
