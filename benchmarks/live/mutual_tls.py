"""B17: what mutual TLS between the two gateways adds to a request, side by side with plain http.

A real Traefik, with what its providers make of our objects in a file, and a real Envoy as a cluster's gateway. Each
request goes once by the one way and once by the other, so that a busy moment hits both.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from benchmarks.report import Figure, percentile
from localfleet import binaries
from localfleet.processes import Command, Running, start
from modelplane_operator.api import names
from modelplane_operator.api.certificate import Certificate, Usage
from modelplane_operator.clients.certificates import secret_data
from modelplane_operator.kube.objects import Key

Manifest = dict[str, Any]

FRONT, RELAY, PLAIN, TLS, ENGINE = 18000, 18444, 18080, 18443, 18081
NAME = names.server_name("cluster")
TOKENS = 200  # of an answer that streams
WAYS = ("plain", "mutual")


async def mutual_tls(at_once: int, requests: int) -> AsyncIterator[Figure]:
    """So many requests at a time, so often by each way."""
    async with _gateways() as running, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await _answered(session)
        for path in ("/whole", "/stream"):
            found = await _asked(session, path, at_once, requests if path == "/whole" else requests // 10)
            what = "a whole answer" if path == "/whole" else f"an answer of {TOKENS} pieces"
            for percent in (50, 99):
                plain, mutual = (percentile(found[way], percent) for way in WAYS)
                yield Figure("B17", at_once, f"{what}, plain: p{percent}", round(plain, 2), "ms")
                yield Figure("B17", at_once, f"{what}, mutual TLS: p{percent}", round(mutual, 2), "ms")
                yield Figure("B17", at_once, f"{what}, by plain: p{percent}", round(mutual / plain, 2), "times")
        for way in WAYS:
            before = sum(map(_cpu, running))
            await _asked(session, "/whole", at_once, requests, ways=(way,))
            spent = (sum(map(_cpu, running)) - before) / (requests // at_once * at_once) * 1000
            word = "plain" if way == "plain" else "mutual TLS"
            yield Figure("B17", at_once, f"CPU of both gateways for a whole answer, {word}", round(spent, 3), "ms")


def _cpu(one: Running) -> float:
    """The seconds of processor time that a program has had."""
    fields = Path(f"/proc/{one.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _asked(
    session: aiohttp.ClientSession, path: str, at_once: int, requests: int, ways: Sequence[str] = WAYS
) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {way: [] for way in ways}

    async def ask(count: int) -> None:
        for number in range(count):
            for way in ways if number % 2 else reversed(ways):
                began = time.perf_counter()
                async with session.get(f"http://127.0.0.1:{FRONT}/{way}{path}") as answer:
                    await answer.read()
                assert answer.status == 200
                found[way].append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(ask(requests // at_once) for _ in range(at_once)))
    return found


async def _answered(session: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(60):
        for way in WAYS:
            while True:
                try:
                    async with session.get(f"http://127.0.0.1:{FRONT}/{way}/whole") as answer:
                        if answer.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.2)


async def _engine(request: web.BaseRequest) -> web.StreamResponse:
    if not request.path.endswith("/stream"):
        return web.Response(text="x" * 1024)
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(TOKENS):
        await answer.write(b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n')
        await asyncio.sleep(0)
    await answer.write_eof()
    return answer


@asynccontextmanager
async def _gateways() -> AsyncGenerator[Sequence[Running]]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _certificates(folder)
        (folder / "envoy.json").write_text(json.dumps(_envoy(folder)))
        (folder / "dynamic.yaml").write_text(json.dumps(_dynamic(folder)))
        programs = binaries.ensure("traefik", "envoy")
        runner = web.ServerRunner(web.Server(_engine, access_log=None), handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", ENGINE).start()
        traefik = [programs["traefik"], f"--entryPoints.web.address=127.0.0.1:{FRONT}"]
        traefik += [f"--entryPoints.modelplane.address=127.0.0.1:{RELAY}", "--experimental.fastProxy=true"]
        traefik += ["--entryPoints.modelplane.forwardedHeaders.insecure=true"]
        traefik += [f"--providers.file.filename={folder / 'dynamic.yaml'}"]
        traefik += ["--global.checknewversion=false", "--global.sendanonymoususage=false"]
        envoy = [programs["envoy"], "-c", folder / "envoy.json", "--concurrency", "1", "--disable-hot-restart"]
        running = [
            start(Command(name, argv, folder / f"{name}.log"))
            for name, argv in (("traefik", traefik), ("envoy", envoy))
        ]
        try:
            yield running
        finally:
            for one in running:
                one.end()
            await runner.cleanup()


def _certificates(folder: Path) -> None:
    now, signer = datetime.now(UTC), Key("", "authority")

    def made(name: str, usage: Usage, authority: Manifest | None = None) -> Mapping[str, str]:
        span = now - timedelta(hours=1), now + timedelta(days=1)
        return secret_data(Certificate(name, usage, *span, signer if authority else None), authority)

    authority = {"metadata": {"name": "authority"}, "data": made("bench", "authority")}
    for name, data in (
        ("authority", authority["data"]),
        ("server", made(NAME, "server", authority)),
        ("client", made(names.HUB_NAME, "client", authority)),
    ):
        for key, value in data.items():
            (folder / f"{name}.{key}").write_bytes(base64.b64decode(value))


def _dynamic(folder: Path) -> Manifest:
    """What Traefik's providers make of a service with an endpoint by each way, and of the way to a cluster."""

    def led(url: str, **more: str) -> Manifest:
        return {"loadBalancer": {"servers": [{"url": url}], **more}}

    def pem(name: str) -> str:
        return (folder / name).read_text()

    named = {"headers": {"customRequestHeaders": {"Host": NAME}}}
    return {
        "http": {
            "routers": {
                "plain": {"entryPoints": ["web"], "rule": "PathPrefix(`/plain/`)", "service": "plain"},
                "mutual": {
                    "entryPoints": ["web"],
                    "rule": "PathPrefix(`/mutual/`)",
                    "service": "relay",
                    "middlewares": ["named"],
                },
                "cluster": {"entryPoints": ["modelplane"], "rule": f"Host(`{NAME}`)", "service": "cluster"},
            },
            "middlewares": {"named": named},
            "services": {
                "plain": led(f"http://127.0.0.1:{PLAIN}"),
                "relay": led(f"http://127.0.0.1:{RELAY}"),
                "cluster": led(f"https://127.0.0.1:{TLS}", serversTransport="cluster"),
            },
            "serversTransports": {
                "cluster": {
                    "serverName": NAME,
                    "rootCAs": [pem("authority.tls.crt")],
                    "certificates": [{"certFile": pem("client.tls.crt"), "keyFile": pem("client.tls.key")}],
                    "disableHTTP2": True,
                    "maxIdleConnsPerHost": 200,
                }
            },
        }
    }


