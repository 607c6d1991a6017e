"""Models behind endpoint pickers: what we render for them is run, by the real Envoy Gateway and Envoy."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest

from modelplane_operator.clusters.cluster.cluster_gateway import STEERING
from tests.integration.harness import Stage, until
from tests.integration.kinds import ADA, HOPPER, engine, gpus, pod
from tests.integration.paths import MODEL_APIS, OF_WHOEVER_RUNS_IT, reaches
from tests.integration.pickers import behind_a_picker, copies, kill, picks

pytestmark = pytest.mark.fleet

CHATS = 1000
SECOND_THOUGHTS = 3.0  # seconds of failures that killed pickers may cost
SLOW_SECONDS = 20  # longer than any limit that Envoy Gateway sets for a picker
MESSAGES = [{"role": "user", "content": "hello"}]
REQUEST = {"model": "org/model", "messages": MESSAGES, "prompt": "hello", "input": "hello", "token_ids": [1, 2]}


async def test_a_model_behind_a_picker_is_spread_over_its_pods_and_open_for_its_apis_alone(
    stage: Stage, space: str
) -> None:
    async with behind_a_picker(stage, space, copies(max_running=8)) as url:
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


async def test_pickers_that_are_killed_under_load_cost_seconds_and_break_off_no_answer(
    stage: Stage, space: str
) -> None:
    async with behind_a_picker(stage, space, copies(tokens_per_second=4)):
        failures: list[tuple[float, str]] = []
        stop = asyncio.Event()

        async def ask(**how: Any) -> str:
            try:
                reply = await stage.chat(space, seconds=20, **how)
            except (aiohttp.ClientError, TimeoutError) as error:
                return repr(error)
            return "" if reply.status == 200 else f"{reply.status} {reply.text[:80]}"

        async def keep_asking() -> None:
            while not stop.is_set():
                if why := await ask(tokens=1):
                    failures.append((time.monotonic(), why))
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(keep_asking())
            streams = [group.create_task(ask(stream=True, tokens=32)) for _ in range(4)]
            await asyncio.sleep(2)
            assert failures == []
            [replica] = await stage.hub.list("ModelReplica", space)
            kill(replica["metadata"]["name"])
            began = time.monotonic()
            await asyncio.sleep(SECOND_THOUGHTS + 5)
            stop.set()
        late = sorted(Counter(round(each - began, 1) for each, _ in failures).items())
        assert all(each < began + SECOND_THOUGHTS for each, _ in failures), (late, {why for _, why in failures})
        assert [stream.result() for stream in streams] == [""] * 4  # they were under way
        await until("a picker to answer again", lambda: picks(stage, space))


async def test_a_body_that_comes_slowly_passes_the_picker(stage: Stage, space: str) -> None:
    async def slowly() -> AsyncGenerator[bytes]:
        for _ in range(SLOW_SECONDS):
            yield bytes(1000)
            await asyncio.sleep(1)

    async with (
        behind_a_picker(stage, space, copies()) as url,
        stage.session.post(f"{url}/v1/audio/transcriptions", data=slowly()) as answer,
    ):
        assert answer.headers["x-localfleet-body"] == hashlib.sha256(bytes(1000 * SLOW_SECONDS)).hexdigest()


async def test_prompts_are_read_by_one_engine_and_answered_by_another_and_a_gang_answers(
    stage: Stage, space: str
) -> None:
    def half(phase: str, cel: str, *args: str) -> dict[str, Any]:
        template = pod()
        template["spec"]["containers"][0]["args"] += args
        return engine(cel, name=phase.lower(), phase=phase, template=template)

    split = [half("Prefill", HOPPER), half("Decode", ADA, "--port=8001")]
    serving = {"mode": "PrefillDecode", "minPrefillTokens": 1}
    async with behind_a_picker(stage, space, split, serving=serving) as url:
        prompt = {"role": "user", "content": "a long story of a prompt that nobody has read before " * 40}
        chat = {"model": "org/model", "messages": [prompt], "max_tokens": 2}

        async def reads_first() -> str:
            async with stage.session.post(f"{url}/v1/chat/completions", json=chat) as answer:
                assert answer.status == 200, await answer.text()
                assert "decode" in answer.headers["x-localfleet-pod"]
                return answer.headers.get("x-localfleet-prefill", "")

        # Connections to the gateway from before do not ask a new picker.
        assert "prefill" in await until("a prompt to be read by the other engine", reads_first)

    gang = {
        "name": "gang",
        "copies": 2,
        "members": [
            {"role": "Leader", "nodeSelector": gpus(HOPPER), "template": pod()},
            {"role": "Worker", "template": pod()},
        ],
    }
    async with (
        behind_a_picker(stage, space, [gang]) as url,
        stage.session.post(f"{url}/v1/chat/completions", json=chat) as answer,
    ):
        assert answer.status == 200, await answer.text()
