"""A gateway that routes to InferencePools: the real Envoy Gateway and Envoy, with our stand-ins beside them."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from localfleet import binaries, charts
from localfleet.fleet import Fleet
from localfleet.waiting import until
from modelplane_operator.api.serving_stack import ServingStackSpec
from modelplane_operator.rendering.serving_stack import STACK
from modelplane_operator.rendering.stack_charts import AI_GATEWAY, ENVOY
from tests.support import pools

SECONDS = 180.0
NAMESPACE = "pooled"
CHAT = {"model": "org/model", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 4}


@dataclass(frozen=True, slots=True)
class Pooled:
    """A cluster with two pools behind one gateway: `plain`, and `open`, whose picker lets any path through."""

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

    def pickers(self, pool: str) -> list[tuple[bool, int]]:
        """Of each pod of a pool's picker, whether it is ready and how often it was started again."""
        said = self.fleet.kubectl(self.cluster, "-n", NAMESPACE, "get", "pods", f"-lpicker={pool}", "-ojson")
        never = [{"ready": False, "restartCount": 0}]  # the fleet says nothing of one that has not been ready yet
        found = [one["status"].get("containerStatuses", never) for one in json.loads(said)["items"]]
        return [(one["ready"], one["restartCount"]) for statuses in found for one in statuses]

    def log(self, pool: str) -> str:
        """What the picker of a pool has written."""
        (file,) = self.logs.glob(f"{NAMESPACE}.{pool}-picker-*.epp.log")
        return file.read_text()

    @property
    def logs(self) -> Path:
        return self.fleet.folder / "clusters" / self.cluster / "logs"


@pytest.fixture(scope="module")
def pooled(fleet: Fleet, pool_cluster: str) -> Generator[Pooled]:
    """The cluster, once both pools answer."""
    passed = {**pools.JUDGES, "requestHandler": {"parsers": [{"pluginRef": "openai-parser"}, PASSTHROUGH]}}
    objects = [
        *pools.gateway("inference"),
        *(one for name in ("plain", "open") for one in (pools.engines(name), pools.route(name, "inference"))),
        *pools.pool("plain", NAMESPACE),
        *pools.pool("open", NAMESPACE, passed),
    ]
    fleet.kubectl(pool_cluster, "create", "namespace", NAMESPACE)
    found = Pooled(fleet, pool_cluster)
    found.apply(*objects)
    for name in ("plain", "open"):

        def answers(name: str = name) -> bool | None:
            try:
                return found.ask(f"/{name}/v1/chat/completions", CHAT)[0] == 200 or None
            except OSError:
                return None

        until(answers, seconds=SECONDS, what=f"an answer of pool {name}", interval=0.2)
    yield found


PASSTHROUGH = {"pluginRef": "passthrough-parser"}


@pytest.mark.fleet
def test_a_chat_of_a_pool_is_answered_by_one_of_its_pods(pooled: Pooled) -> None:
    status, headers, text = pooled.ask("/plain/v1/chat/completions", CHAT)

    assert status == 200
    assert headers["x-localfleet-pod"].startswith(f"{NAMESPACE}/plain-engines-")
    assert json.loads(text)["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.fleet
def test_a_body_that_the_picker_reads_arrives_with_its_keys_sorted(pooled: Pooled) -> None:
    said = {**CHAT, "seed": 12345678901234567890, "a": {"z": 1, "y": 2}}

    _, headers, _ = pooled.ask("/plain/v1/chat/completions", said)

    written = json.dumps({**said, "seed": 1}, sort_keys=True, separators=(",", ":"))
    written = written.replace('"seed":1', '"seed":12345678901234567000')
    assert headers["x-localfleet-body"] == hashlib.sha256(written.encode()).hexdigest()


@pytest.mark.fleet
def test_a_path_that_no_parser_knows_is_refused_unless_bodies_may_pass_unread(pooled: Pooled) -> None:
    body = b'{"z": 1,  "a": 2}'

    refused, _, why = pooled.ask("/plain/v1/audio/transcriptions", body)
    passed, headers, _ = pooled.ask("/open/v1/audio/transcriptions", body)

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
    pooled: Pooled, body: Any, headers: dict[str, str], status: int
) -> None:
    assert pooled.ask("/plain/v1/chat/completions", body, headers)[0] == status


@pytest.mark.fleet
def test_a_websocket_through_a_pool_never_opens(pooled: Pooled) -> None:
    asked = (
        "GET /plain/v1/realtime HTTP/1.1\r\nHost: pool\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", pooled.port), timeout=2) as connection:
        connection.sendall(asked.encode())

        with pytest.raises(TimeoutError):
            connection.recv(1)


@pytest.mark.fleet
def test_a_picker_says_that_it_serves_before_it_has_made_its_certificate(pooled: Pooled) -> None:
    said = pooled.log("plain")

    assert said.index("listening on 9003") < said.index("made a certificate in") < said.index("listening on 9002")


