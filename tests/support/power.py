"""What the chart's accounts may do on a hub: a real API server with the chart's permissions and policies."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import yaml

from tests.support.api import Api
from tests.support.chart import NAMESPACE, permissions
from tests.support.manifests import Manifest
from tests.support.policies import obeyed

OPERATOR = f"--as=system:serviceaccount:{NAMESPACE}:modelplane-operator"
GATEWAY = f"{OPERATOR}-hub-gateway"
"""The account of the pod that installs the hub gateway."""
CREATE = ("create", "--dry-run=server", "-f", "-")
VALUES = ("hubGateway.envoyGateway=true", "hubGateway.metallb=true")
ENGINES = ("inference-large", "inference-small")
"""Namespaces of engines on the hub."""
HOMES = (NAMESPACE, "traefik-system", "envoy-gateway-system", "metallb-system", "named", "unnamed", *ENGINES)


@pytest.fixture(scope="module")
async def hub(api: Api) -> Api:
    for name in HOMES:
        home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await api.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(home))
        await api.kubectl("create", "secret", "generic", "openai", f"-n{name}", "--from-literal=key=canary")
    return api


@dataclass(slots=True)
class Hub:
    """The hub, and what it permits the chart's account: that stays while the next test asks for the same."""

    api: Api
    granted: dict[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])

    async def given(self, *values: str) -> Api:
        """The hub while the account has the permissions that go with these values of the chart."""
        if values not in self.granted:
            for text in list(self.granted.values()):
                self.granted = {}  # whatever fails from here on, the next test begins with all of it
                await self.api.kubectl("delete", "-f", "-", stdin=text)
            rendered = yaml.safe_dump_all(one for one in await permissions(*values) if one["kind"] != "Namespace")
            await self.api.kubectl("apply", "--server-side", "-f", "-", stdin=rendered)
            await obeyed(self.api)
            self.granted = {values: rendered}
        return self.api


@pytest.fixture(scope="module")
def giving(hub: Api) -> Hub:
    return Hub(hub)


@pytest.fixture
async def by_default(giving: Hub) -> Api:
    return await giving.given()


@pytest.fixture
async def with_names(giving: Hub) -> Api:
    return await giving.given("tenantNamespaces={named}")


@pytest.fixture
async def with_everything(giving: Hub) -> Api:
    return await giving.given(*VALUES)


async def refusal(api: Api, *arguments: str, stdin: str = "", by: str = OPERATOR) -> str:
    """Return why an account may not do that; empty when it may."""
    try:
        await api.kubectl(*arguments, by, **({"stdin": stdin} if stdin else {}))
    except AssertionError as error:
        return str(error)
    return ""


def plain(api_version: str, kind: str, name: str) -> Manifest:
    """An object that says nothing yet."""
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}


def held(kind: str, name: str = "trap", **more: str) -> Manifest:
    """A Secret of that type where Traefik's chart goes."""
    metadata = {"name": name, "namespace": "traefik-system", **({"annotations": more} if more else {})}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind}
