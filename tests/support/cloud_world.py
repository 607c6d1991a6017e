"""The life of a cluster on a cloud that stands in: the real SDK on the wire, and a clock of ours."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from modelplane_operator.clouds.calls import carry_out
from modelplane_operator.clouds.cloud import Cloud
from modelplane_operator.clouds.decide import find_unsettled_kinds
from modelplane_operator.clouds.resources import DesiredResource, Inventory, Kind
from modelplane_operator.clouds.steps import CloudStep
from modelplane_operator.clouds.view import View
from tests.support.cloud_life import OWNER, Life


class Server(Protocol):
    """A stand-in, as a test sees it."""

    now: datetime


HOURS = timedelta(hours=4)
PACE = 20.0
"""Seconds between two looks at least: here a look takes more time than what passes between two."""
ServerT = TypeVar("ServerT", bound=Server)
CloudT = TypeVar("CloudT", bound=Cloud)


@dataclass
class CloudWorld(Generic[ServerT, CloudT]):
    server: ServerT
    cloud: CloudT
    runner: asyncio.Runner
    _life: Life[Self] | None = field(default=None, init=False)
    _view: View = field(default_factory=View, init=False)
    _process: str = field(default="", init=False)

    table: ClassVar[Mapping[str, Kind]]
    stays: ClassVar[Collection[str]]
    """The kinds that are looked for of a cluster that stays."""
    goes: ClassVar[Collection[str]]
    """Those of one that goes."""

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return self.table

    @property
    def now(self) -> datetime:
        return self.server.now

    @now.setter
    def now(self, now: datetime) -> None:
        self.server.now = now

    def live(self, wanted: tuple[DesiredResource, ...], **given: Any) -> Life[Self]:
        """A life that looks as the operator does: for what is under way, and for all when it begins anew or ends."""
        life = Life(self, wanted, **given)
        self._life, self._process = life, ""
        return life

    def seen(self) -> Inventory:
        if self._life is None or self._life.terminating:
            return self.listed()
        if self._process != self._life.process:
            self._view, self._process = View(), self._life.process
        due = find_unsettled_kinds(self._life.records)
        return self.runner.run(self._view.refresh(self.cloud, OWNER, self.stays, due, self.now))

    def listed(self) -> Inventory:
        """All that there is of the cluster."""
        return self.runner.run(self.cloud.observe(OWNER, self.goes, self.now))

    def id_of(self, key: str) -> str:
        return next(one.id for one in self.listed().existing if one.key == key)

    def call(self, step: CloudStep) -> str:
        return self.runner.run(carry_out(self.cloud, step))


def one_of_each(life: Life[Any]) -> None:
    """All that is wanted is there, once."""
    world: CloudWorld[Any, Any] = life.cloud
    found = Counter(one.key for one in world.listed().existing if not one.swept)
    assert found == {one.key: 1 for one in life.wanted if one.kind in world.goes}


def ended(life: Life[Any]) -> None:
    """It goes, and leaves nothing."""
    life.terminating = True
    life.until_settled(HOURS)
    assert life.cloud.left == []
