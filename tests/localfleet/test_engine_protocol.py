"""What a simulated engine says on the wire, over real sockets of this machine's loopback addresses."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from localfleet.engine.engine import Engine
from localfleet.engine.lifecycle import advance, begin
from localfleet.engine.pods import read_pod
from localfleet.engine.server import Door, Listeners
from localfleet.engine.settings import Hang, Settings
from tests.localfleet.engine_support import ADDRESSES, Manifest, engine_pod, eventually, running

FIRST, SECOND = ADDRESSES
PORT = 17171  # not 18000, where an Envoy Gateway of another test listens at every address
CHAT = {"model": "llama", "messages": [{"role": "user", "content": "Who are you?"}]}
QUICK = Settings(first_token_seconds=0, tokens_per_second=0)


@dataclass
class Street:
    """Engines by address, served by one listener as in a cluster."""

    session: aiohttp.ClientSession
    engines: dict[str, Engine]

    def settle(self, manifest: Manifest, address: str, defaults: Settings = QUICK) -> Engine:
        for container in manifest["spec"]["containers"]:
            for port in container["ports"]:
                port["containerPort"] += PORT - 8000
        pod = read_pod(manifest | {"status": running(address)}, defaults=defaults)
        lives = {container.name: begin(container, time.time(), scale=1.0) for container in pod.containers}
        engine = self.engines[address] = Engine(pod, lives, "west")
        engine.update(pod, lives, node_down=False)
        return engine

    async def get(self, address: str, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://{address}:{PORT}{path}") as response:
            return response.status, await response.text()

    def stream(self, address: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.session.post(f"http://{address}:{PORT}/v1/chat/completions", json={**CHAT, "stream": True})

    async def post(self, address: str, path: str, body: Any, **headers: str) -> aiohttp.ClientResponse:
        data = body if isinstance(body, bytes) else json.dumps(body)
        response = await self.session.post(f"http://{address}:{PORT}{path}", data=data, headers=headers)
        await response.read()
        return response


@asynccontextmanager
async def street(*addresses: str) -> AsyncGenerator[Street]:
    async with aiohttp.ClientSession() as session:
        made = Street(session, {})
        listeners = Listeners(Door(made.engines.get, session), list(addresses))
        await listeners.open(PORT)
        await listeners.open(PORT + 1)
        try:
            yield made
        finally:
            listeners.close()


def reconfigure(engine: Engine, **changes: Any) -> None:
    pod = replace(engine.pod, settings=replace(engine.pod.settings, **changes))
    engine.update(pod, engine.lives, node_down=False)


async def test_one_listener_answers_for_each_pod_by_the_address_it_was_called_at() -> None:
    async with street(FIRST, SECOND) as town:
        town.settle(engine_pod("first"), FIRST)
        town.settle(engine_pod("second"), SECOND)

        replies = [await town.post(address, "/v1/chat/completions", CHAT) for address in town.engines]

        assert [reply.headers["x-localfleet-pod"] for reply in replies] == ["default/first", "default/second"]
        texts = [(await reply.json())["choices"][0]["message"]["content"] for reply in replies]
        assert [("pod default/first on cluster west" in text, "llama" in text) for text in texts] == [
            (True, True),
            (False, True),
        ]
        again = await town.post(FIRST, "/v1/chat/completions", CHAT)
        assert (await again.json())["choices"][0]["message"]["content"] == texts[0]


async def test_an_address_without_a_living_engine_closes_the_connection() -> None:
    async with street(FIRST, SECOND) as town:
        town.settle(engine_pod("loading"), SECOND, replace(QUICK, startup_seconds=60))

        for address in (FIRST, SECOND):
            with pytest.raises(aiohttp.ClientConnectionError):
                await town.get(address, "/health")


async def test_chat_streams_token_by_token_and_says_what_it_used() -> None:
    async with street(FIRST) as town:
        town.settle(engine_pod("p"), FIRST, replace(QUICK, tokens_per_second=100))
        body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
        body |= {"tools": [FUNCTION], "tool_choice": "none"}

        arrivals: list[float] = []
        frames: list[str] = []
        async with town.session.post(f"http://{FIRST}:{PORT}/v1/chat/completions", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.content:
                if line.strip():
                    arrivals.append(time.monotonic())
                    frames.append(line.decode().strip().removeprefix("data: "))

        assert frames[-1] == "[DONE]"
        chunks = [json.loads(frame) for frame in frames[:-1]]
        deltas = [chunk["choices"][0] for chunk in chunks[:-1]]
        assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
        assert [delta["finish_reason"] for delta in deltas] == [None] * (len(deltas) - 1) + ["stop"]
        assert chunks[-1]["choices"] == []
        whole = await town.post(FIRST, "/v1/chat/completions", CHAT)
        text = "".join(delta["delta"].get("content", "") for delta in deltas)
        assert text == (await whole.json())["choices"][0]["message"]["content"]
        assert chunks[-1]["usage"]["completion_tokens"] == len(deltas) - 2 == len(text.split()) >= 32
        assert arrivals[-1] - arrivals[0] > 10 / 100, "the tokens must come over time, not at once"


async def test_completions_are_cut_at_sixteen_tokens_or_where_the_request_says() -> None:
    async with street(FIRST) as town:
        town.settle(engine_pod("p"), FIRST)

        async def asked(**body: Any) -> tuple[int, str, str]:
            reply = await (await town.post(FIRST, "/v1/completions", {"prompt": "Hi", **body})).json()
            choice = reply["choices"][0]
            return reply["usage"]["completion_tokens"], choice["finish_reason"], choice["text"]

        count, finish, whole = await asked(max_tokens=500)
        assert (count, finish) == (len(whole.split()), "stop")
        cuts: list[tuple[int, Manifest]] = [(16, {}), (5, {"max_tokens": 5}), (count, {"max_tokens": count})]
        for limit, body in cuts:
            used, finish, text = await asked(**body)
            assert (used, finish) == (limit, "length" if limit < count else "stop")
            assert text.split() == whole.split()[:limit]
        assert (await asked(max_tokens=80, ignore_eos=True))[:2] == (80, "length")


@pytest.mark.parametrize("least", [1, 32, 200])
async def test_an_answer_is_sentences_about_the_prompt_and_ends_with_one(least: int) -> None:
    async with street(FIRST) as town:
        town.settle(engine_pod("p"), FIRST, replace(QUICK, output_tokens=least))

        async def text(prompt: str) -> str:
            body = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]}
            reply = await (await town.post(FIRST, "/v1/chat/completions", body)).json()
            return reply["choices"][0]["message"]["content"]

        said = await text("Why is the sky blue?")

        assert said.startswith('You asked "Why is the sky blue?". I am llama, a simulated model in pod default/p ')
        assert said.endswith(".")
        assert least <= len(said.split()) < least + 40
        assert (await text("word " * 5000)).startswith(f'You asked "{" ".join(["word"] * 20)}...". I am llama')
        assert (await text("")).startswith('You asked "Be brief.". I am llama')


async def test_messages_stream_the_events_that_anthropic_clients_expect() -> None:
    async with street(FIRST) as town:
        town.settle(engine_pod("p"), FIRST)
        body = {**CHAT, "max_tokens": 20, "system": "Be brief.", "stream": True}

        text = await (await town.post(FIRST, "/v1/messages", body)).text()

        events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
        names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
        assert names == [event["type"] for event in events]
        assert names[:2] == ["message_start", "content_block_start"]
        assert names[2:-3] == ["content_block_delta"] * 20
        assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert events[-2]["delta"]["stop_reason"] == "max_tokens"
        counted = await town.post(FIRST, "/v1/messages/count_tokens", body)
        assert (await counted.json())["input_tokens"] == 5


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "said"),
    [
        ("/v1/chat/completions", b'{"model": ', 400, "Bad Request", "json_invalid"),
        ("/v1/chat/completions", b"[]", 400, "Bad Request", "object"),
        ("/v1/chat/completions", {"model": "llama"}, 400, "Bad Request", "messages"),
        ("/v1/completions", {"prompt": "x", "max_tokens": "many"}, 400, "Bad Request", "max_tokens"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ("/v1/chat/completions", {**CHAT, "model": "gpt"}, 404, "NotFoundError", "The model `gpt` does not exist."),
    ],
)
async def test_a_bad_request_gets_vllms_error_body(path: str, body: Any, status: int, kind: str, said: str) -> None:
    async with street(FIRST) as town:
        town.settle(engine_pod("p"), FIRST)

        reply = await town.post(FIRST, path, body)

        error = (await reply.json())["error"]
        assert (reply.status, error["code"], error["type"]) == (status, status, kind)
        assert said in error["message"]


async def test_a_wrong_model_in_messages_gets_anthropics_error_body() -> None:
    async with street(FIRST) as town:
        town.settle(engine_pod("p"), FIRST)

        reply = await town.post(FIRST, "/v1/messages", {**CHAT, "model": "claude"})

        assert (reply.status, (await reply.json())["error"]["type"]) == (404, "not_found_error")


async def test_models_and_unknown_paths() -> None:
    async with street(FIRST) as town:
        town.settle(engine_pod("p", args=["--served-model-name", "a", "b"]), FIRST)

        status, text = await town.get(FIRST, "/v1/models")

        assert (status, [card["id"] for card in json.loads(text)["data"]]) == (200, ["a", "b"])
        assert (await town.get(FIRST, "/nothing"))[0] == 404
        assert (await town.get(FIRST, "/v1/chat/completions"))[0] == 405


async def test_errors_come_at_the_rate_that_was_asked_for() -> None:
    async with street(FIRST) as town:
        town.settle(engine_pod("p"), FIRST, replace(QUICK, error_rate=0.25, error_status=503))

        statuses = [(await town.post(FIRST, "/v1/chat/completions", CHAT)).status for _ in range(8)]

        assert statuses == [200, 200, 200, 503, 200, 200, 200, 503]


async def test_metrics_count_what_happened_and_parse_as_prometheus_text() -> None:
    async with street(FIRST) as town:
        engine = town.settle(engine_pod("p"), FIRST, replace(QUICK, max_running=1))
        await town.post(FIRST, "/v1/chat/completions", {**CHAT, "max_tokens": 7})

        async def values() -> dict[str, float]:
            families = text_string_to_metric_families((await town.get(FIRST, "/metrics"))[1])
            return {
                sample.name + sample.labels.get("finished_reason", ""): sample.value
                for family in families
                for sample in family.samples
                if sample.labels["model_name"] == "llama"
            }

        seen = await values()
        assert seen["vllm:generation_tokens_total"] == 7
        assert seen["vllm:prompt_tokens_total"] == 3
        assert (seen["vllm:request_success_totallength"], seen["vllm:request_success_totalstop"]) == (1, 0)
        assert seen["vllm:time_to_first_token_seconds_count"] == seen["vllm:time_per_output_token_seconds_count"] == 1

        reconfigure(engine, hang=Hang.GENERATION)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(town.post(FIRST, "/v1/chat/completions", CHAT))

            async def queued() -> bool:
                now = await values()
                load = now["vllm:num_requests_running"], now["vllm:num_requests_waiting"]
                return load == (1, 2) and now["vllm:kv_cache_usage_perc"] > 0

            await eventually("one request running and two waiting", queued)
            reconfigure(engine, hang=Hang.NOTHING)

        seen = await values()
        assert (seen["vllm:num_requests_running"], seen["vllm:kv_cache_usage_perc"]) == (0, 0)


async def test_a_client_that_goes_away_frees_its_place() -> None:
    async with street(FIRST) as town:
        engine = town.settle(engine_pod("p"), FIRST, replace(QUICK, max_running=1, tokens_per_second=0.001))
        async with town.session.post(
            f"http://{FIRST}:{PORT}/v1/chat/completions", json={**CHAT, "stream": True}
        ) as gone:
            await gone.content.readline()

        reconfigure(engine, tokens_per_second=0)

        assert (await town.post(FIRST, "/v1/chat/completions", CHAT)).status == 200


async def test_a_hung_engine_accepts_and_stays_silent_until_it_recovers() -> None:
    async with street(FIRST) as town:
        engine = town.settle(engine_pod("p"), FIRST)
        reconfigure(engine, hang=Hang.EVERYTHING)
        asked = asyncio.ensure_future(town.get(FIRST, "/health"))

        async def accepted() -> bool:
            return bool(engine.busy)

        await eventually("the request to be accepted", accepted)
        assert not asked.done()
        reconfigure(engine, hang=Hang.NOTHING)

        assert (await asked)[0] == 200


async def test_a_crash_breaks_streams_off_and_closes_the_port() -> None:
    async with street(FIRST) as town:
        engine = town.settle(engine_pod("p"), FIRST, replace(QUICK, tokens_per_second=0.001))
        async with town.session.post(
            f"http://{FIRST}:{PORT}/v1/chat/completions", json={**CHAT, "stream": True}
        ) as stream:
            await stream.content.readline()
            crashing = replace(engine.pod, settings=replace(engine.pod.settings, crash=1))
            lives = engine.lives
            while lives["engine"].restarts < 2:  # the first restart is immediate, the second one waits
                lives = advance(crashing, lives, time.time(), scale=1.0)
            engine.update(crashing, lives, node_down=False)

            with pytest.raises(aiohttp.ClientError):
                await stream.content.read()
        with pytest.raises(aiohttp.ClientConnectionError):
            await town.get(FIRST, "/health")


async def test_draining_finishes_streams_and_refuses_newcomers() -> None:
    async with street(FIRST) as town:
        engine = town.settle(engine_pod("p"), FIRST, replace(QUICK, tokens_per_second=200))
        async with town.session.post(
            f"http://{FIRST}:{PORT}/v1/chat/completions", json={**CHAT, "stream": True}
        ) as stream:
            await stream.content.readline()
            engine.drain()

            with pytest.raises(aiohttp.ClientConnectionError):
                await town.get(FIRST, "/health")
            assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")
        assert not engine.busy


async def test_a_sidecar_has_the_prompt_read_by_the_prefill_pod_and_forwards_to_its_engine() -> None:
    async with street(FIRST, SECOND) as town:
        sidecar = {"name": "pd-sidecar", "image": "sidecar", "ports": [{"containerPort": 8000}]}
        engine = {"ports": [{"containerPort": 8001}]}
        town.settle(
            engine_pod("decode", containers=[sidecar], engine=engine, labels={"llm-d.ai/role": "decode"}), FIRST
        )
        prefill = town.settle(engine_pod("prefill", labels={"llm-d.ai/role": "prefill"}), SECOND)
        header = {"x-prefiller-host-port": f"{SECOND}:{PORT}"}

        reply = await town.post(FIRST, "/v1/chat/completions", CHAT, **header)

        assert reply.status == 200
        assert (reply.headers["x-localfleet-pod"], reply.headers["x-localfleet-prefill"]) == (
            "default/decode",
            "default/prefill",
        )
        assert b'vllm:generation_tokens_total{engine="0",model_name="llama"} 1.0' in prefill.metrics.text()
        alone = await town.post(FIRST, "/v1/chat/completions", CHAT, **{"x-prefiller-host-port": "127.61.0.9:1"})
        assert (alone.status, "x-localfleet-prefill" in alone.headers) == (200, False)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
QUESTION = {"role": "user", "content": "What is the weather in Paris"}


TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser=hermes"]


@pytest.mark.parametrize(
    ("image", "flags", "refused"),
    [
        ("vllm/vllm-openai:v0.32.0", [], {"auto", "named"}),
        ("vllm/vllm-openai:v0.32.0", TOOLS[:1], {"auto", "named"}),
        ("vllm/vllm-openai:v0.32.0", TOOLS[1:], {"auto", "named"}),
        ("vllm/vllm-openai:v0.32.0", ["--tool-call-parser", "hermes", TOOLS[0]], set[str]()),
        ("lmsysorg/sglang:v0.5.23", [], set[str]()),
    ],
)
async def test_vllm_refuses_tools_without_its_flags(image: str, flags: list[str], refused: set[str]) -> None:
    tool = {"name": "weather", "input_schema": CITY}
    chosen: dict[str, tuple[Any, Any]] = {
        "auto": (None, None),
        "named": ({"type": "function", "function": {"name": "weather"}}, {"type": "tool", "name": "weather"}),
        "none": ("none", {"type": "none"}),
    }
    async with street(FIRST) as made:
        made.settle(engine_pod("a", args=["--model=llama", *flags], engine={"image": image}), FIRST)

        for name, (openai, anthropic) in chosen.items():
            bodies: dict[str, Manifest] = {
                "/v1/chat/completions": {"tools": [FUNCTION], "tool_choice": openai},
                "/v1/messages": {"tools": [tool], "tool_choice": anthropic},
            }
            for path, body in bodies.items():
                reply = await made.post(FIRST, path, {"messages": [QUESTION], **body})
                assert reply.status == (400 if name in refused else 200), (name, path)
                if reply.status == 400:
                    assert "--tool-call-parser" in (await reply.json())["error"]["message"]


@pytest.mark.parametrize("tools", [["weather"], [{"type": "function"}], [{"type": "function", "function": {}}]])
async def test_a_tool_that_is_none_is_refused(tools: list[Any]) -> None:
    async with street(FIRST) as made:
        made.settle(engine_pod("a", args=["--model=llama", *TOOLS]), FIRST)

        for path in ("/v1/chat/completions", "/v1/messages"):
            assert (await made.post(FIRST, path, {"messages": [QUESTION], "tools": tools})).status == 400


async def test_a_tool_is_called_in_each_dialect_until_it_has_answered() -> None:
    async with street(FIRST) as made:
        made.settle(engine_pod("a", args=["--model=llama", *TOOLS]), FIRST)

        async def chat(*more: Manifest, **asked: Any) -> Manifest:
            body = {"messages": [QUESTION, *more], "tools": [FUNCTION], **asked}
            answer: Manifest = await (await made.post(FIRST, "/v1/chat/completions", body)).json()
            return answer["choices"][0]

        called = await chat()
        assert called["finish_reason"] == "tool_calls"
        assert called["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":"Paris"}'}
        assert (await chat(tool_choice="none"))["finish_reason"] == "stop"
        result = {"role": "tool", "tool_call_id": called["message"]["tool_calls"][0]["id"], "content": "rain"}
        assert (await chat(called["message"], result))["finish_reason"] == "stop"

        tool = {"name": "weather", "input_schema": CITY}
        body = {"messages": [QUESTION], "tools": [tool], "tool_choice": {"type": "tool", "name": "weather"}}
        message: Manifest = await (await made.post(FIRST, "/v1/messages", body)).json()
        assert message["stop_reason"] == "tool_use"
        assert [(block["type"], block["input"]) for block in message["content"]] == [("tool_use", {"city": "Paris"})]
