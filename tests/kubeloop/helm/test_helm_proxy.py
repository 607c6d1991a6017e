"""What leads Helm to a cluster, and the real Helm behind it, at the mercy of a cluster that redirects."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from kubeloop.client.access import Access, write_kubeconfig
from kubeloop.helm import proxy as helm_proxy
from kubeloop.helm.command import HelmCommand, HelmError
from kubeloop.helm.proxy import HANDSHAKE, proxy_to
from localfleet import binaries
from localfleet.network import free_ports
from tests.support.charts import pack
from tests.support.waiting import SECONDS, until

CANARY = "canary-of-another-server"
HELLO = HANDSHAKE + b"\x03\x01 hello"
DONE, REFUSED, UNREACHABLE, NOT_LISTENING = 0, 2, 4, 5
EMPTY = {"apiVersion": "v1", "kind": "SecretList", "metadata": {"resourceVersion": "1"}, "items": []}
KINDS = [
    {"name": "configmaps", "singularName": "", "namespaced": True, "kind": "ConfigMap", "verbs": ["get", "create"]},
    {"name": "namespaces", "singularName": "", "namespaced": False, "kind": "Namespace", "verbs": ["get", "create"]},
]
ANSWERS = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": KINDS},
    "/openapi/v3": {"paths": {}},
    "/api/v1/namespaces/apps/secrets": EMPTY,
}


@dataclass(slots=True)
class Peer:
    """A server that echoes what it is sent, after an answer to a CONNECT where it is a proxy."""

    port: int = 0
    heads: list[str] = field(default_factory=list[str])
    open: int = 0
    status: int = 0
    """What it answers to a CONNECT; 0: it is no proxy."""

    async def serve(self, asks: StreamReader, told: StreamWriter) -> None:
        self.open += 1
        if self.status:
            self.heads.append((await asks.readuntil(b"\r\n\r\n")).decode())
            told.write(f"HTTP/1.1 {self.status} As asked\r\nVia: 1.1 it\r\n\r\n".encode())
        with closing(told), suppress(OSError):
            while said := await asks.read(1000):
                told.write(said)
        self.open -= 1


@asynccontextmanager
async def peer(host: str = "127.0.0.1", status: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    made = Peer(status=status)
    server = await asyncio.start_server(made.serve, host, 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


def certified() -> tuple[str, ssl.SSLContext]:
    """An authority's certificate, and TLS for a server on loopback that has one of it."""
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    return authority.cert_pem.bytes().decode(), tls


async def asked(proxy: str, host: str, port: int, said: bytes = b"") -> tuple[int, bytes]:
    """What a client of SOCKS is answered, and what it then hears for an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.rpartition(":")[2]))
    try:
        where = b"\x04" + ip_address(host).packed if ":" in host else b"\x03" + bytes([len(host)]) + host.encode()
        if host.replace(".", "").isdigit():
            where = b"\x01" + ip_address(host).packed
        writer.write(b"\x05\x01\x00\x05\x01\x00" + where + port.to_bytes(2, "big"))
        code = (await reader.readexactly(2 + 10))[3]
        with suppress(OSError):  # it has ended already
            writer.write(said)
            writer.write_eof()
        return code, await reader.read()
    finally:
        writer.close()


async def test_it_leads_to_the_server_and_nowhere_else() -> None:
    async with peer() as server, peer() as other, proxy_to(Access(f"https://127.0.0.1:{server.port}")) as proxy:
        assert await asked(proxy, "127.0.0.1", server.port, HELLO) == (DONE, HELLO)
        for host, port in (("127.0.0.1", other.port), ("127.0.0.2", server.port), ("localhost", server.port)):
            assert await asked(proxy, host, port, HELLO) == (REFUSED, b"")
        assert await asked(proxy, "169.254.169.254", 80) == (REFUSED, b"")


@pytest.mark.parametrize(
    ("server", "listens", "helm"),
    [
        ("https://LocalHost", "127.0.0.1", "localhost"),
        ("https://[::1]", "::1", "::1"),
        ("https://[0:0::0:1]", "::1", "::1"),
        ("https://[::ffff:127.0.0.1]", "127.0.0.1", "127.0.0.1"),
    ],
)
async def test_a_host_is_the_same_however_it_is_written(server: str, listens: str, helm: str) -> None:
    async with peer(listens) as there, proxy_to(Access(f"{server}:{there.port}/clusters/a")) as proxy:
        assert await asked(proxy, helm, there.port, HELLO) == (DONE, HELLO)


async def test_a_redirect_does_not_take_tls_away() -> None:
    """Whoever answers for the server's name may have it stand for another address by then."""
    plain = b"GET /latest/meta-data HTTP/1.1\r\n\r\n"
    async with peer() as there:
        for scheme, heard in (("https", b""), ("http", plain)):
            async with proxy_to(Access(f"{scheme}://127.0.0.1:{there.port}")) as proxy:
                assert await asked(proxy, "127.0.0.1", there.port, plain) == (DONE, heard)


