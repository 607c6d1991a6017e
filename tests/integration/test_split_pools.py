"""Split engines and gangs behind pickers: on a cluster of their own, as connections outlast the pools of others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.harness import Cluster, Stage
from tests.integration.kinds import ADA, HOPPER, engine, gpus, pod
from tests.integration.pickers import behind_a_picker

pytestmark = pytest.mark.fleet


async def test_prompts_are_read_by_one_engine_and_answered_by_another_and_a_gang_answers(
    stage: Stage, space: str, pools: Cluster
) -> None:
    def half(phase: str, cel: str, *args: str) -> dict[str, Any]:
        template = pod()
        template["spec"]["containers"][0]["args"] += args
        return engine(cel, name=phase.lower(), phase=phase, template=template)

    split = [half("Prefill", HOPPER), half("Decode", ADA, "--port=8001")]
    serving = {"mode": "PrefillDecode", "minPrefillTokens": 1}
    async with behind_a_picker(stage, space, pools, split, serving=serving) as url:
        prompt = {"role": "user", "content": "a long story of a prompt that nobody has read before " * 40}
        chat = {"model": "org/model", "messages": [prompt], "max_tokens": 2}
        async with stage.session.post(f"{url}/v1/chat/completions", json=chat) as answer:
            assert answer.status == 200, await answer.text()
            assert "prefill" in answer.headers["x-localfleet-prefill"]
            assert "decode" in answer.headers["x-localfleet-pod"]

    gang = {
        "name": "gang",
        "copies": 2,
        "members": [
            {"role": "Leader", "nodeSelector": gpus(HOPPER), "template": pod()},
            {"role": "Worker", "template": pod()},
        ],
    }
    async with (
        behind_a_picker(stage, space, pools, [gang]) as url,
        stage.session.post(f"{url}/v1/chat/completions", json=chat) as answer,
    ):
        assert answer.status == 200, await answer.text()
