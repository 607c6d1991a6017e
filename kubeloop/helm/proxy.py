"""How Helm reaches a cluster: by a SOCKS proxy on loopback, which leads to that API server and nowhere else.

Helm follows redirects wherever they lead, and whoever owns a cluster writes its answers: without this, a cluster has
Helm ask, from the operator's pod, whatever it likes. It is SOCKS, as Go has a proxy that speaks HTTP make the requests
for `http://` itself.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, suppress
from ipaddress import ip_address
from urllib.parse import SplitResult, unquote, urlsplit

from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType]

from kubeloop.client.access import Access
from kubeloop.client.limits import KIB, Bucket, Share
from kubeloop.client.resolver import OwnThreads
from kubeloop.client.sockets import Sockets

DIAL_SECONDS = 30.0  # as Helm has it
AT_ONCE = 64 * KIB  # bytes that are passed on
RATE, BURST = 500.0, 2000.0  # of 32 KiB each; a run of an honest Helm stays within the burst, and 500 cost 70 ms
HANDSHAKE = b"\x16"  # what TLS begins with
SIZES = {1: 4, 4: 16}  # in RFC 1928, of addresses by their type; anything else is a name
DONE, REFUSED, UNREACHABLE, NOT_LISTENING = 0, 2, 4, 5
PORTS = {"http": 80, "https": 443}


@asynccontextmanager
async def proxy_to(access: Access) -> AsyncGenerator[str]:
    """The URL of one; raises KubeconfigError. Whoever else calls it here gets to no other place than Helm does."""
    proxy = _Proxy(access)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    try:
        yield f"socks5://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        proxy.close()


class _Proxy:
    def __init__(self, access: Access) -> None:
        self._server = urlsplit(access.server)
        self._allowed = _place(self._server)
        self._next = urlsplit(access.proxy or "")
        self._tls = access.tls() if self._next.scheme == "https" else None
        self._resolver, self._sockets = OwnThreads(at_once=1), Sockets()
        self._share = Share(asyncio.get_running_loop().time, Bucket(RATE, BURST))
        self._tasks = set[asyncio.Task[None]]()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def connected(self, asks: StreamReader, told: StreamWriter) -> None:
        """Take one connection of Helm's."""
        task = asyncio.create_task(self._lead(asks, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lead(self, asks: StreamReader, told: StreamWriter) -> None:
        with closing(told), suppress(OSError, EOFError):
            if await _asked(asks, told) != self._allowed:
                _answer(told, REFUSED)
                return
            try:
                says, there = await self._dial()
            except (OSError, EOFError, asyncio.LimitOverrunError) as error:
                _answer(told, NOT_LISTENING if isinstance(error, ConnectionRefusedError) else UNREACHABLE)
                return
            try:
                _answer(told, DONE)
                first = await asks.read(AT_ONCE)
                if self._server.scheme == "http" or first.startswith(HANDSHAKE):  # a redirect may take TLS away
                    there.write(first)
                    await asyncio.gather(self._pass(asks, there), self._pass(says, told))
            finally:
                there.transport.abort()

    async def _pass(self, says: StreamReader, to: StreamWriter) -> None:
        with suppress(OSError):
            while some := await says.read(AT_ONCE):
                await self._share.take(len(some))
                to.write(some)
                await to.drain()
        with suppress(OSError):
            if to.can_write_eof():
                to.write_eof()
            else:
                to.close()  # TLS has no end of one direction

    async def _dial(self) -> tuple[StreamReader, StreamWriter]:
        host, port = _place(self._next) if self._next.hostname else self._allowed
        async with asyncio.timeout(DIAL_SECONDS):
            found = await self._resolver.resolve(host, port, socket.AF_UNSPEC)
            reached = await start_connection(
                [(one["family"], socket.SOCK_STREAM, one["proto"], "", (one["host"], port)) for one in found],
                happy_eyeballs_delay=0.25,
                interleave=1,
                socket_factory=self._sockets.new,
            )
            server_name = host if self._tls else None
            says, there = await asyncio.open_connection(sock=reached, ssl=self._tls, server_hostname=server_name)
            try:
                if self._next.hostname:
                    await self._tunnelled(says, there)
            except BaseException:
                there.transport.abort()
                raise
        return says, there

    async def _tunnelled(self, says: StreamReader, there: StreamWriter) -> None:
        """Have the kubeconfig's own proxy lead to the server."""
        host, port = self._allowed
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        who = ":".join(unquote(part or "") for part in (self._next.username, self._next.password))
        known = f"Proxy-Authorization: Basic {base64.b64encode(who.encode()).decode()}\r\n" if who != ":" else ""
        there.write(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n{known}\r\n".encode())
        status = (await says.readuntil(b"\r\n\r\n")).split(maxsplit=2)[1:2]
        if status != [b"200"]:
            raise ConnectionError


def _place(url: SplitResult) -> tuple[str, int]:
    return _written(url.hostname or ""), url.port or PORTS[url.scheme]


def _written(host: str | bytes) -> str:
    """A host as all spell it who mean the same."""
    try:
        address = ip_address(host)
    except ValueError:
        return str(host).lower()
    return str(getattr(address, "ipv4_mapped", None) or address)


async def _asked(asks: StreamReader, told: StreamWriter) -> tuple[str, int]:
    """Whereto a client of SOCKS wants to be led."""
    _, methods = await asks.readexactly(2)
    await asks.readexactly(methods)
    told.write(b"\x05\x00")
    *_, kind = await asks.readexactly(4)
    size = SIZES.get(kind) or (await asks.readexactly(1))[0]
    host = await asks.readexactly(size)
    port = int.from_bytes(await asks.readexactly(2))
    return _written(host if kind in SIZES else host.decode(errors="replace")), port


def _answer(told: StreamWriter, code: int) -> None:
    told.write(bytes((5, code, 0, 1, *bytes(6))))
