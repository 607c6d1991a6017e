"""The sockets of connections to one server: keepalive to find dead peers, and how they are closed."""

from __future__ import annotations

import asyncio
import socket
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

ENDING_TURNS = 10  # turns of the event loop that asyncio gets to close a socket

# A watch may be silent for minutes. So the kernel probes the peer, which costs this process nothing, and notices within
# about ten seconds that a cluster is cut off.
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
        if hasattr(socket, name)  # not on every platform; without them the prober notices
    ),
)

NewSocket = Callable[[tuple[Any, ...]], socket.socket]
"""Creates a socket for an address."""


class Sockets:
    """The sockets of one server."""

    def __init__(self) -> None:
        self._created = WeakSet[socket.socket]()

    def new(self, address: tuple[Any, ...]) -> socket.socket:
        """Create a socket with keepalive, and remember it for `end`."""
        created = socket.socket(*address[:3])
        self._created.add(created)
        for option in _KEEPALIVE:
            created.setsockopt(*option)
        return created

    async def end(self) -> None:
        """Shut down sockets of closed connections.

        The libraries would wait half a minute for the peer's TLS closure.
        """
        for _ in range(ENDING_TURNS):
            open_sockets = [open_socket for open_socket in self._created if open_socket.fileno() >= 0]
            for open_socket in open_sockets:
                with suppress(OSError):  # not connected yet
                    open_socket.shutdown(socket.SHUT_RDWR)
            if not open_sockets:
                return
            await asyncio.sleep(0)


def shrink_tls_buffers() -> None:
    """Let asyncio read TLS one record at a time, in the whole process; `__main__` calls it once.

    Its buffer of 256 KiB for every connection makes 2.6 MB for a cluster with HTTP/1.1 and six watches, and 0.8 MB with
    this. A record has at most 16 KiB, so larger buffers do not help.
    """
    SSLProtocol.max_size = 16 * 1024
