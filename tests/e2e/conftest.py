"""The clusters of `make kind`, which are there, and what all scenarios share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus

import aiohttp
import pytest

from scripts.kind import clusters
from tests.e2e.kind import Cluster, connected, documents
from tests.support.manifests import ROOT

TEAM = "ml-team"
NAME = "qwen3-8b"
LAST = "test_install_page.py"
"""It takes down what the others need."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == LAST)


@pytest.fixture(scope="session")
async def hub() -> AsyncIterator[Cluster]:
    async with connected("hub", clusters.HUB.kubeconfig) as hub:
        await hub.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
        yield hub


@pytest.fixture(scope="session")
async def east() -> AsyncIterator[Cluster]:
    async with connected("east", clusters.EAST.kubeconfig) as east:
        yield east


@pytest.fixture(scope="session")
async def west() -> AsyncIterator[Cluster]:
    async with connected("west", clusters.WEST.kubeconfig) as west:
        yield west


@pytest.fixture
async def url(hub: Cluster) -> AsyncIterator[str]:
    """The address of a model with one replica."""
    deployment, service = documents(ROOT / "examples/demo/model.yaml")  # which says failover after half a minute
    deployment["spec"]["replicas"] = 1
    await hub.apply(deployment, service)
    await hub.holds("ModelDeployment", NAME, TEAM)
    yield (await hub.holds("ModelService", NAME, TEAM))["status"]["address"]
    await hub.delete(service, deployment)


async def answers(url: str) -> bool:
    """Whether a request for that model is answered."""
    body = {"model": NAME, "messages": [{"role": "user", "content": "Who are you?"}]}
    try:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as answer:
            return answer.status == HTTPStatus.OK
    except aiohttp.ClientError:
        return False
