"""Fixtures for all tests. What needs binaries is marked `fleet` and built on first use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from localfleet.apiserver import api_server
from localfleet.kubeclient import connect
from tests.support.api import Api
from tests.support.manifests import ROOT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-update", action="store_true", help="rewrite the expected outputs of golden tests")


@pytest.fixture(scope="session")
async def api() -> AsyncIterator[Api]:
    """A real API server with the committed CRDs, and the namespace `default`."""
    with api_server() as server:
        async with connect(server.kubeconfig) as client:
            api = Api(server, client)
            await api.kubectl("apply", "-f", str(ROOT / "crds"))
            await api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
            yield api