async def test_a_server_that_is_gone_is_told_as_gone() -> None:
    (port,) = free_ports(1)
    async with proxy_to(Access(f"https://127.0.0.1:{port}")) as proxy:
        assert await asked(proxy, "127.0.0.1", port) == (NOT_LISTENING, b"")
    async with proxy_to(Access(f"https://nowhere.invalid:{port}")) as proxy:
        assert await asked(proxy, "nowhere.invalid", port) == (UNREACHABLE, b"")


@pytest.mark.parametrize(("status", "code"), [(200, DONE), (407, UNREACHABLE)])
async def test_a_proxy_of_the_kubeconfig_leads_there_as_ever(status: int, code: int) -> None:
    async with peer(status=status) as next_:
        access = Access("https://[fd00::1]", proxy=f"http://me:p%40ss@127.0.0.1:{next_.port}")
        async with proxy_to(access) as proxy:
            assert (await asked(proxy, "fd00::1", 443, HELLO))[0] == code
            assert await asked(proxy, "127.0.0.1", next_.port, HELLO) == (REFUSED, b"")

    (head,) = next_.heads
    known = base64.b64encode(b"me:p@ss").decode()
    assert (
        head == f"CONNECT [fd00::1]:443 HTTP/1.1\r\nHost: [fd00::1]:443\r\nProxy-Authorization: Basic {known}\r\n\r\n"
    )


async def test_a_proxy_of_the_kubeconfig_proves_who_it_is() -> None:
    known, tls = certified()
    other, _ = certified()
    async with peer(status=200, tls=tls) as next_:
        for trusted, code in ((known, DONE), (other, UNREACHABLE)):
            access = Access("https://cluster.invalid", authority=trusted, proxy=f"https://127.0.0.1:{next_.port}")
            async with proxy_to(access) as proxy:
                assert await asked(proxy, "cluster.invalid", 443) == (code, b"")
    assert next_.heads == ["CONNECT cluster.invalid:443 HTTP/1.1\r\nHost: cluster.invalid:443\r\n\r\n"]


async def test_a_connection_that_helm_ends_is_not_kept_at_the_kubeconfigs_proxy() -> None:
    known, tls = certified()
    async with peer(status=200, tls=tls) as next_:
        access = Access("https://cluster.invalid", authority=known, proxy=f"https://127.0.0.1:{next_.port}")
        async with proxy_to(access) as proxy, asyncio.timeout(SECONDS):
            assert (await asked(proxy, "cluster.invalid", 443, HELLO))[0] == DONE
            await until(lambda: not next_.open, "the connection to the proxy to end")


