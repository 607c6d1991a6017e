"""A web server with TLS in a thread of its own, for a port that any pod of the hub may reach.

A handshake costs the server more than it costs a client that sends a recorded one. So handshakes take turns of the
thread's event loop and not of the operator's, and each address has a bound on how many it begins in a second, how many
are under way, and how many connections it keeps.
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

PACE: Final = (100.0, 500.0)  # handshakes of one address, a second and at once: an API server keeps 25 connections
UNDER_WAY: Final = 64  # handshakes of one address
CONNECTIONS: Final = 500  # of one address: API servers may share one
IN_ALL: Final = 2_000
ADDRESSES: Final = 4_096  # that are remembered
HANDSHAKE_SECONDS: Final = 5.0
FIRST_BYTE_SECONDS: Final = 10.0
_IPV6_NETWORK: Final = 64  # bits of an address; whoever has one has all others of its network


@dataclass(slots=True)
class _Address:
    """What one address has begun."""

    pace: Bucket = field(default_factory=lambda: Bucket(*PACE))
    handshakes: int = 0
    connections: int = 0


class Admittance:
    """Which connections are let in."""

    def __init__(self) -> None:
        self._known: dict[str, _Address] = {}
        self._connections = 0

    def let_in(self, host: str, now: float) -> _Address | None:
        """Return the address with one connection and one handshake more; None where it has too many."""
        address = self._known.setdefault(_whose(host), _Address())
        if len(self._known) > ADDRESSES:
            self._known = {
                name: one for name, one in self._known.items() if one.connections or not one.pace.is_full(now)
            }
        if address.handshakes >= UNDER_WAY or address.connections >= CONNECTIONS or self._connections >= IN_ALL:
            return None
        if address.pace.take(now) > now:
            address.pace.take(now, -1.0)  # who is not let in has not begun one
            return None
        address.handshakes += 1
        address.connections += 1
        self._connections += 1
        return address

    def left(self, address: _Address) -> None:
        """Note that a connection has ended."""
        address.connections -= 1
        self._connections -= 1


def _whose(host: str) -> str:
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(found, "ipv4_mapped", None)
    return str(int(found) >> 128 - _IPV6_NETWORK) if found.version == 6 and mapped is None else str(mapped or found)


class _Connection(asyncio.Protocol):
    """One connection: its handshake, and then what the web server makes of it."""

    def __init__(self, web_server: web.Server, tls: ssl.SSLContext, admittance: Admittance) -> None:
        self._web_server, self._tls, self._doors = web_server, tls, admittance
        self._address: _Address | None = None
        self._inner: asyncio.Protocol | None = None
        self._early = b""
        self._shaking: asyncio.Task[None] | None = None
        self._silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made, loop = cast(asyncio.Transport, transport), asyncio.get_running_loop()
        made.pause_reading()
        self._address = self._doors.let_in((transport.get_extra_info("peername") or ("",))[0], loop.time())
        if self._address is None:
            made.abort()
        else:
            self._shaking = loop.create_task(self._shake_hands(made, self._address))

    async def _shake_hands(self, transport: asyncio.Transport, address: _Address) -> None:
        loop = asyncio.get_running_loop()
        try:
            over_tls = await loop.start_tls(
                transport, self, self._tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, ssl.SSLError):
            over_tls = None
        finally:
            address.handshakes -= 1
        if over_tls is None:
            transport.abort()
            self._end(None)
            return
        self._silent = loop.call_later(FIRST_BYTE_SECONDS, over_tls.abort)
        self._inner = self._web_server()
        self._inner.connection_made(over_tls)
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            self._early += data
            return
        if self._silent is not None:
            self._silent.cancel()
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
        if self._silent is not None:
            self._silent.cancel()
        if self._address is not None:
            self._doors.left(self._address)
            self._address = None
        if self._inner is not None:
            self._inner.connection_lost(error)
            self._inner = None


@asynccontextmanager
async def _answering(
    app: web.Application, listen: tuple[str, int], *, grace: float, tls: ssl.SSLContext
) -> AsyncGenerator[None]:
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
    """Return what a coroutine returns on the event loop of another thread."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(what, loop))


@asynccontextmanager
async def answering_apart(
    app: web.Application, listen: tuple[str, int], *, grace: float, tls: ssl.SSLContext
) -> AsyncGenerator[asyncio.AbstractEventLoop]:
    """Answer in a thread of its own while the block runs, and yield its event loop; raises OSError.

    `grace`: the seconds that requests have which are being answered at its end.
    """
    loop, ends = asyncio.new_event_loop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever, name="web server", daemon=True)
    thread.start()
    try:
        await run_in(loop, ends.enter_async_context(_answering(app, listen, grace=grace, tls=tls)))
        yield loop
    finally:
        await run_in(loop, ends.aclose())
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()
