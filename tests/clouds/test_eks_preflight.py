"""What of a quota an account uses, from what EC2 tells of its machines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from modelplane_operator.clouds.eks.preflight import fetch_offer
from modelplane_operator.clouds.eks.render import quotas
from modelplane_operator.clouds.eks.session import Session

RUNS: Mapping[str, list[Mapping[str, Any]]] = {
    "p*": [
        {"CpuOptions": {"CoreCount": 48, "ThreadsPerCore": 2}},
        {"CpuOptions": {"CoreCount": 4, "ThreadsPerCore": 1}},
        {"CpuOptions": {"CoreCount": 96, "ThreadsPerCore": 2}, "InstanceLifecycle": "capacity-block"},
        {"CpuOptions": {"CoreCount": 24, "ThreadsPerCore": 2}, "InstanceLifecycle": "spot"},
    ],
    "g*": [],
}


class _Account:
    """Answers as boto3 does, of an account with some machines."""

    async def call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"Quota": {"Value": 192.0}}

    async def list(self, service: str, operation: str, items: str, parameters: Mapping[str, Any]) -> list[Any]:
        if operation != "describe_instances":
            return []
        states, families = parameters["Filters"]
        assert states == {"Name": "instance-state-name", "Values": ["pending", "running"]}
        return [{"Instances": RUNS[families["Values"][0]]}]


def test_machines_on_demand_are_counted_and_no_others() -> None:
    offer = asyncio.run(fetch_offer(cast(Session, _Account()), {"p5.48xlarge", "g6.12xlarge", "m6i.xlarge"}, ()))

    used = {code: offer.quotas[code].used for code in (quotas.PARALLEL, quotas.GRAPHICS, quotas.STANDARD)}
    assert used == {quotas.PARALLEL: 100, quotas.GRAPHICS: 0, quotas.STANDARD: 0}


@pytest.mark.parametrize("quota", [{"ErrorReason": {"ErrorMessage": "no access"}}, {"Value": "many"}, None])
def test_an_answer_that_nobody_can_read_speaks_against_nothing(quota: Any) -> None:
    class Strange(_Account):
        async def call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"Quota": quota, "CapacityReservations": [{}]}

    offer = asyncio.run(fetch_offer(cast(Session, Strange()), {"p5.48xlarge"}, {"cr-1"}))

    assert (offer.quotas, offer.reservations) == ({}, {})
    assert len(offer.unasked) >= 2


@pytest.mark.parametrize(
    ("machine", "quota"),
    [
        ("p5.48xlarge", quotas.PARALLEL),
        ("p4de.24xlarge", quotas.PARALLEL),
        ("g6e.12xlarge", quotas.GRAPHICS),
        ("gr6.4xlarge", quotas.GRAPHICS),
        ("m6i.xlarge", quotas.STANDARD),
        ("im4gn.large", quotas.STANDARD),
        ("inf2.xlarge", ""),
        ("trn1.2xlarge", ""),
        ("u-6tb1.56xlarge", ""),
    ],
)
def test_each_machine_is_in_the_quota_of_its_family(machine: str, quota: str) -> None:
    assert quotas.quota_of(machine) == quota