@pytest.mark.fleet
def test_a_request_without_a_body_goes_to_any_pod(pooled: Pooled) -> None:
    pods = {pooled.ask("/plain/v1/models")[1]["x-localfleet-pod"] for _ in range(30)}

    assert len(pods) == 2


@pytest.mark.fleet
def test_prompts_that_begin_alike_go_to_one_pod(pooled: Pooled) -> None:
    begun = {"role": "system", "content": "In the beginning there was a long prompt. " * 40}

    def pod(number: int) -> str:
        messages = [begun, {"role": "user", "content": f"Question {number}"}]
        return pooled.ask("/plain/v1/chat/completions", {**CHAT, "messages": messages})[1]["x-localfleet-pod"]

    assert len({pod(number) for number in range(10)}) == 1


@pytest.mark.fleet
def test_a_picker_is_asked_once_for_each_route_that_leads_to_its_pool(pooled: Pooled) -> None:
    again = pools.route("open", "inference")
    again["metadata"]["name"] = "again"
    again["spec"]["rules"][0]["matches"][0]["path"]["value"] = "/again/"
    path = "/again/v1/audio/speech"

    def passes() -> bool | None:
        return pooled.ask(path, b"{}")[1].get("x-localfleet-pod", "") != "" or None

    pooled.apply(again)
    try:
        until(passes, seconds=SECONDS, what="the second route to be there", interval=0.2)
        pooled.ask(path, b"{}", {"x-request-id": "00000000-0000-4000-8000-000000000001"})
        asked = pooled.log("open").splitlines()[-2:]
    finally:
        pooled.fleet.kubectl(pooled.cluster, "-n", NAMESPACE, "delete", "httproute", "again")

    assert [line.split()[2:] for line in asked[:1]] == [line.split()[2:] for line in asked[1:]]


@pytest.mark.fleet
def test_a_picker_ends_whose_profile_names_a_plugin_that_is_not_declared(pooled: Pooled) -> None:
    config = {**pools.JUDGES, "plugins": [one for one in pools.JUDGES["plugins"] if one["type"] != "queue-scorer"]}

    pooled.apply(*pools.pool("wrong", NAMESPACE, config))

    until(lambda: any(count for _, count in pooled.pickers("wrong")) or None, seconds=SECONDS, what="its second start")
    assert 'plugin "queue-scorer" of scheduling profile "default" is not among the plugins' in pooled.log("wrong")


@pytest.mark.fleet
def test_of_two_pickers_that_elect_one_the_other_lives_and_is_not_ready(pooled: Pooled) -> None:
    objects = pools.pool("two", NAMESPACE, arguments=("--ha-enable-leader-election",))
    (role,) = [one for one in objects if one["kind"] == "Role"]
    (pickers,) = [one for one in objects if one["kind"] == "Deployment"]
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
    role["rules"].append(leases)
    pickers["spec"]["replicas"] = 2
    (container,) = pickers["spec"]["template"]["spec"]["containers"]
    for word in ("liveness", "readiness"):
        container[f"{word}Probe"]["grpc"]["service"] = word

    pooled.apply(*objects)

    def one_leads() -> bool | None:
        return sorted(pooled.pickers("two")) == [(False, 0), (True, 0)] or None

    until(one_leads, seconds=SECONDS, what="one of two pickers to be ready", interval=0.2)


def test_the_fleets_envoy_gateway_asks_the_ai_gateway_as_the_operators_does() -> None:
    (part,) = [one for one in STACK if one.name == ENVOY]
    values = part.values(ServingStackSpec.model_construct(components=()))

    assert yaml.safe_load(charts.EXTENSION.read_text()) == values["config"]["envoyGateway"]["extensionManager"]


@pytest.mark.fleet
def test_the_charts_make_of_the_operators_values_what_the_fleets_own_manifests_say(tmp_path: Path) -> None:
    made = {
        one.name: rendered(tmp_path, one.chart, one.values(ServingStackSpec.model_construct(components=())))
        for one in STACK
        if one.name in {ENVOY, AI_GATEWAY}
    }

    (config,) = [one for one in made[ENVOY] if one["kind"] == "ConfigMap"]
    (ours,) = [one for one in made[AI_GATEWAY] if one["kind"] == "Deployment"]
    read = yaml.safe_load(config["data"]["envoy-gateway.yaml"])
    assert read["extensionManager"] == yaml.safe_load(charts.EXTENSION.read_text())
    assert read["provider"]["type"] == "Kubernetes"
    assert ours["spec"]["replicas"] == 2
    assert "--maxRecvMsgSize=67108864" in ours["spec"]["template"]["spec"]["containers"][0]["args"]


def rendered(folder: Path, chart: str, values: Any) -> list[Any]:
    """What Helm makes of a stand-in that serves InferencePools."""
    package = charts.pack(folder, chart, "1.0.0", charts.stand_in(chart, inference_pools=True))
    helm = binaries.ensure("helm")["helm"]
    said = subprocess.run(
        [helm, "template", "it", package, "-f-"], input=json.dumps(values), capture_output=True, text=True, check=True
    )
    return [one for one in yaml.safe_load_all(said.stdout) if one]
