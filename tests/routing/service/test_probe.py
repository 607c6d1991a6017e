"""What a request through the gateway tells, asked of servers that answer as gateways, key services and engines do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from modelplane_operator.routing.service import probe as hub_gateway
from modelplane_operator.routing.service.answer import GatewayAnswer
from modelplane_operator.routing.service.probe import MISSING_KEY, MOST, Asker, ServiceAddress
from tests.support.hub_gateway import PREFIX, Gateway, reply

REFUSAL = f'{{"error": {{"message": "no key", "code": "{MISSING_KEY}"}}}}'
ENVOY = "server: envoy\r\ndate: today\r\ncontent-length: 0\r\n"


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    async with await asyncio.start_server(gateway.serve, "127.0.0.1", 0) as server:
        gateway.port = server.sockets[0].getsockname()[1]
        yield gateway


def unused() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize(
    ("says", "wanted"),
    {
        "an engine": (reply(200, "{}"), GatewayAnswer(200)),
        "an engine that fails": (reply(500), GatewayAnswer(500)),
        "a redirect, which is not followed": (reply(301, "", "location: /elsewhere\r\n"), GatewayAnswer(301)),
        "Traefik without a route": (reply(404, "404 page not found\n"), GatewayAnswer(404, unrouted=True)),
        "Envoy without a route": (reply(404, "", ENVOY), GatewayAnswer(404, unrouted=True)),
        "an engine without a list of models": (reply(404, '{"detail":"Not Found"}'), GatewayAnswer(404)),
        "a provider's bare 404": (reply(404, "", "cf-ray: 1\r\ncontent-length: 0\r\n"), GatewayAnswer(404)),
        "the key service": (reply(401, REFUSAL), GatewayAnswer(401, key_missing=True)),
        "a provider that wants a key": (reply(401, '{"error": {"code": "invalid_api_key"}}'), GatewayAnswer(401)),
        "a body without an end": (f"HTTP/1.1 401 x\r\n\r\n{'[' * 20 * MOST}", GatewayAnswer(401)),
        "no HTTP": ("SSH-2.0\r\n\r\n", GatewayAnswer(lack="gives an answer that is no HTTP")),
        "nothing": ("", GatewayAnswer(lack="closes the connection without an answer")),
    }.values(),
)
async def test_an_answer_tells_who_gave_it(gateway: Gateway, says: str, wanted: GatewayAnswer) -> None:
    gateway.says = lambda _: says

    assert await Asker(lambda: 0.0).ask(gateway.way()) == wanted
    asked = ["v1/models", "health"] if wanted.unrouted else ["v1/models"]
    paths = list(dict.fromkeys(head.split()[1] for head in gateway.asked))  # aiohttp tries again what was cut off
    assert paths == [f"{PREFIX}{path}" for path in asked]
    assert all(f"Host: models.example.com:{gateway.port}\r\n" in head for head in gateway.asked)
    assert not any("authorization" in head.lower() or "cookie" in head.lower() for head in gateway.asked)


async def test_an_engine_that_knows_no_list_of_models_answers_at_its_probe(gateway: Gateway) -> None:
    gateway.says = lambda path: reply(200) if path.endswith("/health") else reply(404)

    assert await Asker(lambda: 0.0).ask(gateway.way()) == GatewayAnswer(200)


async def test_a_request_that_hangs_is_given_up(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_gateway, "ANSWER_SECONDS", 0.2)
    gateway.says = lambda _: "hang"

    assert await Asker(lambda: 0.0).ask(gateway.way()) == GatewayAnswer(
        lack="gives no answer within 0.2 s", silent=True
    )


async def test_a_gateway_that_takes_no_connection_is_not_tried_for_each_service(gateway: Gateway) -> None:
    now = [0.0]
    asker, closed = Asker(lambda: now[0]), unused()
    refused = GatewayAnswer(lack="refuses the connection", connected=False, silent=True)

    assert await asker.ask(gateway.way(port=closed)) == refused
    gateway.port, there = closed, gateway.port
    async with await asyncio.start_server(gateway.serve, "127.0.0.1", closed):
        now[0] = hub_gateway.UNREACHED_SECONDS / 2
        assert await asker.ask(gateway.way()) == refused, "nobody tries again so soon"
        assert gateway.asked == []
        assert await asker.ask(gateway.way(port=there)) == GatewayAnswer(200), "by another way, they do"
        now[0] = hub_gateway.UNREACHED_SECONDS
        assert await asker.ask(gateway.way()) == GatewayAnswer(200)


async def test_one_answer_ends_what_was_noted_of_a_silent_gateway(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that began before that answer and fails after it does not bring it back."""
    now, way = [0.0], gateway.way()
    asker, late = Asker(lambda: now[0]), asyncio.Event()
    silent = GatewayAnswer(lack="takes no connection", connected=False)

    async def slowly(_: Asker, __: ServiceAddress, ___: str) -> GatewayAnswer:
        await late.wait()
        return silent

    with monkeypatch.context() as before:
        before.setattr(Asker, "get", slowly)
        late.set()
        await asker.ask(way)
        now[0] = hub_gateway.PATIENCE
        late.clear()
        slow = asyncio.create_task(asker.ask(way))
        await asyncio.sleep(0)
    assert await asker.ask(way) == GatewayAnswer(200)
    late.set()

    assert await slow == silent
    assert not asker.is_unreachable(way)


async def test_a_gateway_is_unreachable_when_it_has_been_for_a_while() -> None:
    now, way = [0.0], ServiceAddress("127.0.0.1", "http", "127.0.0.1", unused(), PREFIX)
    asker = Asker(lambda: now[0])
    for second in (0.0, hub_gateway.PATIENCE):
        now[0] = second
        assert not asker.is_unreachable(way)
        await asker.ask(way)

    assert asker.is_unreachable(way)
