"""The life of a cluster on Google Cloud: a GKE of ours over gRPC, and the rest over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from modelplane_operator.clouds.gke.cloud import Gcp
from modelplane_operator.clouds.gke.render import kinds
from modelplane_operator.clouds.gke.session import Session
from tests.support.cloud_world import CloudWorld
from tests.support.google.server import REGION, GoogleServer, google_server


class GoogleWorld(CloudWorld[GoogleServer, Gcp]):
    table = kinds.KINDS
    stays = frozenset(kinds.KINDS) - {*kinds.SWEPT}
    goes = kinds.DELETED_WITH_CLUSTER

    @property
    def left(self) -> list[str]:
        """All that the project has."""
        return self.server.state.left

    def reset(self) -> None:
        """An empty project, at the same address."""
        self._life = None
        self.server.state.__init__(lambda: self.server.time, self.server.takes)
        self.server.faults, self.server.changes, self.server.calls, self.server.denied = {}, 0, [], ""


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
