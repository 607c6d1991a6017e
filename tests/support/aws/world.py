"""The life of a cluster on AWS: the real SDK over HTTP, and a clock of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from modelplane_operator.clients.clouds.eks.cloud import Aws
from modelplane_operator.clients.clouds.eks.session import Credentials, Session
from modelplane_operator.kube.cloud import Kind, Seen
from modelplane_operator.planning.clouds.steps import CloudStep
from modelplane_operator.rendering.clusters.eks import kinds
from modelplane_operator.runtime.clouds import carry_out
from tests.support.aws.eks import ACCOUNT
from tests.support.aws.server import REGION, AwsServer, aws_server, reset
from tests.support.cloud_life import OWNER


@dataclass
class AwsWorld:
    aws: AwsServer
    cloud: Aws
    runner: asyncio.Runner

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return kinds.KINDS

    @property
    def now(self) -> datetime:
        return self.aws.now

    @now.setter
    def now(self, now: datetime) -> None:
        self.aws.now = now

    def seen(self) -> Seen:
        return self.runner.run(self.cloud.observe(OWNER, kinds.KINDS, self.now))

    @property
    def left(self) -> list[str]:
        """All that the account has, but for what every account has."""
        ec2, iam = ec2_backends[ACCOUNT][REGION], iam_backends[ACCOUNT]["aws"]
        mine = [vpc.id for vpc in ec2.vpcs.values() if not vpc.is_default]
        found = [
            *mine,
            *(one.id for one in ec2.describe_subnets() if one.vpc_id in mine),
            *ec2.internet_gateways,
            *(one.allocation_id for one in ec2.describe_addresses()),
            *(one.id for one in ec2.nat_gateways.values() if one.state != "deleted"),
            *ec2.launch_templates,
            *(group for groups in ec2.groups.values() for group, one in groups.items() if one.name != "default"),
            *(role.name for role in iam.roles.values()),
        ]
        return [*found, *self.aws.eks.left, *(one.id for one in self.seen().found)]

    def id_of(self, key: str) -> str:
        return next(one.id for one in self.seen().found if one.key == key)

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
        reset()
        self.aws.__post_init__()
        self.aws.faults, self.aws.changes, self.aws.calls, self.aws.denied = {}, 0, [], ""


@contextmanager
def aws_world() -> Iterator[AwsWorld]:
    with aws_server() as aws, asyncio.Runner() as runner:
        yield AwsWorld(aws, Aws(Session(REGION, Credentials("AKIAEXAMPLE", "secret"), aws.url)), runner)
