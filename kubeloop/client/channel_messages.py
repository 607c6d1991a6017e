"""Messages between the operator and the process in which channels to servers of strangers are.

A message is a list of JSON, and bytes behind it. Both have bounds, and nothing of either is ever run. The one
that asks chooses a number, and the answer has it too:

    open number access http2 events     the answer: a channel of that number
    send number channel request + body  the answer: the status of a response of that number, and HEADERS
    more number + none                  the answer: what has come of that response since; no bytes at its end
    close number                        no answer: let go of a channel or response
    judged number words                 why the addresses of `judge` may not be dialled; empty when they may

    answer number status headers + body
    failed number kind words            instead of an answer
    judge number channel name addresses may a channel dial these?
    broken channel words                its server has said what is no HTTP
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

LARGEST_HEAD: Final = 128 * KIB  # a kubeconfig's certificates, or the longest answer of a name server
LARGEST_BODY: Final = 8 * MIB  # that is sent; API servers take three
CHUNK: Final = 64 * KIB  # of what is answered
HEADERS: Final = ("retry-after",)
"""The headers of an answer that are passed on, each as text: those that the operator reads."""
OUT_OF_MEMORY: Final = 3
"""The exit code of a process that has no more memory."""
FAILURES: Final[Mapping[str, type[Exception]]] = {
    "network": Worded,
    "http": NotHttp,
    "kubeconfig": KubeconfigError,
    "defect": RuntimeError,
}
"""All that can become of what was asked, by the words for it."""

Message = tuple[list[Any], bytes]
_SIZES: Final = Struct(">II")


class Garbled(Exception):  # noqa: N818 - a finding is named for what was found
    """The other side says what it may not."""


def write_message(*head: object, body: bytes = b"") -> bytes:
    """Return a message as it is sent; raises Worded for one that nobody would take."""
    written = orjson.dumps(head)
    if len(written) > LARGEST_HEAD or len(body) > LARGEST_BODY:
        raise Worded("it is larger than what may be sent there")
    return b"".join((_SIZES.pack(len(written), len(body)), written, body))


async def read_message(reader: asyncio.StreamReader, largest_body: int) -> Message:
    """Return the next message; raises Garbled, or an IncompleteReadError where there is none."""
    head, body = _SIZES.unpack(await reader.readexactly(_SIZES.size))
    if head > LARGEST_HEAD or body > largest_body:
        raise Garbled("a message is larger than any")
    try:
        read: object = orjson.loads(await reader.readexactly(head))
    except orjson.JSONDecodeError as error:
        raise Garbled("a message is not JSON") from error
    if not isinstance(read, list):
        raise Garbled("a message is no list")
    return cast(list[Any], read), await reader.readexactly(body)
