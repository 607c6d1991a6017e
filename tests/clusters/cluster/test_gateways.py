"""Whether gateways answer, by names that clusters tell."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from threading import Event
from typing import Any

import pytest

from modelplane_operator.clusters.cluster import gateways
from modelplane_operator.clusters.cluster.gateways import OF_A_CLUSTER, REMEMBER_SECONDS, Gateways


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Something that takes connections."""
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


class Names:
    """Name servers, of which some answer when they are let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held = Event()

    def lookup(self, host: str, port: int, *_: object) -> list[Any]:
        self.asked.append(host)
        if host.startswith("slow"):
            self.held.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("127.0.0.9", "127.0.0.1")]


async def test_slow_names_of_a_cluster_are_few_at_once_and_hold_up_nobody(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "CONNECT_SECONDS", 0.2)
    names = Names()
    asked = Gateways(lambda: 0.0, names.lookup)
    slow = [asyncio.create_task(asked.answers("hostile", f"slow-{n}.example", port)) for n in range(64)]

    assert await asked.answers("west", "gateway.example", port), "by the second of its addresses"
    assert await asyncio.to_thread(lambda: "done") == "done"
    assert not any(await asyncio.gather(*slow))
    assert len([name for name in names.asked if name.startswith("slow")]) == OF_A_CLUSTER
    names.held.set()


async def test_an_answer_is_remembered_for_some_seconds_and_no_longer(port: int) -> None:
    now, names = [0.0], Names()
    asked = Gateways(lambda: now[0], names.lookup)

    assert [await asked.answers("west", f"{n}.example", port) for n in (1, 1, 2)] == [True] * 3
    assert await asked.answers("west", "127.0.0.1", port)
    assert names.asked == ["1.example", "2.example"], "and never for an address"
    now[0] = REMEMBER_SECONDS + 1
    assert await asked.answers("west", "3.example", port)
    assert list(asked._probes) == [("west", "3.example", port)], "nothing grows with the names that a cluster tells"
