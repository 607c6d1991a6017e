"""The web server of this process, and the pages that Kubernetes and Prometheus ask for: /healthz, /readyz and /metrics.

Kopf's own endpoint has one path and cannot say no.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

IN_A_THREAD = 2**16  # bytes, and more, that are compressed for whoever asks for it

Problems = Callable[[], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Moment(Collector):
    """What a registry told a moment ago: to write it down takes four times as long, which the event loop need not."""

    told: Sequence[Metric]

    def collect(self) -> Iterator[Metric]:
        return iter(self.told)


async def _collected(metrics: CollectorRegistry) -> AsyncGenerator[Metric]:
    """All of them. Between two, others have their turn: those of a thousand clusters take a third of a second."""
    for family in metrics.collect():
        yield family
        await asyncio.sleep(0)


@asynccontextmanager
async def answering(app: web.Application, listen: tuple[str, int], *, grace: float) -> AsyncGenerator[None]:
    """Answer while the block runs; raises OSError when the address is taken.

    `grace`: the seconds that requests have which are being answered at its end.
    """
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=grace)
    await runner.setup()
    try:
        host, port = listen
        await web.TCPSite(runner, host or None, port).start()
        yield
    finally:
        await runner.cleanup()


def serving(
    listen: tuple[str, int], *, health: Problems, readiness: Problems, metrics: CollectorRegistry
) -> AbstractAsyncContextManager[None]:
    """Show the pages while the block runs."""

    def page(problems: Problems) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(_: web.Request) -> web.StreamResponse:
            found = problems()
            return web.Response(status=503 if found else 200, text="\n".join(found or ("ok",)) + "\n")

        return answer

    async def exposition(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        moment = Moment([family async for family in _collected(metrics)])
        body = await asyncio.to_thread(encode, moment)
        found = web.Response(body=body, headers={"Content-Type": content_type}, zlib_executor_size=IN_A_THREAD)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            found.enable_compression(web.ContentCoding.gzip)
        return found

    app = web.Application()
    app.router.add_get("/healthz", page(health))
    app.router.add_get("/readyz", page(readiness))
    app.router.add_get("/metrics", exposition)
    return answering(app, listen, grace=1.0)