async def test_nothing_is_left_of_it() -> None:
    async with peer() as there:
        async with proxy_to(Access(f"http://127.0.0.1:{there.port}")) as proxy:
            port = int(proxy.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            where = b"\x01\x7f\0\0\x01" + there.port.to_bytes(2, "big")
            writer.write(b"\x05\x01\x00\x05\x01\x00" + where + b"some")
            assert (await reader.readexactly(2 + 10 + 4))[-4:] == b"some"
        await until(lambda: not there.open, "the connection to the server to end")
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_server_that_floods_helm_takes_its_share_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helm_proxy, "RATE", 40.0)
    monkeypatch.setattr(helm_proxy, "BURST", 1.0)
    much = HELLO + bytes(512 * 1024)
    async with peer() as there, proxy_to(Access(f"https://127.0.0.1:{there.port}")) as proxy:
        began = asyncio.get_running_loop().time()
        assert await asked(proxy, "127.0.0.1", there.port, much) == (DONE, much)
        assert asyncio.get_running_loop().time() - began > 0.3


# The real Helm -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(
    answer: Callable[[web.Request], Awaitable[web.Response]], host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    yield f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}"
    await runner.cleanup()


def honest(request: web.Request) -> web.Response:
    """What an API server says on which there is nothing yet."""
    if request.path == "/openapi/v2":
        return web.Response(content_type="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
    if answer := ANSWERS.get(request.path):
        return web.json_response(answer)
    missing = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
    return web.json_response(missing, status=404)


async def complaint(server: str, folder: Path) -> str:
    """What Helm says to a cluster on which it cannot install."""
    (folder / "chart").mkdir()
    chart = pack(folder / "chart", "toy", "v1.0.0")
    async with proxy_to(access := Access(server)) as proxy:
        (folder / "kubeconfig").write_text(write_kubeconfig(replace(access, proxy=proxy)))
        helm = HelmCommand(
            str(binaries.ensure("helm")["helm"]),
            folder / "kubeconfig",
            {"HOME": str(folder), "PATH": os.environ["PATH"]},
            10.0,
            2**29,
            lambda: None,
        )
        with pytest.raises(HelmError) as caught:
            await helm.install_or_upgrade("toy", chart, {}, namespace="apps")
    return str(caught.value)


@pytest.mark.fleet
@pytest.mark.parametrize(("code", "method"), [(302, "GET"), (307, "POST")])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_helm_follows_a_cluster_nowhere(code: int, method: str, host: str, tmp_path: Path) -> None:
    called: list[str] = []
    redirected: list[str] = []

    async def inside(request: web.Request) -> web.Response:
        called.append(request.path)
        return web.json_response({"SecretAccessKey": CANARY})

    async def hostile(request: web.Request) -> web.Response:
        if method == "POST" and request.method == "GET":
            return honest(request)
        redirected.append(request.method)
        return web.Response(status=code, headers={"Location": f"{target}/latest/meta-data/"})

    async with serving(inside) as target, serving(hostile, host) as server:
        said = await complaint(server, tmp_path)

    assert redirected, said
    assert set(redirected) == {method}
    assert called == []
    place = target.removeprefix("http://")
    assert f'"{target}/latest/meta-data/": {place}: connection not allowed by ruleset' in said, said


@pytest.mark.fleet
@pytest.mark.parametrize(
    ("path", "status", "said", "kept"),
    [
        ("/api/v1/namespaces", 201, json.dumps({"SecretAccessKey": CANARY}), "'Kind' is missing in '...'"),
        ("/api/v1/namespaces", 201, json.dumps({"keys": [CANARY] * 4000}), "helm ended with 1"),
        ("/version", 500, f"a '{CANARY}'\nand \"more\"", 'error on the server ("...") has prevented the request'),
    ],
    ids=["object", "long", "text"],
)
async def test_of_what_a_server_answers_helm_quotes_nothing(
    path: str, status: int, said: str, kept: str, tmp_path: Path
) -> None:
    async def hostile(request: web.Request) -> web.Response:
        if request.path == path and (request.method == "POST" or status == 500):
            return web.Response(
                status=status, text=said, content_type="application/json" if status == 201 else "text/plain"
            )
        return honest(request)

    async with serving(hostile) as server:
        words = await complaint(server, tmp_path)

    assert kept in words
    assert CANARY not in words
