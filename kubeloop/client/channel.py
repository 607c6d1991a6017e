"""How one API server is reached: over HTTP/2, or HTTP/1.1 where there is TLS without it, a proxy, or no TLS at all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import ClassVar

from kubeloop.client.access import Access
from kubeloop.client.http1 import Http1
from kubeloop.client.http2 import Http2
from kubeloop.client.http2_connection import NotSpoken
from kubeloop.client.limits import Share
from kubeloop.client.resolver import OwnThreads, Refuse, unrefused
from kubeloop.client.sockets import Sockets
from kubeloop.client.transport import Carrier, Outgoing, Response
from kubeloop.errors import KubeconfigError


class Channel:
    """The transport to one server; made by `open_channel`, which closes it."""

    http2: ClassVar[bool] = False

    def __init__(self, access: Access, share: Share | None, refuse: Refuse, ends: AsyncExitStack) -> None:
        self.on_broken: Callable[[str], object] = lambda _: None
        """Told what the server has said that is no HTTP, whoever was listening."""
        self._access, self._ends = access, ends
        self._resolver, self._sockets = OwnThreads(refuse=refuse), Sockets()
        ends.push_async_callback(self._sockets.end)
        self._http1: Http1 | None = None
        self._http2: Http2 | None = None
        if not (self.http2 and access.server.startswith("https:")) or access.proxy:
            self._over_http1()
            return
        made = self._http2 = Http2(access, self._resolver, self._sockets.new, share=share, on_broken=self._broken)
        ends.push_async_callback(made.close)

    async def send(self, asking: Outgoing) -> Response:
        """The answer; raises an OSError, an error of aiohttp's, or NotHttp."""
        if self._http2 is not None:
            try:
                return await self._http2.send(asking)
            except NotSpoken:
                self._http2 = None  # and what it has under way goes on
        return await self._over_http1().send(asking)

    def _over_http1(self) -> Http1:
        if self._http1 is None:
            self._http1 = Http1(self._access, self._resolver, self._sockets.new)
            self._ends.push_async_callback(self._http1.close)
        return self._http1

    def _broken(self, words: str) -> None:
        self.on_broken(words)


OpenChannel = Callable[[Access, Share | None], AbstractAsyncContextManager[Carrier]]


@asynccontextmanager
async def open_channel(access: Access, share: Share | None, refuse: Refuse = unrefused) -> AsyncGenerator[Channel]:
    """The way to one API server; raises KubeconfigError when its certificates are unusable."""
    async with AsyncExitStack() as ends:
        try:
            channel = Channel(access, share, refuse, ends)
        except ValueError as error:
            raise KubeconfigError("the kubeconfig's server is not a URL") from error
        yield channel


def speak_http2(speak: bool) -> None:  # noqa: FBT001 - it is what the name says
    """Whether HTTP/2 is spoken at all; for the whole process, so `__main__` calls it once."""
    Channel.http2 = speak
