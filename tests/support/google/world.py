"""The life of a cluster on Google Cloud: the real SDK over gRPC, and a clock of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from modelplane_operator.clients.clouds.gke.cloud import Gcp
from modelplane_operator.clients.clouds.gke.session import Session
from modelplane_operator.clients.clouds.view import View
from modelplane_operator.kube.cloud import Kind, Seen, Wanted
from modelplane_operator.planning.clouds.decide import unsettled
from modelplane_operator.planning.clouds.steps import CloudStep
from modelplane_operator.rendering.clusters.gke import kinds
from modelplane_operator.runtime.clouds import carry_out
from tests.support.cloud_life import OWNER, Life
from tests.support.google.server import REGION, GoogleServer, google_server

OWN = frozenset(kinds.KINDS) - {*kinds.SWEPT}


@dataclass
class GoogleWorld:
    google: GoogleServer
    cloud: Gcp
    runner: asyncio.Runner
    _life: Life[GoogleWorld] | None = None
    _view: View = field(default_factory=View)
    _process: str = ""

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return kinds.KINDS

    @property
    def now(self) -> datetime:
        return self.google.now

    @now.setter
    def now(self, now: datetime) -> None:
        self.google.now = now

    def live(self, wanted: tuple[Wanted, ...], **given: Any) -> Life[GoogleWorld]:
        """A life that looks as the operator does: for what is under way, and for all when it begins anew or ends."""
        self._life, self._process = Life(self, wanted, **given), ""
        return self._life

    def seen(self) -> Seen:
        if self._life is None or self._life.going:
            return self.listed()
        if self._process != self._life.process:
            self._view, self._process = View(), self._life.process
        due = unsettled(self._life.records)
        return self.runner.run(self._view.look(self.cloud, OWNER, OWN, due, self.now))

    def listed(self) -> Seen:
        """All that there is of the cluster."""
        return self.runner.run(self.cloud.observe(OWNER, kinds.LEFT, self.now))

    def id_of(self, key: str) -> str:
        return next(one.id for one in self.listed().found if one.key == key)

    def call(self, step: CloudStep) -> str:
        return self.runner.run(carry_out(self.cloud, step))

    def reset(self) -> None:
        """An empty project, at the same address."""
        self._life = None
        self.google.state.__init__(lambda: self.google.time, self.google.takes)
        self.google.faults, self.google.changes, self.google.calls, self.google.denied = {}, 0, [], ""


@contextmanager
def google_world() -> Iterator[GoogleWorld]:
    with google_server() as google, asyncio.Runner() as runner:

        async def made() -> Gcp:
            return Gcp(Session(REGION, credentials=google.credentials(), hosts=google.hosts))

        world = GoogleWorld(google, runner.run(made()), runner)
        try:
            yield world
        finally:
            runner.run(world.cloud.session.close())
