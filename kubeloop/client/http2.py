"""Requests and watches of one API server over one HTTP/2 connection, and over more where the server asks for that.

A connection that the server wants to end goes on with what is under way there, and new requests take another. The same
holds for one on which a request has had no answer: it may be dead.
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
ATTEMPTS = 3  # of a request that the server has not looked at


class Http2:
    """One API server; to be closed."""

    def __init__(
        self,
        access: Access,
        resolver: OwnThreads,
        new_socket: NewSocket,
        *,
        share: Share | None,
        on_broken: Callable[[str], None],
    ) -> None:
        """`on_broken`: told what the server said that is no HTTP/2. Raises KubeconfigError, or ValueError."""
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
        """The answer; raises NotSpoken, NotHttp or an OSError."""
        pseudo = {
            ":method": asking.method,
            ":scheme": "https",
            ":authority": self._authority,
            ":path": asking.url.raw_path_qs,
        }
        zipped = {} if asking.stays else {"accept-encoding": "gzip"}
        block = http2_headers.write_block({**pseudo, **zipped, **asking.headers}.items())
        for left in reversed(range(ATTEMPTS)):
            connection = await self._with_room(stays=asking.stays)
            try:
                return await connection.send(block, asking.payload)
            except Unprocessed:
                if not left:
                    raise
        raise AssertionError("the last attempt answers or raises")

    async def close(self) -> None:
        """End all connections."""
        self._closed = True
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        for connection in self._connections:
            connection.close()
        self._changed()

    async def _with_room(self, *, stays: bool) -> Http2Connection:
        """A connection that takes another stream, as soon as there is one."""
        dialled = 0
        while not self._closed:
            for connection in self._connections:
                if connection.takes(stays=stays):
                    return connection
            if self._dialling is None and len(self._connections) < CONNECTIONS and not self._refuses():
                if dialled == ATTEMPTS:  # it ends them as soon as they are made
                    raise Unprocessed
                dialled += 1
                self._dialling = self._dial()
            dial = self._dialling
            with self._in_line() as turn:
                await turn
            if dial is not None and dial.done() and not dial.cancelled() and (error := dial.exception()):
                raise error
        raise ConnectionResetError

    def _refuses(self) -> bool:
        """Whether the server takes no streams at all: more connections would not help."""
        return any(not one.most and not one.draining for one in self._connections)

    @contextmanager
    def _in_line(self) -> Generator[asyncio.Future[None]]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            yield turn
        finally:
            self._waiting.remove(turn)

    def _changed(self) -> None:
        """There may be room."""
        self._connections = [one for one in self._connections if not one.closed.done()]
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)

    def _dial(self) -> asyncio.Task[Http2Connection]:
        """Make another connection; whoever waits for one raises why there is none."""

        def done(task: asyncio.Task[Http2Connection]) -> None:
            self._dialling = None
            if not task.cancelled() and task.exception() is None:
                self._connections.append(task.result())
            self._changed()

        dial = asyncio.create_task(self._connected())
        dial.add_done_callback(done)
        return dial

    async def _connected(self) -> Http2Connection:
        loop, addresses = asyncio.get_running_loop(), await self._addresses()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reached = await start_connection(
                    addresses, happy_eyeballs_delay=0.25, interleave=1, socket_factory=self._new_socket
                )
                _, connection = await loop.create_connection(
                    lambda: Http2Connection(self._share, self._changed, self._on_broken),
                    sock=reached,
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
        try:
            found = [(ip_address(self._host).version, self._host)]
        except ValueError:
            resolved = await self._resolver.resolve(self._host, self._port, socket.AF_UNSPEC)
            found = [(6 if one["family"] == socket.AF_INET6 else 4, one["host"]) for one in resolved]
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, self._port, 0, 0))
            if version == 6
            else (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, self._port))
            for version, host in found
        ]
