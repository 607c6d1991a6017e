"""Requests and watches of one API server over one HTTP/2 connection, or several if the server limits streams.

A connection that the server drains finishes its streams, and new requests use another one. The same holds for a
connection on which a request got no response, since it may be dead.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType]
from yarl import URL

from kubeloop.client import http2_headers
from kubeloop.client.access import Access
from kubeloop.client.http2_connection import PROTOCOL, Http2Connection
from kubeloop.client.limits import Share
from kubeloop.client.resolver import OwnThreads
from kubeloop.client.sockets import NewSocket
from kubeloop.client.transport import CONNECT_SECONDS, CONNECTIONS, NotConnected, Outgoing, Response, Unprocessed

Address = tuple[int, int, int, str, tuple[Any, ...]]
"""An address as `getaddrinfo` returns it."""
ATTEMPTS = 3  # for a request that the server has not processed


class Http2:
    """The HTTP/2 client of one API server; has to be closed."""

    def __init__(
        self,
        access: Access,
        resolver: OwnThreads,
        new_socket: NewSocket,
        *,
        share: Share | None,
        on_broken: Callable[[str], None],
    ) -> None:
        """Set the client up. `on_broken` is called with a message if the server sends something that is not HTTP/2.

        Raises KubeconfigError or ValueError.
        """
        url, self._tls = URL(access.server), access.tls()
        self._tls.set_alpn_protocols([PROTOCOL, "http/1.1"])
        self._host, self._port = url.host or "", url.port or 443
        self._authority = url.host_port_subcomponent or ""
        self._server_name = access.server_name or self._host.rstrip(".")
        self._resolver, self._new_socket = resolver, new_socket
        self._share, self._on_broken = share, on_broken
        self._connections: list[Http2Connection] = []
        self._dialling: asyncio.Task[Http2Connection] | None = None
        self._closed = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def send(self, asking: Outgoing) -> Response:
        """Send a request and return the response; raises NotSpoken, NotHttp or an OSError."""
        pseudo = {
            ":method": asking.method,
            ":scheme": "https",
            ":authority": self._authority,
            ":path": asking.url.raw_path_qs,
        }
        encoding = {} if asking.keep_open else {"accept-encoding": "gzip"}
        block = http2_headers.write_block({**pseudo, **encoding, **asking.headers}.items())
        for attempts_left in reversed(range(ATTEMPTS)):
            connection = await self._get_connection(keep_open=asking.keep_open)
            try:
                return await connection.send(block, asking.payload)
            except Unprocessed:
                if not attempts_left:
                    raise
        raise AssertionError("the last attempt answers or raises")

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        for connection in self._connections:
            connection.close()
        self._on_change()

    async def _get_connection(self, *, keep_open: bool) -> Http2Connection:
        """Return a connection that can take another stream, and dial one or wait if needed."""
        dialled = 0
        while not self._closed:
            for connection in self._connections:
                if connection.takes(keep_open=keep_open):
                    return connection
            if (
                self._dialling is None
                and len(self._connections) < CONNECTIONS
                # If the server allows no streams at all, more connections do not help.
                and all(connection.most or connection.draining for connection in self._connections)
            ):
                if dialled == ATTEMPTS:  # the server closes connections at once
                    raise Unprocessed
                dialled += 1
                self._dialling = self._dial()
            dial = self._dialling
            with self._queue() as changed:
                await changed
            if dial is not None and dial.done() and not dial.cancelled() and (error := dial.exception()):
                raise error
        raise ConnectionResetError

    @contextmanager
    def _queue(self) -> Generator[asyncio.Future[None]]:
        """Yield a future that is resolved when a connection may have room."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        try:
            yield changed
        finally:
            self._waiting.remove(changed)

    def _on_change(self) -> None:
        """Remove closed connections, and wake requests that wait for room."""
        self._connections = [connection for connection in self._connections if not connection.closed.done()]
        for changed in self._waiting:
            if not changed.done():
                changed.set_result(None)

    def _dial(self) -> asyncio.Task[Http2Connection]:
        """Start another connection in a task. Its error is raised to the requests that wait for it."""

        def done(task: asyncio.Task[Http2Connection]) -> None:
            self._dialling = None
            if not task.cancelled() and task.exception() is None:
                self._connections.append(task.result())
            self._on_change()

        dial = asyncio.create_task(self._connect())
        dial.add_done_callback(done)
        return dial

    async def _connect(self) -> Http2Connection:
        """Connect to the server; raises NotSpoken, an OSError or Unprocessed."""
        loop, addresses = asyncio.get_running_loop(), await self._addresses()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connected_socket = await start_connection(
                    addresses, happy_eyeballs_delay=0.25, interleave=1, socket_factory=self._new_socket
                )
                _, connection = await loop.create_connection(
                    lambda: Http2Connection(self._share, self._on_change, self._on_broken),
                    sock=connected_socket,
                    ssl=self._tls,
                    server_hostname=self._server_name,
                )
                try:
                    await connection.ready
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError as error:
            raise NotConnected from error
        if connection.draining:
            raise Unprocessed
        return connection

    async def _addresses(self) -> Sequence[Address]:
        """Resolve the server's host."""
        try:
            hosts = [(ip_address(self._host).version, self._host)]
        except ValueError:
            resolved = await self._resolver.resolve(self._host, self._port, socket.AF_UNSPEC)
            hosts = [(6 if entry["family"] == socket.AF_INET6 else 4, entry["host"]) for entry in resolved]
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, self._port, 0, 0))
            if version == 6
            else (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, self._port))
            for version, host in hosts
        ]
