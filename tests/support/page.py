"""The page of a made-up fleet, served as `modelplane page` serves it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from aiohttp import web

from kubeloop.client.access import Access
from kubeloop.resource import of
from modelplane_operator.cli.kubeconfig import HubTarget
from modelplane_operator.cli.page.live import Live
from modelplane_operator.cli.page.server import Server

TOKEN = "t0ken"  # noqa: S105
_versions = count(1)


@dataclass
class Page:
    """What is served, and where."""

    live: Live
    url: str

    @property
    def address(self) -> str:
        return f"{self.url}/#token={TOKEN}"

    def put(self, *objects: Any) -> None:
        """Have the watches tell of these."""
        for one in objects:
            manifest = json.loads(json.dumps(one.to_manifest(), default=str))
            metadata = manifest["metadata"]
            metadata["uid"] = metadata.get("uid") or f"uid-of-{one.key}"
            metadata["resourceVersion"] = str(next(_versions))
            informer = self.live.connection.find(of(type(one)))
            assert informer is not None
            informer.on_write(manifest)

    def drop(self, one: Any) -> None:
        informer = self.live.connection.find(of(type(one)))
        assert informer is not None
        informer.on_delete(one.key, one.metadata.uid or f"uid-of-{one.key}")


@asynccontextmanager
async def page(objects: Iterable[Any] = (), *, namespace: str = "") -> AsyncGenerator[Page]:
    target = HubTarget(Access("https://hub.invalid:6443"), "ml-team", "prod")
    live = Live(target, namespace, lambda: target)
    for informer in live.connection.informers:
        informer.synced = True
    runner = web.AppRunner(Server(live, TOKEN).application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    looking = asyncio.create_task(live._refresh())
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found = Page(live, f"http://127.0.0.1:{runner.addresses[0][1]}")
        found.put(*objects)
        yield found
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        await runner.cleanup()
