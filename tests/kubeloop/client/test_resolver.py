"""Names and what they stand for: nobody waits for an answer, and nobody's slow names are in the way of others'."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from kubeloop.client.kube import Kube
from kubeloop.client.resolved import Resolved
from kubeloop.client.resolver import LIFETIME, OF_A_NAMESPACE, PATIENCE, OwnThreads, Resolver
from kubeloop.errors import Forbidden
from kubeloop.objects import Manifest
from kubeloop.types import NODE, ResourceType
from modelplane_operator.routing.endpoint.hub_networks import LIFETIME as RANGES_LIFETIME
from modelplane_operator.routing.endpoint.hub_networks import HubRanges, join_networks
from tests.support.waiting import until


class Names:
    """A resolver's other side: answers at once, or only when it is let."""

    def __init__(self) -> None:
        self.known: dict[str, Sequence[str]] = {}
        self.asked: list[str] = []
        self.held = threading.Event()

    def lookup(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        if name.startswith("slow"):
            assert self.held.wait(60)
        if name not in self.known:
            raise OSError(-2, "Name or service not known")
        return self.known[name]


@pytest.fixture
def names() -> Names:
    return Names()


async def found(resolver: Resolver, name: str, namespace: str = "team") -> Resolved:
    """What is found out in the end."""
    await until(lambda: resolver.find(name, namespace) is not None, f"{name} to be found out")
    answer = resolver.find(name, namespace)
    assert answer is not None
    return answer


async def test_a_name_is_found_out_beside_and_asked_for_again_after_a_while(names: Names) -> None:
    now = [0.0]
    resolver = Resolver(lambda: now[0], names.lookup)
    names.known["a.example"] = ["192.0.2.1", "2001:db8::1"]

    assert resolver.find("a.example", "team") is None
    assert (await found(resolver, "a.example")).addresses == (ip_address("192.0.2.1"), ip_address("2001:db8::1"))
    assert len(names.asked) == 1

    now[0] += LIFETIME
    names.known["a.example"] = ["10.0.0.1"]
    changed = Resolved((ip_address("10.0.0.1"),))
    await until(lambda: resolver.find("a.example", "team") == changed, "the change to be seen")
    assert len(names.asked) == 2


async def test_what_was_known_stays_when_nobody_can_say(names: Names) -> None:
    now = [0.0]
    resolver = Resolver(lambda: now[0], names.lookup)
    names.known["a.example"] = ["10.0.0.1"]
    await found(resolver, "a.example")
    names.known.clear()
    now[0] += LIFETIME

    both = Resolved((ip_address("10.0.0.1"),), "Name or service not known")
    await until(lambda: resolver.find("a.example", "team") == both, "the failure to be seen")


async def test_slow_names_of_one_namespace_are_in_nobody_elses_way_and_given_up(names: Names) -> None:
    now = [0.0]
    resolver = Resolver(lambda: now[0], names.lookup)
    slow = [f"slow-{number}.example" for number in range(3 * OF_A_NAMESPACE)]
    names.known["a.example"] = ["192.0.2.1"]

    assert [resolver.find(name, "hostile") for name in slow] == [None] * len(slow)
    assert len(names.asked) <= OF_A_NAMESPACE
    assert (await found(resolver, "a.example", "team")).addresses

    now[0] += PATIENCE
    assert {resolver.find(name, "hostile") for name in slow} == {Resolved(error="no answer within 5 s")}
    names.held.set()


def test_ranges_of_many_nodes_are_few() -> None:
    nodes = [{"spec": {"podCIDRs": [f"10.1.{number}.0/24", f"fd00:{number:x}::/64"]}} for number in range(256)]
    odd = [{"spec": {"podCIDRs": ["not-a-network"]}}, {"spec": {}}, {}]

    found = join_networks([*nodes, *odd], "podCIDRs")

    assert found[0] == ip_network("10.1.0.0/16")
    assert len(found) == 1 + 256


async def test_the_hubs_own_addresses_are_read_of_its_nodes_and_kept_while_it_does_not_tell() -> None:
    told = [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "ExternalIP", "address": "2001:db8::7"}]
    node = {"spec": {}, "status": {"addresses": [*told, {"type": "Hostname", "address": "node-7"}, {}]}}

    class Hub:
        nodes: ClassVar[list[Manifest] | None] = [node, {}]

        async def list(self, kind: ResourceType) -> SimpleNamespace:
            if self.nodes is None:
                raise Forbidden("no")
            return SimpleNamespace(items=self.nodes if kind == NODE else [])

    hub, now = Hub(), [0.0]
    ranges = HubRanges(lambda: cast(Kube, hub), lambda: now[0])
    known = {ip_address("10.0.0.7"), ip_address("2001:db8::7")}

    assert (await ranges.find()).nodes == known
    Hub.nodes, now[0] = None, RANGES_LIFETIME
    assert (await ranges.find()).nodes == known


async def test_names_of_many_silent_clusters_hold_up_no_other_and_are_asked_for_once(names: Names) -> None:
    """The loop's own threads are at most 32, and everybody's."""

    def lookup(host: str, *_: object) -> list[Any]:
        address = names.lookup(host)[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))]

    names.known = {"quick.example": ["192.0.2.1"], **{f"slow-{n}.example": ["192.0.2.2"] for n in range(64)}}
    slow = [OwnThreads(lookup) for _ in range(64)]
    waiting = [asyncio.create_task(one.resolve(f"slow-{n}.example", 443)) for n, one in enumerate(slow)]
    again = [asyncio.create_task(one.resolve(f"slow-{n}.example", 443)) for n, one in enumerate(slow)]
    await until(lambda: len(names.asked) == 64, "all of them to be asked about")

    (found,) = await OwnThreads(lookup).resolve("quick.example", 443)
    assert (found["host"], found["port"], found["hostname"]) == ("192.0.2.1", 443, "quick.example")
    assert await asyncio.to_thread(lambda: "done") == "done"
    again[0].cancel()
    names.held.set()
    assert {found["host"] for (found,) in await asyncio.gather(*waiting)} == {"192.0.2.2"}
    assert len(names.asked) == 65
    with pytest.raises(OSError, match="not known"):
        await OwnThreads(lookup).resolve("missing.example", 443)
