"""The life of a cluster on AWS: the real SDK over HTTP, and a clock of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from modelplane_operator.clients.clouds.eks.cloud import Aws
from modelplane_operator.clients.clouds.eks.session import Credentials, Session
from modelplane_operator.clients.clouds.view import View
from modelplane_operator.kube.cloud import Kind, Seen, Wanted
from modelplane_operator.planning.clouds.decide import unsettled
from modelplane_operator.planning.clouds.steps import CloudStep
from modelplane_operator.rendering.clusters.eks import kinds
from modelplane_operator.runtime.clouds import carry_out
from tests.support.aws.server import REGION, AwsServer, aws_server, reset
from tests.support.cloud_life import OWNER, Life


@dataclass
class AwsWorld:
    aws: AwsServer
    cloud: Aws
    runner: asyncio.Runner
    _life: Life[AwsWorld] | None = None
    _view: View = field(default_factory=View)
    _process: str = ""

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return kinds.KINDS

    @property
    def now(self) -> datetime:
        return self.aws.now

    @now.setter
    def now(self, now: datetime) -> None:
        self.aws.now = now

    def live(self, wanted: tuple[Wanted, ...], **given: Any) -> Life[AwsWorld]:
        """A life that looks as the operator does: for what is under way, and for all when it begins anew or ends."""
        self._life, self._process = Life(self, wanted, **given), ""
        return self._life

    def seen(self) -> Seen:
        if self._life is None or self._life.going:
            return self.listed()
        if self._process != self._life.process:
            self._view, self._process = View(), self._life.process
        due = unsettled(self._life.records)
        return self.runner.run(self._view.look(self.cloud, OWNER, kinds.KINDS, due, self.now))

    def listed(self) -> Seen:
        """All that there is."""
        return self.runner.run(self.cloud.observe(OWNER, kinds.KINDS, self.now))

    @property
    def left(self) -> list[str]:
        """All that the account has, but for what every account has."""
        return [*self.aws.left, *(one.id for one in self.listed().found)]

    def id_of(self, key: str) -> str:
        return next(one.id for one in self.listed().found if one.key == key)

    def call(self, step: CloudStep) -> str:
        return self.runner.run(carry_out(self.cloud, step))

    def ask(self, service: str, operation: str, **parameters: Any) -> Mapping[str, Any]:
        """As anybody else who has the account."""
        return self.runner.run(self.cloud.session.call(service, operation, parameters))

    def ec2(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        return self.ask("ec2", operation, **parameters)

    def iam(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        return self.ask("iam", operation, **parameters)

    def reset(self) -> None:
        """An empty AWS, at the same address."""
        self._life = None
        reset()
        self.aws.__post_init__()
        self.aws.faults, self.aws.changes, self.aws.calls, self.aws.denied = {}, 0, [], ""


@contextmanager
def aws_world() -> Iterator[AwsWorld]:
    with aws_server() as aws, asyncio.Runner() as runner:
        yield AwsWorld(aws, Aws(Session(REGION, Credentials("AKIAEXAMPLE", "secret"), aws.url)), runner)
