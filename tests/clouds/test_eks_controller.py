"""The controller of EKSCluster against AWS: what it observes, decides, calls and reports, from the object alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

from kubeloop.loop import Clients
from kubeloop.plan import LET_GO, Plan
from kubeloop.strands import StepContext
from kubeloop.types import ResourceType
from modelplane_operator.api import labels
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.clouds.accounts import Accounts
from modelplane_operator.clouds.eks.cloud import connect
from modelplane_operator.clouds.eks.controller import controller
from modelplane_operator.clouds.tokens import Tokens
from modelplane_operator.clouds.work import CloudWork
from modelplane_operator.clusters.cluster.connections import Connections
from tests.support.aws.server import AwsServer, aws_server

pytestmark = pytest.mark.processes

SPEC: dict[str, Any] = {
    "region": "us-west-2",
    "nodePools": [
        {
            "name": "h100",
            "role": "GPU",
            "instanceType": "p5.48xlarge",
            "gpu": {"acceleratorType": "nvidia-h100"},
            "zones": ["us-west-2d"],
            "fabric": "EFA",
        }
    ],
}


MOST_AT_REST = 250
"""Calls in an hour for a cluster that is as it is wanted."""


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsServer]:
    with aws_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield server


class _NoHub:
    """The InferenceCluster of nobody."""

    def find(self, _: ResourceType) -> None:
        return None


class _Run:
    """The loop, as far as this controller needs one."""

    def __init__(self, aws: AwsServer) -> None:
        accounts = Accounts({"EKS": connect})
        tokens = Tokens(accounts, cast(Connections, None), lambda: 0.0)
        self._controller = controller(CloudWork(accounts, tokens, lambda: aws.now))
        self._aws = aws
        metadata = {
            "name": "berlin",
            "namespace": "modelplane-system",
            "uid": "uid-of-berlin",
            "finalizers": [labels.FINALIZER],
        }
        kind = {"apiVersion": EKSCluster.definition.api_version, "kind": "EKSCluster"}
        self.cluster = EKSCluster.parse({**kind, "metadata": metadata, "spec": SPEC})

    async def turn(self) -> Plan:
        clients = cast(Clients, type("_Clients", (), {"hub": _NoHub()})())
        plan = self._controller.plan(await self._controller.observe(self.cluster, clients))
        turn = StepContext(self._controller.type, self.cluster.key, lambda _: cast(Any, None), lambda: None)
        steps = [step for step in plan.steps if step != LET_GO]
        await asyncio.gather(*(self._controller.executors[type(step)].begin(step, turn) for step in steps))
        if plan.status is not None:  # as the API server keeps it
            stored = {**self.cluster.to_manifest(), "status": plan.status.to_manifest()}
            self.cluster = EKSCluster.parse_bounded(stored)
        self._aws.now += timedelta(seconds=max(20.0, plan.requeue_after or 0.0))
        return plan

    def told(self) -> dict[str, str]:
        return {one.type: one.status for one in self.cluster.conditions}


@pytest.mark.slow
async def test_a_cluster_becomes_ready_by_the_operators_own_identity_and_goes(aws: AwsServer) -> None:
    run = _Run(aws)
    for _ in range(60):
        await run.turn()
        if run.told().get("Ready") == "True":
            break

    status = run.cluster.status
    assert status is not None
    assert run.told() == {
        "CapacityAvailable": "True",
        "ControlPlaneReady": "True",
        "CredentialsValid": "True",
        "NetworkReady": "True",
        "NodePoolsReady": "True",
        "QuotaAvailable": "True",
        "Ready": "True",
        "Stalled": "False",
    }
    assert status.facts is not None
    assert "us-west-2d" in status.facts.zones
    assert [(one.instance_type, one.efa) for one in status.facts.machines] == [("p5.48xlarge", 32)]
    assert status.endpoint is not None
    calls = len(aws.calls)
    for _ in range(5):
        await run.turn()
    of_rest = aws.calls[calls:]
    assert all(operation.startswith(("Describe", "List", "Get")) for _, operation in of_rest)
    assert {service for service, _ in of_rest} == {"eks"}, "a network that nobody changes is not looked at for a while"
    calls, began = len(aws.calls), aws.now
    while aws.now - began < timedelta(hours=1):
        await run.turn()
    # Of a hundred clusters seven a second, which cost boto3 one or two milliseconds of processor time each.
    assert len(aws.calls) - calls < MOST_AT_REST

    metadata = run.cluster.metadata.model_copy(update={"deletion_timestamp": aws.now})
    run.cluster = run.cluster.model_copy(update={"metadata": metadata})
    for _ in range(60):
        if LET_GO in (await run.turn()).steps:
            break
    else:
        pytest.fail(f"it did not go: {run.cluster.conditions}")
    assert aws.eks.left == []
