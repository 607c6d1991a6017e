"""The web server that the operator and the key service have."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kubeloop.probes import serve_app, serve_probes
from localfleet.network import free_ports
from modelplane_operator.routing.service import key_service


async def test_what_is_being_answered_at_the_end_is_answered_and_then_nobody_listens() -> None:
    (port,) = free_ports(1)
    begun, released, app = asyncio.Event(), asyncio.Event(), web.Application()

    async def slow(_: web.Request) -> web.Response:
        begun.set()
        await released.wait()
        return web.Response(text="after all")

    app.router.add_get("/", slow)
    async with aiohttp.ClientSession() as session:
        async with serve_app(app, ("127.0.0.1", port), grace=60.0):
            asked = asyncio.create_task(session.get(f"http://127.0.0.1:{port}/"))
            await begun.wait()
            asyncio.get_running_loop().call_soon(released.set)
        assert await (await asked).text() == "after all"
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://127.0.0.1:{port}/")


async def test_a_page_says_what_is_wrong_and_an_address_is_one_servers() -> None:
    (port,) = free_ports(1)
    listen = ("127.0.0.1", port)
    pages = serve_probes(listen, health=lambda: (), readiness=lambda: ("not yet",), metrics=CollectorRegistry())
    async with pages, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        found = {path: await session.get(path) for path in ("/healthz", "/readyz", "/metrics")}
        assert {path: (one.status, await one.text()) for path, one in found.items()} == {
            "/healthz": (200, "ok\n"),
            "/readyz": (503, "not yet\n"),
            "/metrics": (200, ""),
        }
        with pytest.raises(OSError, match="address already in use"):
            async with key_service.serve_keys(listen, key_service.Keyring(cast("Any", None), lambda: 0.0)):
                pass


@pytest.mark.parametrize(("asked", "encoding"), [("gzip, deflate", "gzip"), ("identity", None)])
async def test_metrics_are_compressed_for_who_asks_for_it(asked: str, encoding: str | None) -> None:
    (port,) = free_ports(1)
    registry = CollectorRegistry()
    Gauge("many", "Of each cluster.", ["cluster"], registry=registry).labels("east").set(1)
    for number in range(5000):
        Gauge(f"family_{number}", "One of many.", registry=registry)
    pages = serve_probes(("127.0.0.1", port), health=lambda: (), readiness=lambda: (), metrics=registry)
    async with pages, aiohttp.ClientSession(f"http://127.0.0.1:{port}", auto_decompress=False) as session:
        answer = await session.get("/metrics", headers={"Accept-Encoding": asked})
        body = await answer.read()
    assert answer.headers.get("Content-Encoding") == encoding
    assert b'many{cluster="east"} 1.0' in (gzip.decompress(body) if encoding else body)


async def test_between_two_families_of_metrics_others_have_their_turn() -> None:
    (port,) = free_ports(1)
    turns, seen, registry = [0], list[int](), CollectorRegistry()

    class Families(Collector):
        def collect(self) -> Iterator[Metric]:
            for number in range(3):
                seen.append(turns[0])
                yield GaugeMetricFamily(f"family_{number}", "One of three.", value=number)

        def describe(self) -> Iterator[Metric]:
            return iter(())

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    registry.register(Families())
    pages = serve_probes(("127.0.0.1", port), health=lambda: (), readiness=lambda: (), metrics=registry)
    async with pages, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        beside = asyncio.create_task(others())
        text = await (await session.get("/metrics")).text()
        beside.cancel()
    assert [f"family_{number} {number}.0" in text for number in range(3)] == [True] * 3
    assert seen == sorted(set(seen)), "each one in another turn"
