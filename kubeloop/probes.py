"""The web server of this process for Kubernetes and Prometheus: /healthz, /readyz and /metrics.

Kopf's own endpoint has only one path and cannot report a failure.
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

IN_A_THREAD = 2**16  # bytes from which on a response is compressed in a thread

Problems = Callable[[], Sequence[str]]
"""Returns messages about problems; none if all is well."""


@dataclass(frozen=True, slots=True)
class Moment(Collector):
    """A snapshot of a registry's metrics, so that they can be encoded in a thread, which takes four times as long."""

    metrics: Sequence[Metric]

    def collect(self) -> Iterator[Metric]:
        return iter(self.metrics)


@asynccontextmanager
async def serve_app(app: web.Application, listen: tuple[str, int], *, grace: float) -> AsyncGenerator[None]:
    """Serve while the block runs; raises OSError when the address is in use.

    `grace`: the seconds that current requests have at the end.
    """
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=grace)
    await runner.setup()
    try:
        host, port = listen
        await web.TCPSite(runner, host or None, port).start()
        yield
    finally:
        await runner.cleanup()


def serve_probes(
    listen: tuple[str, int], *, health: Problems, readiness: Problems, metrics: CollectorRegistry
) -> AbstractAsyncContextManager[None]:
    """Serve the pages while the block runs."""

    def page(problems: Problems) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return a handler that responds 503 with the problems, or 200."""

        async def respond(_: web.Request) -> web.StreamResponse:
            result = problems()
            return web.Response(status=503 if result else 200, text="\n".join(result or ("ok",)) + "\n")

        return respond

    async def exposition(request: web.Request) -> web.Response:
        """Respond with all metrics."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        families = list[Metric]()
        for family in metrics.collect():
            families.append(family)
            await asyncio.sleep(0)  # let other tasks run: the metrics of a thousand clusters take a third of a second
        body = await asyncio.to_thread(encode, Moment(families))
        result = web.Response(body=body, headers={"Content-Type": content_type}, zlib_executor_size=IN_A_THREAD)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            result.enable_compression(web.ContentCoding.gzip)
        return result

    app = web.Application()
    app.router.add_get("/healthz", page(health))
    app.router.add_get("/readyz", page(readiness))
    app.router.add_get("/metrics", exposition)
    return serve_app(app, listen, grace=1.0)
