"""A TLS web server in its own thread, for a port that any pod of the hub may reach.

A handshake costs the server more than a client that replays a recorded one. Handshakes therefore use this thread's
event loop and not the operator's, and each client address has limits on handshakes per second, concurrent handshakes
and connections.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, TypeVar, cast

from aiohttp import web

from kubeloop.client.limits import Bucket

T = TypeVar("T")

PACE: Final = (100.0, 500.0)  # handshakes of one address per second, and the burst; an API server has 25 connections
UNDER_WAY: Final = 64  # concurrent handshakes of one address
CONNECTIONS: Final = 500  # of one address, which several API servers may share
IN_ALL: Final = 2_000  # connections of all addresses
ADDRESSES: Final = 4_096  # that are remembered
HANDSHAKE_SECONDS: Final = 5.0
FIRST_BYTE_SECONDS: Final = 10.0  # after the handshake
_IPV6_NETWORK: Final = 64  # bits of the prefix that counts as one address, since a client can use all of its network


@dataclass(slots=True)
class _Address:
    """The counters of one client address."""

    pace: Bucket = field(default_factory=lambda: Bucket(*PACE))
    handshakes: int = 0
    connections: int = 0


class Admittance:
    """Decides which connections are accepted."""

    def __init__(self) -> None:
        self._addresses: dict[str, _Address] = {}
        self._connections = 0

    def let_in(self, host: str, now: float) -> _Address | None:
        """Count a connection and a handshake for an address and return its counters; None if it has too many."""
        address = self._addresses.setdefault(_client_network(host), _Address())
        if len(self._addresses) > ADDRESSES:
            self._addresses = {
                name: counters
                for name, counters in self._addresses.items()
                if counters.connections or not counters.pace.is_full(now)
            }
        if address.handshakes >= UNDER_WAY or address.connections >= CONNECTIONS or self._connections >= IN_ALL:
            return None
        if address.pace.take(now) > now:
            address.pace.take(now, -1.0)  # a rejected handshake does not count
            return None
        address.handshakes += 1
        address.connections += 1
        self._connections += 1
        return address

    def release(self, address: _Address) -> None:
        """Count a connection as ended."""
        address.connections -= 1
        self._connections -= 1


def _client_network(host: str) -> str:
    """Return the client network of an address: itself for IPv4, the /64 prefix for IPv6."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return (
        str(int(address) >> 128 - _IPV6_NETWORK) if address.version == 6 and mapped is None else str(mapped or address)
    )


class _Connection(asyncio.Protocol):
    """A connection: first the TLS handshake, then the web server's protocol on top of it."""

    def __init__(self, web_server: web.Server, tls: ssl.SSLContext, admittance: Admittance) -> None:
        self._web_server, self._tls, self._admittance = web_server, tls, admittance
        self._address: _Address | None = None
        self._inner: asyncio.Protocol | None = None
        self._buffered = b""
        self._handshake: asyncio.Task[None] | None = None
        self._first_byte_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reject the connection, or start its handshake."""
        raw_transport, loop = cast(asyncio.Transport, transport), asyncio.get_running_loop()
        raw_transport.pause_reading()
        self._address = self._admittance.let_in((transport.get_extra_info("peername") or ("",))[0], loop.time())
        if self._address is None:
            raw_transport.abort()
        else:
            self._handshake = loop.create_task(self._complete_handshake(raw_transport, self._address))

    async def _complete_handshake(self, transport: asyncio.Transport, address: _Address) -> None:
        """Complete the TLS handshake, and hand the connection to the web server."""
        loop = asyncio.get_running_loop()
        try:
            tls_transport = await loop.start_tls(
                transport, self, self._tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, ssl.SSLError):
            tls_transport = None
        finally:
            address.handshakes -= 1
        if tls_transport is None:
            transport.abort()
            self._end(None)
            return
        self._first_byte_timer = loop.call_later(FIRST_BYTE_SECONDS, tls_transport.abort)
        self._inner = self._web_server()
        self._inner.connection_made(tls_transport)
        if self._buffered:
            self.data_received(self._buffered)

    def data_received(self, data: bytes) -> None:
        """Pass data on to the web server, or buffer it until the handshake has ended."""
        if self._inner is None:
            self._buffered += data
            return
        if self._first_byte_timer is not None:
            self._first_byte_timer.cancel()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        """Release the connection's counters, and tell the web server."""
        if self._first_byte_timer is not None:
            self._first_byte_timer.cancel()
        if self._address is not None:
            self._admittance.release(self._address)
            self._address = None
        if self._inner is not None:
            self._inner.connection_lost(error)
            self._inner = None


@asynccontextmanager
async def _serve(
    app: web.Application, listen: tuple[str, int], *, grace: float, tls: ssl.SSLContext
) -> AsyncGenerator[None]:
    """Serve on a port of the current event loop while the block runs."""
    runner, (host, port), admittance = web.AppRunner(app, access_log=None, shutdown_timeout=grace), listen, Admittance()
    await runner.setup()
    web_server = cast(web.Server, runner.server)
    try:
        async with await asyncio.get_running_loop().create_server(
            lambda: _Connection(web_server, tls, admittance), host or None, port
        ):
            yield
    finally:
        await runner.cleanup()


async def run_in(loop: asyncio.AbstractEventLoop, what: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine on the event loop of another thread and return its result."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(what, loop))


@asynccontextmanager
async def serve_in_thread(
    app: web.Application, listen: tuple[str, int], *, grace: float, tls: ssl.SSLContext
) -> AsyncGenerator[asyncio.AbstractEventLoop]:
    """Serve in a separate thread while the block runs, and yield that thread's event loop; raises OSError.

    `grace`: the seconds that current requests have at the end.
    """
    loop, exit_stack = asyncio.new_event_loop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever, name="web server", daemon=True)
    thread.start()
    try:
        await run_in(loop, exit_stack.enter_async_context(_serve(app, listen, grace=grace, tls=tls)))
        yield loop
    finally:
        await run_in(loop, exit_stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()
