"""What is hardly meant as it is written is told to whoever applies it: the chart's policies, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.integration.kinds import endpoint, service
from tests.support.api import Api
from tests.support.chart import rendered
from tests.support.policies import hold_to

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet

SPACE, URL = "default", "https://api.example.com"
UNUSED, EVERYTHING = "the path of spec.url is not used", "it takes every ModelEndpoint in this namespace"


def leading(url: str, **spec: Any) -> Manifest:
    """A ModelEndpoint that says so much and no more."""
    whole = endpoint(SPACE, "provider", url)
    return {**whole, "spec": {"url": url, **spec}}


async def warning(api: Api, manifest: Manifest) -> str:
    """What the API server says of an object that it would store; empty when nothing."""
    try:
        await api.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f-", stdin=yaml.safe_dump(manifest))
    except AssertionError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
async def hinting(api: Api) -> Api:
    """The API server once it holds to the policies."""
    policies = [one for one in await rendered() if one["metadata"]["name"].endswith("-hints")]
    await hold_to(api, policies)
    return api


@pytest.mark.parametrize(
    ("url", "spec", "told"),
    [
        (f"{URL}/v1", {}, UNUSED),
        (f"{URL}/v1?a=b", {}, UNUSED),
        (f"{URL}/v1", {"rewritePath": "/v1"}, ""),
        (f"{URL}/", {}, ""),
        (f"{URL}?a=b", {}, ""),
        (URL, {}, ""),
        ("no URL", {}, ""),
    ],
)
async def test_a_path_that_nobody_uses_is_told(hinting: Api, url: str, spec: Manifest, told: str) -> None:
    said = await warning(hinting, leading(url, **spec))

    assert told in said
    assert bool(said) is bool(told)


@pytest.mark.parametrize(
    ("labels", "told"), [({}, EVERYTHING), ({"model": None}, EVERYTHING), ({"model": "m"}, "")], ids=str
)
async def test_a_service_over_everything_is_told(hinting: Api, labels: Manifest, told: str) -> None:
    said = await warning(hinting, service(SPACE, "chat", (1, {"model": "m"}), (1, labels)))

    assert told in said
    assert bool(said) is bool(told)
