"""What is listed again, and when: what is under way each time, what rests seldom, what failed at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kubeloop.errors import ClientError, Unreachable
from modelplane_operator.clouds.resources import DesiredResource, ExistingResource, Inventory, Owner
from modelplane_operator.clouds.view import View
from tests.support.builders import EPOCH

OWNER = Owner("uid", "berlin")
KINDS = ("net", "node")


@dataclass
class _Cloud:
    asked: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    failing: dict[str, ClientError] = field(default_factory=dict[str, ClientError])

    async def observe(self, _: Owner, kinds: Collection[str], now: datetime) -> Inventory:
        self.asked.append(tuple(sorted(kinds)))
        found = tuple(
            ExistingResource(kind, kind, f"{kind}-{now:%M}", "Ready", "uid")
            for kind in kinds
            if kind not in self.failing
        )
        return Inventory(found, now, {kind: error for kind, error in self.failing.items() if kind in kinds})

    async def create(self, owner: Owner, wanted: DesiredResource, token: str) -> str:
        raise NotImplementedError

    async def update(
        self, owner: Owner, wanted: DesiredResource, found: ExistingResource, changed: Collection[str]
    ) -> None:
        raise NotImplementedError

    async def delete(self, found: ExistingResource) -> None:
        raise NotImplementedError


async def test_only_what_is_under_way_is_listed_again() -> None:
    cloud, view = _Cloud(), View()

    await view.refresh(cloud, OWNER, KINDS, (), EPOCH)
    await view.refresh(cloud, OWNER, KINDS, (), EPOCH + timedelta(minutes=1))
    seen = await view.refresh(cloud, OWNER, KINDS, ("node",), EPOCH + timedelta(minutes=2))

    assert cloud.asked == [("net", "node"), ("node",)]
    assert {one.id for one in seen.existing} == {"net-00", "node-02"}
    assert (seen.as_of("net"), seen.as_of("node")) == (EPOCH, EPOCH + timedelta(minutes=2))
    assert seen.at == EPOCH


async def test_what_rests_is_listed_every_five_minutes_or_as_seldom_as_is_said() -> None:
    cloud, view = _Cloud(), View({"net": timedelta(minutes=30)})

    for minute in range(0, 36, 5):
        await view.refresh(cloud, OWNER, KINDS, (), EPOCH + timedelta(minutes=minute))

    assert cloud.asked == [("net", "node"), *[("node",)] * 5, ("net", "node"), ("node",)]


async def test_what_could_not_be_listed_is_asked_for_again_and_is_no_absence() -> None:
    cloud, view = _Cloud(failing={"net": Unreachable("no answer")}), View()

    first = await view.refresh(cloud, OWNER, KINDS, (), EPOCH)
    cloud.failing = {}
    second = await view.refresh(cloud, OWNER, KINDS, (), EPOCH + timedelta(seconds=5))

    assert set(first.unseen) == {"net"}
    assert second.unseen == {}
    assert cloud.asked == [("net", "node"), ("net",)]
