"""Whether the places of users' endpoints take connections, and which are never tried."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence

import pytest

from kubeloop.client.resolver import FAILED_LIFETIME, LIFETIME, Resolver
from modelplane_operator.api import ModelEndpoint
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.endpoint.outside import checks, place_of
from modelplane_operator.routing.endpoint.plan import Reached
from tests.support.waiting import until

ALLOWED = Reach(allowed=("127.0.0.1/32", "allowed.example"))


def lookup(name: str) -> Sequence[str]:
    match name:
        case "gone.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        case "busy.example":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        case _:
            return ["127.0.0.1"]


@pytest.fixture
async def taken() -> AsyncIterator[tuple[int, list[object]]]:
    """A port that takes connections, and those that it has taken."""
    met: list[object] = []

    def serve(_: object, writer: asyncio.StreamWriter) -> None:
        met.append(writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], met


async def reached(url: str, reach: Reach = ALLOWED, resolver: Resolver | None = None) -> Reached:
    spec = {"metadata": {"name": "one", "namespace": "team"}, "spec": {"url": url}}
    place = place_of(ModelEndpoint.parse(spec), reach)
    assert place is not None
    resolver = resolver or Resolver(asyncio.get_running_loop().time, lookup)
    return await checks(resolver, lambda _, __: None).ask(place)


@pytest.mark.parametrize("host", ["127.0.0.1", "allowed.example"])
async def test_a_place_that_takes_a_connection_is_there(taken: tuple[int, list[object]], host: str) -> None:
    port, met = taken
    assert await reached(f"https://{host}:{port}/v1") == Reached("")
    assert len(met) == 1


async def test_a_place_that_refuses_says_so_to_everybody() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        refused = Reached(f"host 127.0.0.1 refuses connections to port {port}", certain=True)
        assert await reached(f"http://127.0.0.1:{port}") == refused


async def test_a_name_that_does_not_exist_is_told_from_one_that_nobody_can_tell_of() -> None:
    assert await reached("https://gone.example") == Reached(
        "host gone.example cannot be resolved (Name or service not known): correct the name", certain=True
    )
    assert await reached("https://busy.example") == Reached(
        "host busy.example cannot be resolved (Temporary failure in name resolution): check the DNS of the hub, and the"
        " name servers of that domain",
        certain=True,
    )


async def test_an_address_of_before_does_not_stand_for_a_name_that_nobody_can_tell_of_now(
    taken: tuple[int, list[object]],
) -> None:
    """Traefik asks for every connection, and has no other answer than we have."""
    now, answers = [0.0], [True]

    def flaky(_: str) -> Sequence[str]:
        if answers[0]:
            return ["127.0.0.1"]
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    resolver, url = Resolver(lambda: now[0], flaky), f"https://flaky.example:{taken[0]}"
    assert await reached(url, resolver=resolver) == Reached("")

    answers[0], now[0] = False, LIFETIME
    await until(lambda: bool((found := resolver.find("flaky.example", "team")) and found.error), "the failure")
    found = await reached(url, resolver=resolver)
    assert "flaky.example cannot be resolved" in found.lack
    assert found.certain
    assert resolver.addresses("flaky.example", "team") == {"127.0.0.1"}, "where requests may go is still known"

    answers[0], now[0] = True, now[0] + FAILED_LIFETIME
    await until(lambda: not ((found := resolver.find("flaky.example", "team")) and found.error), "it to be resolved")
    assert await reached(url, resolver=resolver) == Reached("")


async def test_nobody_connects_where_endpoints_may_not_lead(taken: tuple[int, list[object]]) -> None:
    port, met = taken
    assert await reached(f"https://inward.example:{port}", Reach()) == Reached("")
    spec = {"metadata": {"name": "one", "namespace": "team"}, "spec": {"url": f"https://127.0.0.1:{port}"}}
    assert place_of(ModelEndpoint.parse(spec), Reach()) is None
    assert met == []
