"""What is inside the hub is known, or nobody is told that something is outside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.client.kube import Kube
from kubeloop.client.lists import Listing
from kubeloop.errors import ClientError, Forbidden, NotFound, Unreachable
from kubeloop.types import NODE, SERVICE_CIDR, ResourceType
from modelplane_operator.routing.endpoint.hub_networks import LIFETIME, RETRY_AFTER, HubRanges

NODES = [{"spec": {"podCIDRs": ["203.0.113.0/24"]}, "status": {"addresses": [{"address": "198.51.100.7"}]}}]
CIDRS = [{"spec": {"cidrs": ["192.0.2.0/24"]}}]


class Hub:
    """A hub that lists its nodes and the ranges of its Services, or fails."""

    def __init__(self, **failing: ClientError) -> None:
        self.failing, self.asked, self.time = failing, 0, 0.0
        self.ranges = HubRanges(lambda: cast(Kube, SimpleNamespace(list=self.list)), lambda: self.time)

    async def list(self, kind: ResourceType) -> Listing[Any]:
        self.asked += 1
        if error := self.failing.get(kind.kind):
            raise error
        return Listing({NODE: NODES, SERVICE_CIDR: CIDRS}[kind], "1")

    async def found(self) -> tuple[str, ...]:
        known = await self.ranges.find()
        return tuple(map(str, (*known.services, *known.pods, *known.nodes)))


ALL = ("192.0.2.0/24", "203.0.113.0/24", "198.51.100.7")


@pytest.mark.parametrize("kind", ["Node", "ServiceCIDR"])
async def test_a_hub_that_has_not_told_what_is_inside_is_asked_again_soon_and_nothing_is_outside_until_then(
    kind: str,
) -> None:
    hub = Hub(**{kind: Unreachable("no")})
    for _ in range(2):
        with pytest.raises(Unreachable):
            await hub.found()
    asked = hub.asked
    assert asked <= 2, "who asks a moment later gets the same answer"
    hub.failing.clear()
    hub.time += RETRY_AFTER
    assert await hub.found() == ALL
    assert hub.asked == asked + 2


async def test_what_was_known_stays_while_the_hub_does_not_answer_and_is_asked_for_again_soon() -> None:
    hub = Hub()
    assert await hub.found() == ALL
    hub.time, hub.failing = LIFETIME, {"Node": Unreachable("no")}
    assert await hub.found() == ALL
    asked = hub.asked
    hub.time += RETRY_AFTER
    assert await hub.found() == ALL
    assert hub.asked == asked + 2


@pytest.mark.parametrize("error", [Forbidden("no"), NotFound("no")], ids=["refused", "an older hub"])
async def test_that_a_hub_has_no_ranges_of_services_or_does_not_show_them_is_an_answer(error: ClientError) -> None:
    assert await Hub(ServiceCIDR=error).found() == ALL[1:]
