"""A model of several pods behind the endpoint picker, asked what tests/integration/test_endpoint_pickers.py asks.

The picker is the local fleet's stand-in. REAL_PICKER=1 makes it the real one, from its registry (docs/kind.md).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest
from yarl import URL

from modelplane_operator.clusters.cluster.cluster_gateway import STEERING
from modelplane_operator.models.replica.render.endpoint_picker import PICKERS
from tests.e2e.conftest import NAME, TEAM
from tests.e2e.kind import Cluster, documents, until
from tests.integration.paths import MODEL_APIS, OF_WHOEVER_RUNS_IT
from tests.support.manifests import ROOT

PODS, CHATS, AT_ONCE = 4, 200, 20
POD = "x-localfleet-pod"  # each answer of an engine says which pod it is from
SHORT = "Who are you?"
LONG = "a long story of a prompt that nobody has read before " * 40  # several blocks of what a picker remembers
REQUEST = {"prompt": SHORT, "input": SHORT, "token_ids": [1, 2]}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture(scope="module")
async def url(hub: Cluster) -> AsyncIterator[str]:
    """Serve a model by one replica of several pods, and yield its URL once a picker chooses among them."""
    deployment, service = documents(ROOT / "examples/demo/model.yaml")
    deployment["spec"]["replicas"] = 1
    deployment["spec"]["template"]["spec"]["engines"][0]["copies"] = PODS
    await hub.apply(deployment, service)
    await hub.holds("ModelDeployment", NAME, TEAM)
    url = (await hub.holds("ModelService", NAME, TEAM))["status"]["address"]
    (replica,) = await hub.list("ModelReplica", TEAM)
    await hub.holds("ModelReplica", replica["metadata"]["name"], TEAM, "PickerReady")
    await until(lambda: picks(url), "a prompt to go to pods that have read it")
    yield url
    await hub.delete(service, deployment)


async def picks(url: str) -> bool:
    """Return whether a prompt goes to as many pods as there are pickers at most: each sends it where it did before."""
    async with aiohttp.ClientSession() as session:
        answers = [await chat(session, url, LONG) for _ in range(6 * PODS)]
    return len({pod for _, pod in answers}) <= PICKERS and {status for status, _ in answers} == {200}


async def chat(
    session: aiohttp.ClientSession, url: str, prompt: str, headers: list[tuple[str, str]] | None = None
) -> tuple[int, str]:
    """Return an answer's status, and the pod that it is from."""
    body = {"model": NAME, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        return answer.status, answer.headers.get(POD, "")


async def reaches(session: aiohttp.ClientSession, url: str, path: str, method: str = "POST") -> bool:
    """Return whether an engine has answered, whatever the answer."""
    body = {"model": NAME, "messages": [{"role": "user", "content": SHORT}], **REQUEST} if method == "POST" else None
    where = URL(f"{url}{path}", encoded=True)
    async with session.request(method, where, json=body, allow_redirects=False) as answer:
        return POD in answer.headers


async def test_chats_are_spread_over_the_pods(session: aiohttp.ClientSession, url: str) -> None:
    statuses, pods = Counter[int](), Counter[str]()
    for _ in range(CHATS // AT_ONCE):
        for status, pod in await asyncio.gather(*(chat(session, url, SHORT) for _ in range(AT_ONCE))):
            statuses[status] += 1
            pods[pod] += 1

    assert statuses == {200: CHATS}
    assert len(pods) == PODS, pods


async def test_the_paths_of_model_apis_lead_to_engines_and_no_others(session: aiohttp.ClientSession, url: str) -> None:
    opened = {path: await reaches(session, url, path) for path in MODEL_APIS}
    closed = {path: await reaches(session, url, path) for path in OF_WHOEVER_RUNS_IT}

    assert all(opened.values()), opened
    assert not any(closed.values()), closed


async def test_models_are_listed(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(f"{url}/v1/models") as answer:
        assert [model["id"] for model in (await answer.json())["data"]] == [NAME]


async def test_headers_that_steer_pickers_and_engines_are_taken_off(session: aiohttp.ClientSession, url: str) -> None:
    steering = [(name, "if-available" if name == "prefer" else "10.96.0.1:443") for name in STEERING]

    status, pod = await chat(session, url, SHORT, steering)

    assert status == 200
    assert pod


async def test_a_websocket_passes_the_picker_by(session: aiohttp.ClientSession, url: str) -> None:
    """A picker would wait for a body; the engine refuses at once."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with asyncio.timeout(10), session.ws_connect(f"{url}/v1/realtime"):
            pass

    assert refused.value.headers is not None
    assert POD in refused.value.headers