def _envoy(folder: Path) -> Manifest:
    """A gateway with the two listeners that ours has."""
    types = "type.googleapis.com/envoy.extensions"
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
    manager = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{types}.filters.http.router.v3.Router"},
            }
        ],
    }
    file = {
        name: {"filename": str(folder / name)} for name in ("server.tls.crt", "server.tls.key", "authority.tls.crt")
    }
    tls = {
        "name": "tls",
        "typed_config": {
            "@type": f"{types}.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": True,
            "common_tls_context": {
                "tls_certificates": [
                    {"certificate_chain": file["server.tls.crt"], "private_key": file["server.tls.key"]}
                ],
                "validation_context": {"trusted_ca": file["authority.tls.crt"]},
            },
        },
    }

    def address(port: int) -> Manifest:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    def listener(name: str, port: int, **more: Any) -> Manifest:
        chain = {"filters": [{"name": "http", "typed_config": manager}], **more}
        return {"name": name, "address": address(port), "filter_chains": [chain]}

    endpoint = {"lb_endpoints": [{"endpoint": {"address": address(ENGINE)}}]}
    engine = {"name": "engine", "load_assignment": {"cluster_name": "engine", "endpoints": [endpoint]}}
    return {
        "static_resources": {
            "listeners": [listener("plain", PLAIN), listener("mutual", TLS, transport_socket=tls)],
            "clusters": [engine],
        }
    }
