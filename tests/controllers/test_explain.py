"""`explain` says where replicas would go, and what is missing, from what a real hub holds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from tests.api.contract import rich
from tests.support.api import Api, named
from tests.support.manifests import Manifest, change

pytestmark = pytest.mark.fleet

READY = {"type": "Ready", "status": "True", "reason": "Available", "lastTransitionTime": "2026-11-21T11:40:00Z"}


async def explain(api: Api, deployment: str, *flags: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "modelplane_operator", "explain", deployment, *flags),
        f"--kubeconfig={api.server.kubeconfig}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    return process.returncode, said.decode()


def deployment(memory: str) -> Manifest:
    """Two replicas of one engine that wants a GPU of that size."""
    cel = f'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("{memory}")) >= 0'
    request = {"name": "gpu", "count": 1, "selectors": [{"cel": cel}]}
    member = {
        "nodeSelector": {"devices": [request]},
        "template": {"spec": {"containers": [{"name": "engine", "image": "vllm"}]}},
    }
    return {
        **named(rich()["ModelDeployment"], "explained"),
        "spec": {"replicas": 2, "template": {"spec": {"engines": [{"name": "vllm", "members": [member]}]}}},
    }


@pytest.fixture
async def cluster(api: Api) -> AsyncIterator[None]:
    """One cluster with a single free node of eight 80 GiB GPUs."""
    stored = await api.create(change(named(rich()["InferenceCluster"], "berlin"), "status.conditions", [READY]))
    stored = await api.replace(change(stored, "spec.taints", []))
    yield
    await api.delete(stored)


async def test_a_replica_is_placed_and_the_other_finds_no_node(api: Api, cluster: None) -> None:
    stored = await api.create(deployment("80Gi"))
    status, said = await explain(api, "default/explained", "--every-cluster")
    await api.delete(stored)

    assert status == 0
    assert "1 of 2" in said
    assert "needs 1 node" in said
    assert "every cluster:\n  berlin: 1 replica; one more: engine vllm needs 1 node" in said


async def test_the_nearest_miss_is_named_with_its_value(api: Api, cluster: None) -> None:
    stored = await api.create(deployment("100Gi"))
    status, said = await explain(api, "default/explained")
    await api.delete(stored)

    assert status == 0
    assert "memory is 80Gi, needs >= 100Gi" in said


async def test_a_deployment_that_is_not_there_is_one_clear_line(api: Api) -> None:
    status, said = await explain(api, "default/nobody")

    assert status == 1
    assert said.count("\n") == 1
    assert "nobody" in said


async def test_a_name_without_a_namespace_is_told_how_to_be_written(api: Api) -> None:
    status, said = await explain(api, "explained")

    assert status == 2
    assert "write NAMESPACE/NAME" in said
