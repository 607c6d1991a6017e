"""The connection to one API server: HTTP/2, or HTTP/1.1 for servers without it, behind a proxy, or without TLS."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import ClassVar

from kubeloop.client.access import Access
from kubeloop.client.http1 import Http1
from kubeloop.client.http2 import Http2
from kubeloop.client.http2_connection import NotSpoken
from kubeloop.client.limits import Share
from kubeloop.client.resolver import OwnThreads, Refuse, allow_all
from kubeloop.client.sockets import Sockets
from kubeloop.client.transport import Carrier, Outgoing, Response
from kubeloop.errors import KubeconfigError


class Channel:
    """The transport to one server; created by `open_channel`, which closes it."""

    http2: ClassVar[bool] = False
    """True if HTTP/2 is used where possible."""

    def __init__(self, access: Access, share: Share | None, refuse: Refuse, ends: AsyncExitStack) -> None:
        """Create the client for the server's protocol; raises KubeconfigError or ValueError."""
        self.on_broken: Callable[[str], object] = lambda _: None
        """Called with a message when the server has sent something that is not HTTP."""
        self._access, self._exit_stack = access, ends
        self._resolver, self._sockets = OwnThreads(refuse=refuse), Sockets()
        ends.push_async_callback(self._sockets.end)
        self._http1: Http1 | None = None
        self._http2: Http2 | None = None
        if not (self.http2 and access.server.startswith("https:")) or access.proxy:
            self._get_http1()
            return
        made = self._http2 = Http2(
            access, self._resolver, self._sockets.new, share=share, on_broken=self._report_broken
        )
        ends.push_async_callback(made.close)

    async def send(self, asking: Outgoing) -> Response:
        """Send a request and return the response; raises an OSError, an aiohttp error or NotHttp."""
        if self._http2 is not None:
            try:
                return await self._http2.send(asking)
            except NotSpoken:
                self._http2 = None  # requests in progress continue
        return await self._get_http1().send(asking)

    def _get_http1(self) -> Http1:
        """Return the HTTP/1.1 client, and create it if there is none."""
        if self._http1 is None:
            self._http1 = Http1(self._access, self._resolver, self._sockets.new)
            self._exit_stack.push_async_callback(self._http1.close)
        return self._http1

    def _report_broken(self, message: str) -> None:
        self.on_broken(message)


OpenChannel = Callable[[Access, Share | None], AbstractAsyncContextManager[Carrier]]
"""Opens a channel to the server of an access."""


@asynccontextmanager
async def open_channel(access: Access, share: Share | None, refuse: Refuse = allow_all) -> AsyncGenerator[Channel]:
    """Open a channel to an API server and close it at the end; raises KubeconfigError if certificates are unusable."""
    async with AsyncExitStack() as exit_stack:
        try:
            channel = Channel(access, share, refuse, exit_stack)
        except ValueError as error:
            raise KubeconfigError("the kubeconfig's server is not a URL") from error
        yield channel


def speak_http2(*, speak: bool = True) -> None:
    """Allow or forbid HTTP/2 for the whole process; `__main__` calls it once."""
    Channel.http2 = speak
