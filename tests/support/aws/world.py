"""The life of a cluster on AWS: moto, and an EKS of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from modelplane_operator.clouds.eks.cloud import Aws
from modelplane_operator.clouds.eks.render import kinds
from modelplane_operator.clouds.eks.session import Credentials, Session
from tests.support.aws.server import REGION, AwsServer, aws_server, reset
from tests.support.cloud_world import CloudWorld


class AwsWorld(CloudWorld[AwsServer, Aws]):
    table = kinds.KINDS
    stays = goes = frozenset(kinds.KINDS)

    @property
    def left(self) -> list[str]:
        """All that the account has, but for what every account has."""
        return [*self.server.left, *(one.id for one in self.listed().existing)]

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
        self.server.__post_init__()
        self.server.faults, self.server.changes, self.server.calls, self.server.denied = {}, 0, [], ""


@contextmanager
def aws_world() -> Iterator[AwsWorld]:
    with aws_server() as aws, asyncio.Runner() as runner:
        yield AwsWorld(aws, Aws(Session(REGION, Credentials("AKIAEXAMPLE", "secret"), aws.url)), runner)
