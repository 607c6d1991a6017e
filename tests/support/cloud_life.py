"""The life of one cluster on a cloud in memory, with a process that can be ended at every instant.

What the operator's loop does, without its machinery: look, decide, call, report; and time that passes as it asks.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from kubeloop.errors import ApiError, NotFound
from modelplane_operator.api.clusters.provisioning import CloudResource
from modelplane_operator.clouds.calls import Journal
from modelplane_operator.clouds.decide import CloudDecision, Situation, decide, may_release
from modelplane_operator.clouds.resources import Account, DesiredResource, Inventory, Kind, Owner
from modelplane_operator.clouds.steps import CloudStep, DeleteResource

OWNER = Owner("uid-of-berlin", "berlin")
ACCOUNT = Account("Fake", "here", "default")


TURNS = 2000


class World(Protocol):
    """A cloud, as a life needs it."""

    now: datetime

    @property
    def kinds(self) -> Mapping[str, Kind]: ...

    def seen(self) -> Inventory: ...

    def call(self, step: CloudStep) -> str: ...


W = TypeVar("W", bound=World)


class Killed(Exception):  # noqa: N818 - what happened
    """The process has ended."""


@dataclass
class Life(Generic[W]):
    cloud: W
    wanted: tuple[DesiredResource, ...]
    records: tuple[CloudResource, ...] = ()
    terminating: bool = False
    gone_since: datetime | None = None
    over: bool = False
    """Whether the finalizer has gone."""
    kills: Container[int] = frozenset()
    """The instants at which the process ends: before and after each call and each report, counted over all its life."""
    pace: float = 1.0
    """Seconds between two turns, at least."""
    writes: int = 0
    """Of the status."""
    _instant: int = 0
    _process: int = 0
    _journal: Journal = field(default_factory=Journal)

    def until_settled(self, most: timedelta = timedelta(hours=8)) -> None:
        """Live until there is nothing left to do; fails when that takes too long."""
        end, turns = self.cloud.now + most, 0
        while self.cloud.now < end and (turns := turns + 1) < TURNS:
            decision = self.turn()
            if self.over or (not self.terminating and self._is_settled(decision)):
                return
            self.cloud.now += timedelta(seconds=max(self.pace, decision.requeue_after if decision else 1.0))
        raise AssertionError(f"not settled: {[(one.key, one.state, one.message) for one in self.records]}")

    def turn(self) -> CloudDecision | None:
        """One reconcile; None when the process ended in it."""
        try:
            return self._turn()
        except Killed:
            self._journal, self._process = Journal(), self._process + 1
            return None

    def _turn(self) -> CloudDecision:
        seen = self.cloud.seen()
        decision = self._decide(seen)
        for step in decision.steps:
            self._pass()
            self._call(step)
        if decision.steps:
            decision = self._decide(seen)
        self._pass()
        gone_since = (self.gone_since or self.cloud.now) if self.terminating and decision.is_deleted else None
        if (decision.records, gone_since) != (self.records, self.gone_since):
            self.writes += 1
        self.records, self.gone_since = decision.records, gone_since
        self._pass()
        if self.terminating and decision.is_deleted and may_release(gone_since, self.cloud.seen()):
            self.over = True
        return decision

    def _decide(self, seen: Inventory) -> CloudDecision:
        return decide(
            Situation(
                ACCOUNT,
                OWNER,
                () if self.terminating else self.wanted,
                self.cloud.kinds,
                seen,
                self.records,
                self._journal.of(OWNER.uid),
                self.process,
                self.cloud.now,
                self.terminating,
            )
        )

    def _call(self, step: CloudStep) -> None:
        made, failed = "", None
        try:
            made = self.cloud.call(step)
        except NotFound as missing:
            failed = None if isinstance(step, DeleteResource) else missing
        except ApiError as error:
            failed = error
        self._pass()
        self._journal.note(step, self.cloud.now, made=made, error=failed)

    def _pass(self) -> None:
        self._instant += 1
        if self._instant in self.kills:
            raise Killed

    def _is_settled(self, decision: CloudDecision | None) -> bool:
        keys = {one.key for one in self.wanted}
        return (
            decision is not None
            and not decision.steps
            and {one.key for one in self.records} == keys
            and all(one.state == "Ready" for one in self.records)
        )

    @property
    def process(self) -> str:
        """Which of its processes lives now."""
        return f"p{self._process}"

    @property
    def instants(self) -> int:
        return self._instant
