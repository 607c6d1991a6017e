"""Models on a cluster that serves InferencePools: what we render for pickers is run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import aiohttp
import pytest

from modelplane_operator.rendering.cluster_gateway import STEERING
from tests.integration.harness import Cluster, Stage, condition, remote, until
from tests.integration.kinds import ADA, HOPPER, deployment, engine, pod, service
from tests.integration.test_paths import MODEL_APIS, OF_WHOEVER_RUNS_IT, reaches

pytestmark = pytest.mark.fleet

CHATS = 1000
MESSAGES = [{"role": "user", "content": "hello"}]
REQUEST = {"model": "org/model", "messages": MESSAGES, "prompt": "hello", "input": "hello", "token_ids": [1, 2]}


def copies(**settings: Any) -> list[dict[str, Any]]:
    """Return engines that have four pods together."""
    template = pod(**settings)
    return [engine(cel, name=name, copies=2, template=template) for name, cel in (("h", HOPPER), ("a", ADA))]


@contextlib.asynccontextmanager
async def behind_a_picker(
    stage: Stage, space: str, pools: Cluster, engines: Sequence[Any], **spec: Any
) -> AsyncGenerator[str]:
    """Serve a model by these engines on the cluster with pools, and yield its URL once a picker answers."""
    there = {"matchLabels": {"site": pools.name}}
    await stage.hub.apply(deployment(space, engines=engines, clusterSelector=there, **spec), service(space))
    await stage.hub.ready("ModelService", "model", space)
    await until("a picker to answer", lambda: picks(stage, pools, space))
    yield f"{stage.gateway}/{space}/model"
    await stage.hub.delete("ModelDeployment", "model", space)

    async def gone() -> bool:
        return not await pools.list("InferencePool", remote(space))

    await until("the pool to be gone", gone)


async def picks(stage: Stage, pools: Cluster, space: str) -> bool:
    """Return whether the replica says that a picker answers, and its route leads to the pool."""
    replicas = await stage.hub.list("ModelReplica", space)
    routes = await pools.list("HTTPRoute", remote(space))
    rules = [rule for route in routes for rule in route["spec"]["rules"] if "headers" not in rule["matches"][0]]
    kinds = {ref["kind"] for rule in rules for ref in rule["backendRefs"]}
    return "InferencePool" in kinds and all(condition(each, "PickerReady")["reason"] == "Picking" for each in replicas)


async def test_a_model_behind_a_picker_is_spread_over_its_pods_and_open_for_its_apis_alone(
    stage: Stage, space: str, pools: Cluster
) -> None:
    async with behind_a_picker(stage, space, pools, copies(max_running=8)) as url:
        statuses, pods = Counter[int](), Counter[str]()
        for _ in range(CHATS // 20):
            for reply in await asyncio.gather(*(stage.chat(space) for _ in range(20))):
                statuses[reply.status] += 1
                pods[reply.pod] += 1
        assert statuses == {200: CHATS}
        assert len(pods) == 4
        assert max(pods.values()) <= 1.5 * min(pods.values()), pods

        opened = {path: await reaches(stage, url, path, body=REQUEST) for path in MODEL_APIS}
        closed = {path: await reaches(stage, url, path) for path in OF_WHOEVER_RUNS_IT}
        assert all(opened.values()), opened
        assert not any(closed.values()), closed
        assert await reaches(stage, url, "/v1/models", "GET")
        assert await reaches(stage, url, "/v1/responses/one", "GET")

        sound = os.urandom(20 * 2**20)
        async with stage.session.post(f"{url}/v1/audio/transcriptions", data=io.BytesIO(sound)) as answer:
            assert answer.headers["x-localfleet-body"] == hashlib.sha256(sound).hexdigest()

        chat = {"model": "org/model", "messages": MESSAGES, "max_tokens": 1}
        steering = [(name, "if-available" if name == "prefer" else "10.96.0.1:443") for name in STEERING]
        async with stage.session.post(f"{url}/v1/chat/completions", json=chat, headers=steering) as answer:
            assert answer.status == 200
            assert (await answer.json())["model"] == "org/model"

        # It waits for a body no longer than an engine does to refuse: the picker is passed by.
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with asyncio.timeout(10), stage.session.ws_connect(f"{url}/v1/realtime"):
                pass
        assert refused.value.headers is not None and "x-localfleet-pod" in refused.value.headers
