"""The endpoint picker's stand-in, asked by the real Envoy Gateway and Envoy."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localfleet.fleet import Fleet
from localfleet.waiting import until
from tests.support import pickers

SECONDS = 180.0
CLUSTER = "picked"
NAMESPACE = "models"
CHAT = {"model": "org/model", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 4}


@dataclass(frozen=True, slots=True)
class Picked:
    """A cluster with two pickers behind one gateway: `plain`, and `open`, which lets any path through."""

    fleet: Fleet
    cluster: str

    @property
    def port(self) -> int:
        return self.fleet.cluster(self.cluster)["ports"]["gateway"]

    def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        """The status, the headers and the text of an answer; `body` is sent as it is, or as JSON."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        method = "GET" if content is None else "POST"
        connection.request(method, path, content, {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        text = answer.read().decode()
        connection.close()
        return answer.status, found, text

    def apply(self, *objects: Any) -> None:
        documents = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.fleet.kubectl(self.cluster, "-n", NAMESPACE, "apply", "-f-", documents=documents)

    def pickers(self, name: str) -> list[tuple[bool, int]]:
        """Return of each pod of a picker whether it is ready and how often it was started again."""
        said = self.fleet.kubectl(self.cluster, "-n", NAMESPACE, "get", "pods", f"-lpicker={name}", "-ojson")
        never = [{"ready": False, "restartCount": 0}]  # the fleet says nothing of one that has not been ready yet
        found = [one["status"].get("containerStatuses", never) for one in json.loads(said)["items"]]
        return [(one["ready"], one["restartCount"]) for statuses in found for one in statuses]

    def log(self, name: str) -> str:
        """Return what a picker has written."""
        (file,) = self.logs.glob(f"{NAMESPACE}.{name}-picker-*.epp.log")
        return file.read_text()

    @property
    def logs(self) -> Path:
        return self.fleet.folder / "clusters" / self.cluster / "logs"


@pytest.fixture(scope="module")
def picked(fleet: Fleet) -> Generator[Picked]:
    """Yield the cluster, once the engines of both answer."""
    passed = {**pickers.JUDGES, "requestHandler": {"parsers": [{"pluginRef": "openai-parser"}, PASSTHROUGH]}}
    objects = [
        *pickers.gateway("inference"),
        *(one for name in ("plain", "open") for one in (*pickers.engines(name), pickers.route(name, "inference"))),
        *pickers.picker("plain", NAMESPACE),
        *pickers.picker("open", NAMESPACE, passed),
    ]
    fleet.add_worker(CLUSTER)
    fleet.kubectl(CLUSTER, "create", "namespace", NAMESPACE)
    found = Picked(fleet, CLUSTER)
    found.apply(*objects)
    for name in ("plain", "open"):

        def answers(name: str = name) -> bool | None:
            try:
                return found.ask(f"/{name}/v1/chat/completions", CHAT)[0] == 200 or None
            except OSError:
                return None

        until(answers, seconds=SECONDS, what=f"an answer of {name}", interval=0.2)
    yield found
    fleet.remove(CLUSTER)


PASSTHROUGH = {"pluginRef": "passthrough-parser"}


@pytest.mark.fleet
def test_a_chat_is_answered_by_one_of_the_pods(picked: Picked) -> None:
    status, headers, text = picked.ask("/plain/v1/chat/completions", CHAT)

    assert status == 200
    assert headers["x-localfleet-pod"].startswith(f"{NAMESPACE}/plain-engines-")
    assert json.loads(text)["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.fleet
def test_a_body_that_the_picker_reads_arrives_with_its_keys_sorted(picked: Picked) -> None:
    said = {**CHAT, "seed": 12345678901234567890, "a": {"z": 1, "y": 2}}

    _, headers, _ = picked.ask("/plain/v1/chat/completions", said)

    written = json.dumps({**said, "seed": 1}, sort_keys=True, separators=(",", ":"))
    written = written.replace('"seed":1', '"seed":12345678901234567000')
    assert headers["x-localfleet-body"] == hashlib.sha256(written.encode()).hexdigest()


@pytest.mark.fleet
def test_a_path_that_no_parser_knows_is_refused_unless_bodies_may_pass_unread(picked: Picked) -> None:
    body = b'{"z": 1,  "a": 2}'

    refused, _, why = picked.ask("/plain/v1/audio/transcriptions", body)
    passed, headers, _ = picked.ask("/open/v1/audio/transcriptions", body)

    assert refused == 400
    assert "no parser registered matching path suffix" in why
    assert passed == 404  # the engine's own word: it has no such route
    assert headers["x-localfleet-body"] == hashlib.sha256(body).hexdigest()


@pytest.mark.fleet
@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"messages": CHAT["messages"]}, {}, 400),
        ({**CHAT, "messages": []}, {}, 400),
        (CHAT, {"prefer": "if-available"}, 412),
        (CHAT, {"x-llm-d-model-name-rewrite": "nobody"}, 404),
    ],
    ids=["no model", "no messages", "only where it is cached", "another model's name"],
)
def test_a_picker_refuses_what_the_real_one_refuses(
    picked: Picked, body: Any, headers: dict[str, str], status: int
) -> None:
    assert picked.ask("/plain/v1/chat/completions", body, headers)[0] == status


@pytest.mark.fleet
def test_a_websocket_through_a_picker_never_opens(picked: Picked) -> None:
    asked = (
        "GET /plain/v1/realtime HTTP/1.1\r\nHost: any\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", picked.port), timeout=2) as connection:
        connection.sendall(asked.encode())

        with pytest.raises(TimeoutError):
            connection.recv(1)


@pytest.mark.fleet
def test_a_request_without_a_body_goes_to_any_pod(picked: Picked) -> None:
    pods = {picked.ask("/plain/v1/models")[1]["x-localfleet-pod"] for _ in range(30)}

    assert len(pods) == 2


@pytest.mark.fleet
def test_prompts_that_begin_alike_go_to_one_pod(picked: Picked) -> None:
    begun = {"role": "system", "content": "In the beginning there was a long prompt. " * 40}

    def pod(number: int) -> str:
        messages = [begun, {"role": "user", "content": f"Question {number}"}]
        return picked.ask("/plain/v1/chat/completions", {**CHAT, "messages": messages})[1]["x-localfleet-pod"]

    assert len({pod(number) for number in range(10)}) == 1


@pytest.mark.fleet
def test_a_picker_ends_whose_profile_names_a_plugin_that_is_not_declared(picked: Picked) -> None:
    config = {**pickers.JUDGES, "plugins": [one for one in pickers.JUDGES["plugins"] if one["type"] != "queue-scorer"]}

    picked.apply(*pickers.picker("wrong", NAMESPACE, config))

    until(lambda: any(count for _, count in picked.pickers("wrong")) or None, seconds=SECONDS, what="its second start")
    assert 'plugin "queue-scorer" of scheduling profile "default" is not among the plugins' in picked.log("wrong")
