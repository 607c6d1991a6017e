"""The sockets of the connections to one server: how a dead one is found, and how they end."""

from __future__ import annotations

import asyncio
import socket
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

ENDING_TURNS = 10  # so often asyncio may look at a socket that has ended until it is closed

# A watch says nothing for minutes while nothing happens. So the kernel asks whether the other side is still there: it
# costs no turn of ours, and a cluster that is cut off is noticed within some ten seconds.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (
            ("TCP_KEEPIDLE", 5),
            ("TCP_KEEPINTVL", 2),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 10_000),
        )
        if hasattr(socket, name)  # not everywhere; without them it is the probe that notices
    ),
)

NewSocket = Callable[[tuple[Any, ...]], socket.socket]


class Sockets:
    """Those of one server."""

    def __init__(self) -> None:
        self._made = WeakSet[socket.socket]()

    def new(self, address: tuple[Any, ...]) -> socket.socket:
        made = socket.socket(*address[:3])
        self._made.add(made)
        for option in _KEEPALIVE:
            made.setsockopt(*option)
        return made

    async def end(self) -> None:
        """End what is given up already: the libraries wait half a minute for the other side's TLS farewell."""
        for _ in range(ENDING_TURNS):
            left = [one for one in self._made if one.fileno() >= 0]
            for one in left:
                with suppress(OSError):  # it was not connected yet
                    one.shutdown(socket.SHUT_RDWR)
            if not left:
                return
            await asyncio.sleep(0)


def shrink_tls_buffers() -> None:
    """Have asyncio read TLS by the record; for the whole process, so `__main__` calls it once.

    It keeps 256 KiB for every connection: for a cluster that speaks HTTP/1.1 with six watches, which are one each, that
    is 2.6 MB, and 0.8 MB with this. A record is at most 16 KiB long, so a read gets no more than that anyway.
    """
    SSLProtocol.max_size = 16 * 1024
