"""Our client on the API server that all tests share, and between them the fault proxy where a test asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kubeloop.client.access import Access, read_kubeconfig
from kubeloop.client.channel import Channel
from kubeloop.client.kube import Kube, connect
from localfleet.faultproxy.calls import read_call
from localfleet.faultproxy.client import FaultProxy, start
from localfleet.faultproxy.floods import flood
from tests.support.api import Api

Manifest = dict[str, Any]


@pytest.fixture(autouse=True)
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is spoken to servers that speak it: these tests are about HTTP/2 unless they say something else."""
    protocol = getattr(request, "param", "h2")
    monkeypatch.setattr(Channel, "http2", protocol == "h2")
    return protocol


BOTH = pytest.mark.parametrize("protocol", ["h2", "http/1.1"], indirect=True)


@pytest.fixture(scope="module")
def access(api: Api) -> Access:
    return read_kubeconfig(api.server.kubeconfig.read_text())


@pytest.fixture
async def kube(access: Access) -> AsyncIterator[Kube]:
    async with connect(access) as kube:
        yield kube


@pytest.fixture
async def namespace(kube: Kube, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own."""
    made = await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}})
    return made["metadata"]["name"]


@pytest.fixture(scope="module")
async def proxy_process(api: Api, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FaultProxy]:
    async with start(api.server.kubeconfig, tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture
async def proxy(proxy_process: FaultProxy) -> AsyncIterator[FaultProxy]:
    """The fault proxy, with nothing recorded and no rules."""
    await proxy_process.reset()
    yield proxy_process
    await proxy_process.reset()


@pytest.fixture
def access_through(proxy: FaultProxy) -> Access:
    """The way to the API server by the fault proxy."""
    return read_kubeconfig(proxy.kubeconfig.read_text(), folder=Path("/"))


@pytest.fixture
async def through(access_through: Access) -> AsyncIterator[Kube]:
    """Our client behind the fault proxy."""
    async with connect(access_through) as kube:
        yield kube


ConfigMap = Callable[..., Manifest]


@pytest.fixture
def config_map(namespace: str) -> ConfigMap:
    """A config map in the test's namespace: name, data, and more metadata."""

    def build(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Manifest:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace, **metadata},
            "data": data or {},
        }

    return build


@dataclass
class Flooding:
    """A server that answers everything in one way."""

    kind: str = ""
    asked: list[str] = field(default_factory=list[str])


@pytest.fixture
async def flooding() -> AsyncIterator[tuple[Access, Flooding]]:
    known = Flooding()

    async def answer(request: web.Request) -> web.StreamResponse:
        known.asked.append(request.path_qs)
        call = read_call(request.method, request.path, request.query_string, request.headers)
        return await flood(request, call, known.kind)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield Access(f"http://127.0.0.1:{runner.addresses[0][1]}"), known
    await runner.cleanup()
