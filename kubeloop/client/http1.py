"""Requests to one API server over HTTP/1.1, where it speaks no HTTP/2 or is behind a proxy."""

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

IDLE_SECONDS = 45.0  # a connection is kept from one probe to the next: TLS costs more than all that a probe asks


class Http1:
    """One API server; to be closed."""

    def __init__(self, access: Access, resolver: OwnThreads, new_socket: NewSocket) -> None:
        """Raises KubeconfigError."""
        self._server_name, self._proxy = access.server_name, access.proxy
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=access.tls() if access.server.startswith("https:") else True,
                limit=CONNECTIONS,
                keepalive_timeout=IDLE_SECONDS,
                socket_factory=new_socket,
                resolver=resolver,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),  # no API server needs them, and one that is hostile could fill a jar
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),  # the rest is ours to bound
        )

    async def send(self, asking: Outgoing) -> Response:
        payload = asking.payload
        try:
            with _closed_meanwhile():
                response = await self._session.request(
                    asking.method,
                    asking.url,
                    data=None if payload is None else io.BytesIO(payload),
                    headers=asking.headers,
                    server_hostname=self._server_name,
                    proxy=self._proxy,
                    allow_redirects=False,  # an API server does not redirect; whoever does must not get our token
                )
        except aiohttp.ClientResponseError as error:
            if not isinstance(error.__cause__, HttpProcessingError):
                raise
            raise NotHttp(f"the answer is not HTTP, or its headers are too long: {error.message[:100]}") from error
        return _Answer(response)

    async def close(self) -> None:
        await self._session.close()


class _Answer:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self._response = response

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    async def chunk(self) -> bytes:
        try:
            with _closed_meanwhile():
                return await self._response.content.readany()
        except RuntimeError as error:  # aiohttp's word for a connection that ended between two reads
            raise aiohttp.ServerDisconnectedError from error

    def cut(self) -> None:
        """A TLS farewell would wait for the other side's, which may be long gone."""
        response = self._response
        if (connection := response.connection) is not None and (transport := connection.transport) is not None:
            transport.abort()
        response.close()


@contextmanager
def _closed_meanwhile() -> Generator[None]:
    """A session that is closed cancels what waits for it, in tasks that nobody has cancelled: there it is an error."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise aiohttp.ClientConnectionError("the session was closed") from error
