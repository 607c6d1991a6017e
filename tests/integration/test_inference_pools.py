"""Models on a cluster that serves InferencePools: what we render for pickers is run."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from collections import Counter

import aiohttp
import pytest

from modelplane_operator.rendering.cluster_gateway import STEERING
from tests.integration.harness import Cluster, Stage
from tests.integration.paths import MODEL_APIS, OF_WHOEVER_RUNS_IT, reaches
from tests.integration.pickers import behind_a_picker, copies

pytestmark = pytest.mark.fleet

CHATS = 1000
MESSAGES = [{"role": "user", "content": "hello"}]
REQUEST = {"model": "org/model", "messages": MESSAGES, "prompt": "hello", "input": "hello", "token_ids": [1, 2]}


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
