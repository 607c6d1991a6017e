"""The scenario by which the reference judges itself: a mock model on GPUs of a driver that has none, over two APIs.

OpenAI's and Anthropic's paths are asked by their own client libraries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anthropic
import openai
import pytest

from tests.e2e.conftest import TEAM
from tests.e2e.kind import Cluster, Manifest, documents, until

DRIVER = "gpu.example.com"
MODEL = "mock"
HERE = Path(__file__).parent
SAID = [{"role": "user", "content": "What is the weather in Paris"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture(scope="module")
async def url(hub: Cluster) -> AsyncIterator[str]:
    model = documents(HERE / "reference-model.yaml")
    await hub.apply(*model)
    await hub.holds("ModelDeployment", "mock-demo", TEAM)
    service = await hub.holds("ModelService", MODEL, TEAM)
    yield service["status"]["address"]
    await hub.delete(*model)


async def test_the_engine_has_a_device_of_that_driver(url: str, east: Cluster) -> None:
    del url
    (claim,) = await east.list("ResourceClaim", f"modelplane-{TEAM}", "resource.k8s.io/v1")
    (device,) = claim["status"]["allocation"]["devices"]["results"]
    assert device["driver"] == DRIVER


async def test_openais_client_is_answered(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]

        whole = await client.chat.completions.create(model=MODEL, messages=SAID)
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None

        pieces: list[str] = []
        stream = await client.chat.completions.create(
            model=MODEL, messages=SAID, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            used = chunk.usage
        assert "".join(pieces) == whole.choices[0].message.content
        assert used is not None
        assert used.completion_tokens == whole.usage.completion_tokens


async def test_openais_client_is_given_a_call_of_a_tool_and_answers_it(url: str) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        asked = await client.chat.completions.create(model=MODEL, messages=SAID, tools=[tool])
        assert asked.choices[0].finish_reason == "tool_calls"
        (call,) = asked.choices[0].message.tool_calls or ()
        assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Paris"}')

        async with client.chat.completions.stream(model=MODEL, messages=SAID, tools=[tool]) as stream:
            streamed = (await stream.get_final_completion()).choices[0].message.tool_calls or ()
        assert [one.function.arguments for one in streamed] == [call.function.arguments]

        answered: Sequence[Manifest] = [
            *SAID,
            asked.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ]
        last = await client.chat.completions.create(model=MODEL, messages=answered, tools=[tool])
        assert last.choices[0].finish_reason == "stop"


async def test_openais_client_raises_what_the_engine_refuses(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.chat.completions.create(model="another", messages=SAID)
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=SAID, max_tokens=0)
    async with openai.AsyncOpenAI(base_url=url.replace(MODEL, "nobody"), api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model=MODEL, messages=SAID)


async def test_anthropics_client_is_answered(url: str) -> None:
    tool = {"name": "weather", "input_schema": CITY}
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        whole = await client.messages.create(model=MODEL, messages=SAID, max_tokens=64)
        assert whole.stop_reason == "end_turn"
        async with client.messages.stream(model=MODEL, messages=SAID, max_tokens=64) as stream:
            pieces = [text async for text in stream.text_stream]
        assert "".join(pieces) == "".join(block.text for block in whole.content if block.type == "text")

        asked = await client.messages.create(model=MODEL, messages=SAID, max_tokens=64, tools=[tool])
        assert asked.stop_reason == "tool_use"
        async with client.messages.stream(model=MODEL, messages=SAID, max_tokens=64, tools=[tool]) as stream:
            streamed = await stream.get_final_message()
        for message in (asked, streamed):
            (block,) = message.content
            assert block.type == "tool_use"
            assert block.input == {"city": "Paris"}
        told = {"type": "tool_result", "tool_use_id": asked.content[0].id, "content": "rain"}
        answered = [
            *SAID,
            {"role": "assistant", "content": [block.model_dump() for block in asked.content]},
            {"role": "user", "content": [told]},
        ]
        last = await client.messages.create(model=MODEL, messages=answered, max_tokens=64, tools=[tool])
        assert last.stop_reason == "end_turn"

        counted = await client.messages.count_tokens(model=MODEL, messages=SAID)
        assert counted.input_tokens == whole.usage.input_tokens

        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(model="another", messages=SAID, max_tokens=64)


async def test_an_engine_that_asks_for_hardware_that_is_synthetic_alone_is_refused(hub: Cluster, url: str) -> None:
    """The class says that its device exists for the scheduler's bookkeeping only: no engine can claim it alone."""
    del url
    asked = documents(HERE / "reference-synthetic.yaml")
    await hub.apply(*asked)
    said: list[str] = []

    async def refused() -> bool:
        found = await hub.get("ModelDeployment", "synthetic-only", TEAM) or {}
        for one in found.get("status", {}).get("conditions") or ():
            said.append(f"{one['type']}={one['status']}: {one.get('message', '')}")
        return any(line.startswith("ReplicasScheduled=False") for line in said)

    await until(refused, "the deployment to be refused", lambda: "; ".join(said[-4:]))
    assert not [one for one in await hub.list("ModelReplica", TEAM) if "synthetic-only" in one["metadata"]["name"]]
    await hub.delete(*asked)
