"""An LLMInference for the fleet: five fields, one URL."""

from __future__ import annotations

import aiohttp

from tests.e2e.conftest import TEAM
from tests.e2e.kind import Cluster, documents, until
from tests.support.manifests import ROOT

VERSION = "inference.devopstoolkit.ai/v1alpha1"
(ASKED,) = documents(ROOT / "examples/llminference/fleet.yaml")
NAME, MODEL = ASKED["metadata"]["name"], ASKED["spec"]["model"]


async def test_an_llm_inference_for_the_fleet_answers(hub: Cluster) -> None:
    await hub.apply(ASKED)
    said: list[object] = []

    async def address() -> str:
        found = await hub.get("LLMInference", NAME, TEAM, VERSION) or {}
        status = found.get("status") or {}
        said[:] = [(one["type"], one["status"], one.get("message")) for one in status.get("conditions") or ()]
        ready = any(kind == "Ready" and holds == "True" for kind, holds, _ in said)
        return status.get("url", "") if ready else ""

    url = await until(address, f"LLMInference {NAME} to be Ready", lambda: str(said))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Who are you?"}]}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{url.removesuffix('/v1')}/v1/chat/completions", json=body) as answer,
    ):
        assert (await answer.json())["choices"][0]["message"]["content"]
    await hub.delete(ASKED)
