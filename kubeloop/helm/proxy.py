"""The SOCKS proxy on loopback through which Helm reaches a cluster; it leads to that API server and nowhere else.

Helm follows redirects to any address, and the owner of a cluster controls its responses. Without the proxy, a cluster
could make Helm send requests from the operator's pod to anything. It is a SOCKS proxy, since with an HTTP proxy Go
would let the proxy make requests for `http://`.
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

DIAL_SECONDS = 30.0  # Helm's own value
AT_ONCE = 64 * KIB  # bytes that are passed on at once
RATE, BURST = 500.0, 2000.0  # events of 32 KiB; an honest run stays within the burst, and 500 cost 70 ms
HANDSHAKE = b"\x16"  # the first byte of TLS
SIZES = {1: 4, 4: 16}  # bytes of an address by its type in RFC 1928; any other type is a name
DONE, REFUSED, UNREACHABLE, NOT_LISTENING = 0, 2, 4, 5
PORTS = {"http": 80, "https": 443}


@asynccontextmanager
async def proxy_to(access: Access) -> AsyncGenerator[str]:
    """Run a proxy to the server of an access and yield its URL; raises KubeconfigError.

    Other clients of the proxy reach no other server either.
    """
    proxy = _Proxy(access)
    server = await asyncio.start_server(proxy.on_connection, "127.0.0.1", 0)
    try:
        yield f"socks5://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        proxy.close()


class _Proxy:
    """A proxy to one API server, perhaps through the kubeconfig's own proxy."""

    def __init__(self, access: Access) -> None:
        self._server = urlsplit(access.server)
        self._allowed = _host_and_port(self._server)
        self._upstream = urlsplit(access.proxy or "")
        self._tls = access.tls() if self._upstream.scheme == "https" else None
        self._resolver, self._sockets = OwnThreads(at_once=1), Sockets()
        self._share = Share(asyncio.get_running_loop().time, Bucket(RATE, BURST))
        self._tasks = set[asyncio.Task[None]]()

    def close(self) -> None:
        """Cancel all connections."""
        for task in self._tasks:
            task.cancel()

    def on_connection(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve a connection of Helm in a task."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client_reader: StreamReader, client: StreamWriter) -> None:
        """Serve one connection: check its target, dial the server, and copy data in both directions."""
        with closing(client), suppress(OSError, EOFError):
            if await _read_target(client_reader, client) != self._allowed:
                _reply(client, REFUSED)
                return
            try:
                server_reader, server_writer = await self._dial()
            except (OSError, EOFError, asyncio.LimitOverrunError) as error:
                _reply(client, NOT_LISTENING if isinstance(error, ConnectionRefusedError) else UNREACHABLE)
                return
            try:
                _reply(client, DONE)
                first = await client_reader.read(AT_ONCE)
                if self._server.scheme == "http" or first.startswith(HANDSHAKE):  # a redirect may have dropped TLS
                    server_writer.write(first)
                    await asyncio.gather(self._copy(client_reader, server_writer), self._copy(server_reader, client))
            finally:
                server_writer.transport.abort()

    async def _copy(self, source: StreamReader, destination: StreamWriter) -> None:
        """Copy data in one direction until its end, at a limited rate."""
        with suppress(OSError):
            while chunk := await source.read(AT_ONCE):
                await self._share.take(len(chunk))
                destination.write(chunk)
                await destination.drain()
        with suppress(OSError):
            if destination.can_write_eof():
                destination.write_eof()
            else:
                destination.close()  # TLS cannot end one direction only

    async def _dial(self) -> tuple[StreamReader, StreamWriter]:
        """Connect to the API server, or to the upstream proxy and through it; raises OSError."""
        host, port = _host_and_port(self._upstream) if self._upstream.hostname else self._allowed
        async with asyncio.timeout(DIAL_SECONDS):
            addresses = await self._resolver.resolve(host, port, socket.AF_UNSPEC)
            connected_socket = await start_connection(
                [
                    (address["family"], socket.SOCK_STREAM, address["proto"], "", (address["host"], port))
                    for address in addresses
                ],
                happy_eyeballs_delay=0.25,
                interleave=1,
                socket_factory=self._sockets.new,
            )
            server_name = host if self._tls else None
            server_reader, server_writer = await asyncio.open_connection(
                sock=connected_socket, ssl=self._tls, server_hostname=server_name
            )
            try:
                if self._upstream.hostname:
                    await self._open_tunnel(server_reader, server_writer)
            except BaseException:
                server_writer.transport.abort()
                raise
        return server_reader, server_writer

    async def _open_tunnel(self, upstream_reader: StreamReader, upstream_writer: StreamWriter) -> None:
        """Open a tunnel to the server through the kubeconfig's proxy; raises ConnectionError if it refuses."""
        host, port = self._allowed
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        login = ":".join(unquote(part or "") for part in (self._upstream.username, self._upstream.password))
        authorization = (
            f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n" if login != ":" else ""
        )
        upstream_writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n".encode())
        status = (await upstream_reader.readuntil(b"\r\n\r\n")).split(maxsplit=2)[1:2]
        if status != [b"200"]:
            raise ConnectionError


def _host_and_port(url: SplitResult) -> tuple[str, int]:
    """Return host and port of a URL."""
    return _normalize_host(url.hostname or ""), url.port or PORTS[url.scheme]


def _normalize_host(host: str | bytes) -> str:
    """Return the normal form of a host: lower case, or the canonical address."""
    try:
        address = ip_address(host)
    except ValueError:
        return str(host).lower()
    return str(getattr(address, "ipv4_mapped", None) or address)


async def _read_target(client_reader: StreamReader, client: StreamWriter) -> tuple[str, int]:
    """Read a SOCKS request and return the requested host and port."""
    _, methods = await client_reader.readexactly(2)
    await client_reader.readexactly(methods)
    client.write(b"\x05\x00")
    *_, kind = await client_reader.readexactly(4)
    size = SIZES.get(kind) or (await client_reader.readexactly(1))[0]
    host = await client_reader.readexactly(size)
    port = int.from_bytes(await client_reader.readexactly(2))
    return _normalize_host(host if kind in SIZES else host.decode(errors="replace")), port


def _reply(client: StreamWriter, code: int) -> None:
    """Send the reply to a SOCKS request."""
    client.write(bytes((5, code, 0, 1, *bytes(6))))
