"""Traces: what a reconcile is made of, told to whoever takes OTLP over HTTP, and to nobody unless asked."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs
from yarl import URL

from kubeloop import otlp, tracing
from kubeloop.errors import NotFound
from kubeloop.objects import Key
from kubeloop.otlp import LONGEST
from localfleet import binaries
from localfleet.network import free_ports
from localfleet.processes import Command, start
from modelplane_operator import __version__
from modelplane_operator.settings import traces_by_grpc, traces_enabled
from tests.api.contract import rich
from tests.support.api import Api
from tests.support.collector import Collector, Span, collecting
from tests.support.manifests import ROOT
from tests.support.processes import REAL, Process, eventually, operating
from tests.support.waiting import until

Manifest = dict[str, Any]
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
FLAGS = ("--lease-namespace=default", "--lease-duration=8", "--helm=")
LOADED = """
import json, sys
import modelplane_operator.__main__, modelplane_operator.host, modelplane_operator.kinds
print(json.dumps(sorted(sys.modules)))
"""

ONE = tracing.Service("modelplane-operator", __version__, "one")


@pytest.mark.processes
def test_nothing_of_opentelemetry_is_loaded_until_traces_are_asked_for() -> None:
    answer = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True, cwd=ROOT)
    loaded = json.loads(answer.stdout)

    assert "kubeloop.tracing" in loaded
    assert [name for name in loaded if name.partition(".")[0] == "opentelemetry" or name.endswith(".otlp")] == []


ENDPOINT, OF_TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("environment", "enabled"),
    [
        ({}, False),
        ({ENDPOINT: ""}, False),
        ({ENDPOINT: "http://one:4318"}, True),
        ({OF_TRACES: "http://one:4318/v1/traces", "OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({ENDPOINT: "http://one:4318", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({ENDPOINT: "http://one:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_SERVICE_NAME": "modelplane"}, False),
    ],
)
def test_the_variables_of_opentelemetry_enable_traces(environment: Mapping[str, str], *, enabled: bool) -> None:
    assert traces_enabled(environment) == enabled


BY_GRPC, OF_TRACES_BY = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({}, ""),
        ({BY_GRPC: "http/protobuf"}, ""),
        ({BY_GRPC: "grpc"}, BY_GRPC),
        ({BY_GRPC: "grpc", OF_TRACES_BY: ""}, BY_GRPC),
        ({BY_GRPC: "http/protobuf", OF_TRACES_BY: "grpc"}, OF_TRACES_BY),
        ({BY_GRPC: "grpc", OF_TRACES_BY: "http/protobuf"}, ""),
    ],
)
def test_the_variable_that_selects_grpc_is_found(environment: Mapping[str, str], variable: str) -> None:
    assert traces_by_grpc(environment) == variable


@pytest.mark.parametrize("endpoint", ["", None])
def test_traces_by_grpc_are_off_and_the_log_says_why(endpoint: str | None) -> None:
    with capture_logs() as lines, tracing.export_spans(endpoint, ONE, BY_GRPC):
        assert tracing.reconcile("ModelDeployment", Key("team", "llama")) is tracing.call("GET pods", dict)

    assert [{**line, "remedy": line["remedy"][:20]} for line in lines] == (
        []
        if endpoint is None
        else [
            {
                "event": "traces are off",
                "log_level": "warning",
                "why": "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, and they are sent by HTTP alone",
                "remedy": "set it to http/proto",
            }
        ]
    )


@pytest.mark.parametrize(("variable", "longest"), [("", LONGEST), ("9000", 9000)])
async def test_what_a_span_says_has_a_bound(monkeypatch: pytest.MonkeyPatch, variable: str, longest: int) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", variable)
    url = URL("https://api:6443") / ("x" * 100_000)
    async with collecting() as collector:
        with (
            tracing.export_spans(collector.endpoint, ONE),
            tracing.reconcile("ModelDeployment", Key("team", "llama")) as span,
        ):
            span.tell("later", "y" * 100_000)
            with tracing.call("GET pods", lambda: tracing.by_http("GET", url)):
                pass
        found = await told(collector, 2)

    assert len(found["GET pods"].attributes["url.full"]) == longest
    assert len(found["reconcile ModelDeployment"].attributes["later"]) == longest


async def test_traces_go_by_the_proxy_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    async with collecting() as collector:
        monkeypatch.setenv("HTTP_PROXY", collector.endpoint)
        with tracing.export_spans("http://collector.example:4318", ONE), tracing.reconcile("ModelCache", Key("a", "b")):
            pass
        await told(collector, 1)
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with tracing.export_spans(collector.endpoint, ONE), tracing.reconcile("ModelCache", Key("a", "b")):
            pass
        await told(collector, 2)


@pytest.mark.parametrize(
    ("status", "answer", "headers"),
    [
        (200, b"x" * 2**24, {}),
        (200, gzip.compress(bytes(2**24)), {"Content-Encoding": "gzip"}),
        (302, b"x" * 2**24, {"Location": "/v1/traces"}),
        (503, b"x" * 2**24, {}),
    ],
)
async def test_of_a_collectors_answer_no_more_than_its_beginning_is_read(
    status: int, answer: bytes, headers: Mapping[str, str]
) -> None:
    async with collecting() as collector:
        collector.status, collector.answer, collector.headers = status, answer, headers
        with otlp.session() as session:
            taken = await asyncio.to_thread(
                session.post, f"{collector.endpoint}/v1/traces", b"spans", allow_redirects=False
            )

    assert (taken.status_code, len(taken.content)) == (status, min(len(answer), otlp.ANSWER))


async def test_batches_go_by_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    async with collecting() as collector:
        collector.answer = b"{}"
        with tracing.export_spans(collector.endpoint, ONE):
            for count in (1, 2, 3):
                with tracing.reconcile("ModelCache", Key("a", "b")):
                    pass
                await until(lambda count=count: len(collector.bodies) >= count, "a batch")

    assert len(collector.connections) == 1


async def told(collector: Collector, count: int) -> dict[str, Span]:
    await until(lambda: len(collector.spans()) >= count, "the spans to be sent")
    return {span.name: span for span in collector.spans()}


async def test_requests_count_to_what_they_are_made_for_and_to_nothing_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    over, begun = asyncio.Event(), list[asyncio.Task[None]]()

    def ask(name: str) -> None:
        with tracing.call(name, lambda: tracing.by_http("GET", URL("https://user:word@api:6443/api/v1/pods?token=x"))):
            pass

    async def afterwards() -> None:
        with tracing.start_span("helm install", {"modelplane.cluster": "west"}):
            await over.wait()
            ask("of helm")
        ask("of nothing")

    async with collecting() as collector:
        with tracing.export_spans(collector.endpoint, ONE):
            ask("of nobody")
            with tracing.reconcile("ModelDeployment", Key("team", "llama")) as span:
                begun.append(asyncio.create_task(afterwards()))
                await asyncio.sleep(0)
                ask("of the reconcile")
                with pytest.raises(NotFound), tracing.call("missing", dict):
                    raise NotFound("a secret word")
                span.tell("modelplane.outcome", "Done")
            over.set()
            await begun[0]
            found = await told(collector, 5)

    assert found.keys() == {"reconcile ModelDeployment", "of the reconcile", "missing", "helm install", "of helm"}
    root, helm = found["reconcile ModelDeployment"], found["helm install"]
    assert {name: span.parent for name, span in found.items()} == {
        root.name: b"",
        "of the reconcile": root.id,
        "missing": root.id,
        helm.name: root.id,
        "of helm": helm.id,
    }
    assert {span.trace for span in found.values()} == {root.trace}
    assert {span.name for span in found.values() if span.remote} == {"of the reconcile", "missing", "of helm"}
    assert root.attributes == {
        "modelplane.kind": "ModelDeployment",
        "modelplane.name": "llama",
        "modelplane.namespace": "team",
        "modelplane.outcome": "Done",
    }
    assert found["of helm"].attributes == {
        "http.request.method": "GET",
        "server.address": "api",
        "server.port": 6443,
        "url.full": "https://api:6443/api/v1/pods",
    }
    assert (found["missing"].failed, found["missing"].attributes) == (True, {"error.type": "NotFound"})
    assert not any(word in body for body in collector.bodies for word in (b"secret word", b"token", b"user"))


def subject() -> Manifest:
    made = {part: value for part, value in rich()["ModelDeployment"].items() if part != "status"}
    return {**made, "metadata": {"name": "subject", "namespace": "default"}}


def of_subject(collector: Collector) -> list[Span]:
    return [span for span in collector.spans() if span.attributes.get("modelplane.name") == "subject"]


@pytest.mark.fleet
async def test_an_operator_tells_of_its_reconciles_and_requests_and_of_no_secret(
    clean_api: Api, tmp_path: Path
) -> None:
    async with collecting() as collector:
        environment = {**SOON, ENDPOINT: collector.endpoint, "OTEL_SERVICE_NAME": "mine"}
        with operating(clean_api.server.kubeconfig, tmp_path, *FLAGS, module=REAL, environment=environment) as operator:
            await operator.leads()
            await clean_api.create(subject())
            await until(lambda: bool(of_subject(collector)), "a reconcile to be told")
            operator.signal(signal.SIGTERM)
            assert await operator.ended(60.0) == 0

    (resource,) = {
        one.resource.SerializeToString() for request in collector.requests() for one in request.resource_spans
    }
    assert b"mine" in resource
    spans = {span.id: span for span in collector.spans()}
    reconcile = of_subject(collector)[0]
    assert reconcile.name == "reconcile ModelDeployment"
    assert reconcile.attributes["modelplane.outcome"] in {"Done", "Failed"}
    children = [span for span in spans.values() if span.parent == reconcile.id]
    written = next(span for span in children if span.attributes["http.request.method"] == "PUT")
    server = URL(yaml.safe_load(clean_api.server.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
    assert written.attributes == {
        "modelplane.cluster": "hub",
        "http.request.method": "PUT",
        "http.response.status_code": 200,
        "server.address": server.host,
        "server.port": server.port,
        "url.full": str(server / "apis/modelplane.ai/v1alpha1/namespaces/default/modeldeployments/subject/status"),
    }
    for span in spans.values():
        assert span.remote == (not span.name.startswith("reconcile ")), span
        assert span.parent in spans if span.remote else span.parent == b"", "nothing is told but of reconciles"
        assert "?" not in span.attributes.get("url.full", "")
        assert not {"watches", "leases"} & set(span.name.split())


@pytest.mark.fleet
@pytest.mark.parametrize("takes", ["nobody", "never"])
async def test_an_operator_goes_on_when_nobody_takes_its_traces_and_says_so_once(
    clean_api: Api, tmp_path: Path, takes: str
) -> None:
    """Who says no to all of it, and who takes the connection and never answers."""
    async with collecting() as collector:
        collector.status, collector.hangs = 400, takes == "never"
        environment = {**SOON, "OTEL_EXPORTER_OTLP_TIMEOUT": "1" if takes != "never" else "600"}
        environment[ENDPOINT] = collector.endpoint
        with operating(clean_api.server.kubeconfig, tmp_path, *FLAGS, module=REAL, environment=environment) as operator:
            await operator.leads()
            await clean_api.create(subject())
            await eventually(lambda: reconciled(operator), lambda count: (count or 0) >= 1, "a reconcile")
            await until(lambda: bool(collector.bodies), "it to send them")
            if takes != "never":
                await until(lambda: bool(operator.said("traces are not taken")), "it to say so")
            operator.signal(signal.SIGTERM)
            assert await operator.ended(30.0) == 0, "well before it would give up"
        await clean_api.delete(subject())
    troubled = [line["event"] for line in operator.lines() if line["level"] not in {"debug", "info"}]
    assert troubled == [] if takes == "never" else ["traces are not taken"]


async def reconciled(operator: Process) -> float | None:
    return await operator.value('modelplane_reconcile_seconds_count{kind="ModelDeployment",outcome="Done"}')


@pytest.mark.fleet
@pytest.mark.long
async def test_a_collector_takes_what_an_operator_sends(clean_api: Api, tmp_path: Path) -> None:
    """The OpenTelemetry project's own, which writes down every span that it has read."""
    (port,) = free_ports(1)
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"debug": {"verbosity": "detailed"}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["debug"]}},
        },
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    program = binaries.ensure("otelcol")["otelcol"]
    command = Command("otelcol", [str(program), f"--config={tmp_path / 'config.yaml'}"], tmp_path / "otelcol.log", {})
    collector = start(command)

    def tells() -> bool:
        collector.check()
        return "-> modelplane.name: Str(subject)" in command.log.read_text()

    try:
        environment = {**SOON, ENDPOINT: f"http://127.0.0.1:{port}"}
        with operating(clean_api.server.kubeconfig, tmp_path, *FLAGS, module=REAL, environment=environment) as operator:
            await operator.leads()
            await clean_api.create(subject())
            await until(tells, "the collector to tell of it")
            assert operator.said("traces are not taken") == []
    finally:
        collector.end()
    told = command.log.read_text()
    for line in (
        "-> service.name: Str(modelplane-operator)",
        "Name           : reconcile ModelDeployment",
        "Kind           : Client",
        "-> http.request.method: Str(PUT)",
        "-> http.response.status_code: Int(200)",
    ):
        assert line in told, line
