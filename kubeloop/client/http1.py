"""Requests to one API server over HTTP/1.1, for servers without HTTP/2 and behind proxies."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Generator
from contextlib import contextmanager

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from kubeloop.client.access import Access
from kubeloop.client.resolver import OwnThreads
from kubeloop.client.sockets import NewSocket
from kubeloop.client.transport import CONNECT_SECONDS, CONNECTIONS, NotHttp, Outgoing, Response

IDLE_SECONDS = 45.0  # keeps a connection from one probe to the next, since a TLS handshake costs more than a probe


class Http1:
    """The HTTP/1.1 client of one API server; has to be closed."""

    def __init__(self, access: Access, resolver: OwnThreads, new_socket: NewSocket) -> None:
        """Open a session; raises KubeconfigError if certificates are unusable."""
        self._server_name, self._proxy = access.server_name, access.proxy
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=access.tls() if access.server.startswith("https:") else True,
                limit=CONNECTIONS,
                keepalive_timeout=IDLE_SECONDS,
                socket_factory=new_socket,
                resolver=resolver,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),  # API servers use none, and a hostile one could send many
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),  # callers bound the rest
        )

    async def send(self, asking: Outgoing) -> Response:
        """Send a request and return the response; raises an aiohttp error, an OSError, or NotHttp."""
        payload = asking.payload
        try:
            with _translate_closed():
                response = await self._session.request(
                    asking.method,
                    asking.url,
                    data=None if payload is None else io.BytesIO(payload),
                    headers=asking.headers,
                    server_hostname=self._server_name,
                    proxy=self._proxy,
                    allow_redirects=False,  # API servers do not redirect, and no other server may get our token
                )
        except aiohttp.ClientResponseError as error:
            if not isinstance(error.__cause__, HttpProcessingError):
                raise
            raise NotHttp(f"the answer is not HTTP, or its headers are too long: {error.message[:100]}") from error
        return _Response(response)

    async def close(self) -> None:
        await self._session.close()


class _Response:
    """A response of aiohttp, as a `transport.Response`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self._response = response

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    async def chunk(self) -> bytes:
        """Return the data that has arrived, empty at the end."""
        try:
            with _translate_closed():
                return await self._response.content.readany()
        except RuntimeError as error:  # raised by aiohttp when the connection ended between two reads
            raise aiohttp.ServerDisconnectedError from error

    def abort(self) -> None:
        """Abort the connection. A TLS closure would wait for the peer, which may be gone."""
        response = self._response
        if (connection := response.connection) is not None and (transport := connection.transport) is not None:
            transport.abort()
        response.close()


@contextmanager
def _translate_closed() -> Generator[None]:
    """Raise an error for a request that is cancelled because the session was closed, and not its task."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise aiohttp.ClientConnectionError("the session was closed") from error
