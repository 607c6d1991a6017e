"""examples/start/4-model.yaml, as it is: on two clusters, behind one URL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from tests.e2e.conftest import TEAM
from tests.e2e.kind import Cluster, documents, until
from tests.support.manifests import ROOT

MODEL = documents(ROOT / "examples/start/4-model.yaml")
NAME = "qwen3-8b"
ASKED = {"model": NAME, "messages": [{"role": "user", "content": "Who are you?"}]}


@pytest.fixture
async def url(hub: Cluster, measured: Callable[[str], None]) -> AsyncIterator[str]:
    began = time.monotonic()
    await hub.apply(*MODEL)
    await hub.holds("ModelDeployment", NAME, TEAM)
    service = await hub.holds("ModelService", NAME, TEAM)
    measured(f"a model of two replicas, from apply to Ready: {time.monotonic() - began:.0f} s")
    yield service["status"]["address"]
    await hub.delete(*MODEL)


async def test_a_model_on_two_clusters_answers_at_one_url(hub: Cluster, east: Cluster, west: Cluster, url: str) -> None:
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        async with session.get(f"{url}/v1/models") as answer:
            assert [one["id"] for one in (await answer.json())["data"]] == [NAME]

        async def who() -> str:
            async with session.post(f"{url}/v1/chat/completions", json=ASKED) as answer:
                body = await answer.json()
                assert body["choices"][0]["message"]["content"]
                return answer.headers["x-localfleet-pod"]

        answered: set[str] = set()

        async def both() -> bool:
            answered.update(await asyncio.gather(*(who() for _ in range(10))))
            return len(answered) == 2

        await until(both, "both replicas to answer", lambda: f"those that did: {answered}")

    engines = {cluster.name: await engines_of(cluster) for cluster in (east, west)}
    assert {name: len(pods) for name, pods in engines.items()} == {"east": 1, "west": 1}
    replicas = await hub.list("ModelReplica", TEAM)
    assert {one["spec"]["clusterName"] for one in replicas} == {"east", "west"}
    for cluster in (east, west):
        (claim,) = await cluster.list("ResourceClaim", f"modelplane-{TEAM}", "resource.k8s.io/v1")
        (device,) = claim["status"]["allocation"]["devices"]["results"]  # by the scheduler, of the driver's slices
        assert device["driver"] == "gpu.nvidia.com"


async def engines_of(cluster: Cluster) -> list[object]:
    pods = await cluster.list("Pod", f"modelplane-{TEAM}", "v1")
    return [one for one in pods if any(each["name"] == "engine" for each in one["spec"]["containers"])]
