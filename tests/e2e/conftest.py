"""The clusters of `make kind`, which are there, and what all scenarios share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from scripts.kind import clusters
from tests.e2e.kind import Cluster, connected

TEAM = "ml-team"


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
