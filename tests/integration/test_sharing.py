"""Replicas share nodes by device, and the real scheduler of the cluster agrees with ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator

import pytest

from tests.integration.harness import Stage, until
from tests.integration.kinds import HOPPER, deployment, engine, gpus, pod, service

pytestmark = pytest.mark.fleet

SMALL, NODES, DEVICES = 10, 2, 8
"""Replicas of one device, nodes of the class on each cluster, and devices on each."""


@pytest.fixture
async def shared(stage: Stage) -> AsyncGenerator[None]:
    """The nodes of class h100 are shared by device while the test runs."""
    await sharing(stage, "Device")
    yield
    await sharing(stage, "Node")


async def sharing(stage: Stage, unit: str) -> None:
    """Set what a pod takes of the class, and wait until both clusters publish it."""
    await stage.hub.patch("InferenceClass", "h100", spec={"sharing": unit})

    async def published() -> bool:
        clusters = [await stage.hub.get("InferenceCluster", name) or {} for name in stage.workers]
        pools = [pool for each in clusters for pool in each["status"]["gpuPools"] if pool["name"] == "h100"]
        return all(pool.get("sharing", "Node") == unit for pool in pools)

    await until(f"pools that say {unit}", published)


@pytest.mark.usefixtures("shared")
async def test_small_models_share_a_node_and_leave_whole_ones_to_large_models(stage: Stage, space: str) -> None:
    small = deployment(space, "small", replicas=SMALL, engines=[engine(HOPPER)])
    await stage.hub.apply(small, service(space, "small"))
    await stage.serving(space, SMALL, "small")

    used = await devices_by_node(stage, space)
    assert sum(used.values()) == SMALL
    assert max(used.values()) <= DEVICES
    await stage.hub.says("Ready=True", "ModelDeployment", "small", space)
    assert await told_by_status(stage, space, "small") == used

    whole = {"name": "vllm", "members": [{"nodeSelector": gpus(HOPPER, DEVICES), "template": pod()}]}
    free = len(stage.workers) * NODES - len(used)
    assert free == len(stage.workers), "small models have not been packed onto one node of each cluster"
    await stage.hub.apply(deployment(space, replicas=free, engines=[whole]), service(space))
    await stage.serving(space, free)
    assert max((await devices_by_node(stage, space)).values()) == DEVICES


async def devices_by_node(stage: Stage, space: str) -> Counter[str]:
    """The devices that engines of a namespace were allocated, by cluster and node."""
    used = Counter[str]()
    for name, worker in stage.workers.items():
        for claim in await worker.list("ResourceClaim", f"modelplane-{space}"):
            results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            used.update(f"{name}/{result['pool']}" for result in results)
    return used


async def told_by_status(stage: Stage, space: str, model: str) -> Counter[str]:
    """The pods of a deployment's replicas by cluster and node, as the replicas say."""
    pods = Counter[str]()
    for replica in (await stage.replicas(space, model)).values():
        for place in replica["status"].get("podNodes", ()):
            pods[f"{replica['spec']['clusterName']}/{place['node']}"] += place["pods"]
    return pods
