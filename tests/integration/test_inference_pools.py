"""Models on a cluster that serves InferencePools: what we render for pickers is run."""

from __future__ import annotations

import pytest

from tests.integration.harness import Cluster, Stage, condition, remote, until
from tests.integration.kinds import deployment, service

pytestmark = pytest.mark.fleet


async def test_a_model_behind_a_pool_is_answered_where_its_picker_says(
    stage: Stage, space: str, pools: Cluster
) -> None:
    there = {"matchLabels": {"site": pools.name}}
    await stage.hub.apply(deployment(space, clusterSelector=there), service(space))

    reply = await stage.answered(space)

    assert reply.cluster == pools.name
    (pool,) = await pools.list("InferencePool", remote(space))
    picker = await pools.get("Deployment", pool["spec"]["endpointPickerRef"]["name"], remote(space))
    assert picker and condition(picker, "Available")["status"] == "True"
    await stage.hub.delete("ModelDeployment", "model", space)

    async def gone() -> bool:
        return not await pools.list("InferencePool", remote(space))

    await until("the pool to be gone", gone)
