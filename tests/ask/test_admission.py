"""The webhook on a real API server: what it refuses and tells, and that nothing waits for it or fails without it."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml

from kubeloop.client.access import read_kubeconfig
from kubeloop.client.kube import Kube, connect
from kubeloop.client.subresources import question
from kubeloop.errors import ClientError, Unreachable
from kubeloop.objects import Key
from kubeloop.types import SECRET, VALIDATING_WEBHOOK
from localfleet.network import free_ports
from modelplane_operator.api import labels, names
from modelplane_operator.ask.admission.rules.certificates import DELETED_AFTER, REPLACED, USED_AFTER
from modelplane_operator.ask.answers.documents import QUESTION
from modelplane_operator.ask.answers.schema import SCHEMA
from tests.support.api import Api
from tests.support.builders import deployment, engine, request
from tests.support.chart import rendered
from tests.support.command import ERROR, NO, OUT_OF_REACH, YES, modelplane
from tests.support.processes import REAL, Process, eventually, operating

pytestmark = [pytest.mark.fleet, pytest.mark.server]

Manifest = dict[str, Any]
TYPING_ERROR = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi") >= 0'
REFUSED = "engine main, Standalone, request gpu: 1:51: the ( is never closed"
CONFIGURATION = Key("", names.ADMISSION_WEBHOOK)
DELAY = 2.0 + 0.5  # the webhook's own two seconds, and the rest of the request
TRIES = 4  # on a machine that has other things to do, the fastest of so many is what the API server makes of it
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Said:
    """What kubectl did."""

    succeeded: bool
    text: str


@dataclass
class Stage:
    api: Api
    kube: Kube
    operator: Process
    port: int
    standby: Process
    standby_port: int

    async def kubectl(self, *arguments: str, manifest: Manifest) -> Said:
        """The command with what it prints, warnings among it."""
        process = await asyncio.create_subprocess_exec(
            self.api.server.binaries["kubectl"],
            f"--kubeconfig={self.api.server.kubeconfig}",
            *(*arguments, "-f", "-"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        text, _ = await process.communicate(yaml.safe_dump(manifest).encode())
        return Said(process.returncode == 0, text.decode())

    async def fastest(self, manifest: Manifest) -> float:
        """How long the API server takes to allow it; it must."""
        taken = list[float]()
        for _ in range(TRIES):
            began = time.monotonic()
            await self.api.admit(manifest)
            taken.append(time.monotonic() - began)
        return min(taken)

    async def ask(self, port: int) -> None:
        """Have the API server ask whoever listens on this port, and wait until it does."""
        asked = await asked_on(port, await self.path())
        await self.api.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=asked)
        await eventually(lambda: self.api.refusal(model(TYPING_ERROR)), lambda said: REFUSED in said, "the webhook")

    async def path(self) -> str:
        """Where the API server asks."""
        configuration = await self.kube.get(VALIDATING_WEBHOOK, CONFIGURATION)
        return urlsplit(configuration["webhooks"][0]["clientConfig"]["url"]).path

    async def certificates(self) -> dict[str, Manifest]:
        found = await self.kube.list(SECRET, namespace=names.SYSTEM_NAMESPACE)
        named = {one["metadata"]["name"]: one for one in found.items}
        return {name: one for name, one in sorted(named.items()) if name.startswith(names.ADMISSION_CERTIFICATE)}

    async def trusted(self) -> int:
        """How many certificates API servers trust."""
        configuration = await self.kube.get(VALIDATING_WEBHOOK, CONFIGURATION)
        bundle = configuration["webhooks"][0]["clientConfig"].get("caBundle", "")
        return base64.b64decode(bundle).count(b"BEGIN CERTIFICATE")

    async def age(self, number: int, by: timedelta) -> None:
        """As if the certificate had been made so long ago."""
        made = f"{labels.MADE}={(datetime.now(UTC) - by).isoformat(timespec='seconds')}"
        name = f"{names.ADMISSION_CERTIFICATE}-{number}"
        await self.api.kubectl("annotate", "--overwrite", f"-n{names.SYSTEM_NAMESPACE}", "secret", name, made)


def model(*selectors: str, name: str = "qwen", replicas: int = 1) -> Manifest:
    found = deployment(engine(request(*selectors)), name=name, namespace="default", replicas=replicas).to_manifest()
    return {**found, "metadata": {"name": name, "namespace": "default"}}


async def asked_on(port: int, path: str = "/") -> str:
    """The chart's webhook, at an address of this machine: no Service here leads anywhere."""
    (found,) = [one for one in await rendered() if one["kind"] == "ValidatingWebhookConfiguration"]
    hooks = [{**hook, "clientConfig": {"url": f"https://localhost:{port}{path}"}} for hook in found["webhooks"]]
    return yaml.safe_dump({**found, "webhooks": hooks})


@pytest.fixture(scope="module")
async def stage(api: Api, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """Two operators, one of which leads; the API server asks that one."""
    await api.kubectl("create", "namespace", names.SYSTEM_NAMESPACE)
    folder, ports = tmp_path_factory.mktemp("operators"), free_ports(2)
    flags = [f"--admission-listen=localhost:{port}" for port in ports]
    access = read_kubeconfig(api.server.kubeconfig.read_text())
    with ExitStack() as running:
        async with connect(access) as kube:
            await api.kubectl("apply", "--server-side", "-f", "-", stdin=await asked_on(ports[0]))
            leader, standby = (
                running.enter_context(operating(api.server.kubeconfig, folder, flag, module=REAL)) for flag in flags
            )
            await eventually(
                lambda: _leading(leader, standby), lambda told: sorted(told) == [0.0, 1.0], "one of two to lead"
            )
            found = Stage(api, kube, leader, ports[0], standby, ports[1])
            if await leader.value("modelplane_leading") == 0.0:
                found = Stage(api, kube, standby, ports[1], leader, ports[0])
            await found.ask(found.port)
            yield found


async def _leading(*operators: Process) -> list[float]:
    return [await one.value("modelplane_leading") or 0.0 for one in operators]


async def test_a_selector_with_a_typing_error_is_refused_with_its_place(stage: Stage) -> None:
    said = await stage.kubectl("apply", manifest=model(TYPING_ERROR, name="wrong"))
    assert not said.succeeded
    assert "denied the request: Invalid nodeSelector CEL expression: " in said.text
    assert REFUSED in said.text


async def test_what_would_not_be_placed_is_warned_of_and_stored(stage: Stage) -> None:
    said = await stage.kubectl("apply", manifest=model(name="stored"))
    assert said.succeeded
    assert "Warning: Decided now: No InferenceClusters found; 0 of 1 replica placed" in said.text
    again = await stage.kubectl("apply", manifest=model(name="stored"))
    assert "Warning" not in again.text


async def test_a_service_is_warned_of_unless_a_deployment_is_to_answer_for_it(stage: Stage) -> None:
    made = model(name="both")
    made["spec"]["template"]["metadata"] = {"labels": {"model": "both"}}
    service = {"apiVersion": made["apiVersion"], "kind": "ModelService", "metadata": made["metadata"]}

    def select(value: str) -> dict[str, object]:
        return {**service, "spec": {"endpoints": [{"selector": {"matchLabels": {"model": value}}}]}}

    both = {"apiVersion": "v1", "kind": "List", "items": [made, select("both")]}

    said = await stage.kubectl("apply", manifest=both)
    assert said.succeeded
    assert "No ModelEndpoints matched" not in said.text
    assert "No ModelEndpoints matched" in (await stage.kubectl("apply", manifest=select("aksed"))).text


async def test_a_dry_run_is_a_plan_and_stores_nothing(stage: Stage) -> None:
    said = await stage.kubectl("apply", "--dry-run=server", manifest=model(name="tried"))
    assert said.succeeded
    assert "Warning: Decided now: " in said.text
    assert "tried" not in await stage.api.kubectl("get", "modeldeployments", "-ndefault")


async def test_an_llm_inference_in_the_fleet_is_told_what_it_needs_and_where_it_would_run(stage: Stage) -> None:
    said = await stage.kubectl("apply", "--dry-run=server", manifest=inference("Qwen/Qwen2.5-7B-Instruct"))
    assert said.succeeded
    assert "Warning: Model Qwen/Qwen2.5-7B-Instruct " in said.text
    assert "1 GPU of at least " in said.text
    assert "Warning: Decided now: No InferenceClusters found; 0 of 1 replica placed" in said.text
    said = await stage.kubectl("apply", "--dry-run=server", manifest=inference("acme/secret"))
    assert (
        "Warning: The memory that model acme/secret needs does not follow from its name: set spec.memory" in said.text
    )
    assert "Decided" not in said.text


def inference(model: str) -> Manifest:
    metadata = {"name": "small", "namespace": "default"}
    kind = {"apiVersion": "inference.devopstoolkit.ai/v1alpha1", "kind": "LLMInference"}
    return {**kind, "metadata": metadata, "spec": {"model": model, "gpu": 1, "placement": "Fleet"}}


async def test_an_endpoint_that_leads_inside_is_refused(stage: Stage) -> None:
    metadata = {"name": "inside", "namespace": "default"}
    endpoint = {"apiVersion": "modelplane.ai/v1alpha1", "kind": "ModelEndpoint", "metadata": metadata}
    said = await stage.kubectl("apply", manifest={**endpoint, "spec": {"url": "http://169.254.169.254/"}})
    assert "denied the request" in said.text


@pytest.fixture(scope="module")
async def tenant(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kubeconfig of somebody with the role `view` in one namespace, and with `edit` in another."""
    chosen = ("Question", "modelplane-operator-view", "modelplane-operator-edit")
    found = [
        one
        for one in await rendered()
        if one["metadata"]["name"] in chosen or one.get("spec", {}).get("names", {}).get("kind") in chosen
    ]
    kubectl = stage.api.kubectl
    await kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(found))
    await kubectl("create", "namespace", "mine")
    await kubectl("create", "serviceaccount", "tina", "-ndefault")
    for namespace, roles in (("default", ["view"]), ("mine", ["view", "edit"])):
        for role in roles:
            given = (f"--clusterrole=modelplane-operator-{role}", "--serviceaccount=default:tina")
            await kubectl("create", "rolebinding", f"tina-{role}", f"-n{namespace}", *given)
    token = (await kubectl("create", "token", "tina", "-ndefault")).strip()
    config = yaml.safe_load(stage.api.server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    (path := tmp_path_factory.mktemp("tenant") / "tina").write_text(yaml.safe_dump(config))
    return path


async def test_a_tenant_asks_about_its_own_models_and_no_others(stage: Stage, tenant: Path) -> None:
    for name, namespace in (("asked", "default"), ("asked", "mine")):
        manifest = model(name=name)
        manifest["metadata"]["namespace"] = namespace
        await stage.api.create(manifest)

    async def answered() -> tuple[int, str]:
        return await modelplane(tenant, "why", "default/asked")

    code, said = await eventually(answered, lambda told: told[0] == NO, "an answer")
    assert said.splitlines()[0].startswith("default/asked is not Ready")
    assert "No InferenceClusters found; 0 of 1 replica placed" in said
    code, said = await modelplane(tenant, "why", "default/nobody")
    assert (code, "there is no ModelDeployment, ModelService or LLMInference default/nobody: kubectl get" in said) == (
        ERROR,
        True,
    )
    code, said = await modelplane(tenant, "tree", "default/asked")
    assert (code, said.splitlines()[0].startswith("ModelDeployment default/asked ")) == (YES, True), said
    code, said = await modelplane(tenant, "hardware", "-n", "default")
    assert (code, "no cluster publishes devices" in said) == (NO, True)

    code, said = await modelplane(tenant, "plan", "mine/asked", "--replicas", "3")
    assert (code, "0 of 3 replicas placed" in said) == (NO, True)
    code, said = await modelplane(tenant, "plan", "-f", "-", "-n", "mine", stdin=yaml.safe_dump(model(name="new")))
    assert (code, "0 of 1 replica placed" in said) == (OUT_OF_REACH, False)  # the file says namespace default
    assert "you may not create ModelDeployment default/new" in said
    code, said = await modelplane(tenant, "plan", "default/asked", "--replicas", "3")
    assert (code, "you may not update ModelDeployment default/asked" in said) == (OUT_OF_REACH, True)
    two = [{**model(name=name), "metadata": {"name": name, "namespace": "mine"}} for name in ("a", "b")]
    code, said = await modelplane(tenant, "plan", "-f", "-", stdin=yaml.safe_dump_all(two))
    assert (code, "mine/a: " in said, "mine/b: " in said) == (NO, True, True)
    two[1]["metadata"]["namespace"] = "default"
    code, said = await modelplane(tenant, "plan", "-f", "-", stdin=yaml.safe_dump_all(two))
    assert (code, "you may not create ModelDeployment default/b" in said) == (OUT_OF_REACH, True)
    code, said = await modelplane(tenant, "plan", "--drain", "berlin")
    assert (code, "you may not list InferenceClusters" in said) == (OUT_OF_REACH, True)
    drain = {"apiVersion": "modelplane.ai/v1alpha1", "kind": "Question", "metadata": {"name": "x", "namespace": "mine"}}
    said = await stage.kubectl("create", manifest={**drain, "spec": {"ask": "Plan", "drain": "berlin"}})
    assert (said.succeeded, "there is no InferenceCluster berlin; there are: none" in said.text) == (False, True)
    code, said = await modelplane(tenant, "why", "kube-system/asked")
    assert code == OUT_OF_REACH
    stored = {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "Question",
        "metadata": {"name": "x", "namespace": "mine"},
    }
    said = await stage.kubectl("create", manifest={**stored, "spec": {"ask": "Hardware"}})
    assert (said.succeeded, "No cluster publishes devices" in said.text) == (False, True)
    assert await stage.api.kubectl("get", "questions", "-A", "-oname") == ""


async def test_a_tenant_who_asks_without_a_pause_takes_no_answer_from_others(stage: Stage, tenant: Path) -> None:
    """By plans as large as they may be, forty at a time."""
    padded = model(name="large")
    padded["metadata"]["annotations"] = {f"padding-{n}": "x" * 1000 for n in range(200)}
    spec = {"ask": "Plan", "manifest": json.dumps(padded, default=str)}
    ends, refused = asyncio.Event(), Counter[str]()

    async def flood(kube: Kube) -> None:
        while not ends.is_set():
            try:
                await question(kube, QUESTION, "mine", spec)
                refused["answered"] += 1
            except ClientError as error:
                if "try again" in str(error):
                    refused["busy"] += 1
                elif not isinstance(error, Unreachable):  # a busy machine took no connection in time
                    refused[str(error)] += 1

    text = await asyncio.to_thread(tenant.read_text)
    async with connect(read_kubeconfig(text)) as kube, asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(flood(kube))
        try:
            await eventually(lambda: _of(refused), lambda told: told["busy"] > 40, "the operator to have too many")
            answer = await eventually(lambda: _patiently(stage.kube), bool, "an answer to somebody else")
            assert REFUSED in await stage.api.refusal(model(TYPING_ERROR))
        finally:
            ends.set()
    assert answer == {"apiVersion": SCHEMA, "kind": "Hardware", "items": []}
    assert refused["answered"] > 0
    assert set(refused) == {"answered", "busy"}


async def _patiently(kube: Kube) -> object:
    """The answer; None where a busy machine takes too long for it. There is always a place to wait in."""
    try:
        return await question(kube, QUESTION, "default", {"ask": "Hardware"})
    except ClientError as error:
        assert isinstance(error, Unreachable) or "took too long" in str(error)
        return None


async def _of(counted: Counter[str]) -> Counter[str]:
    return counted


async def test_nobody_but_the_api_server_is_told_anything(stage: Stage) -> None:
    """The port is open to every pod of the hub, and a review tells of other namespaces: it says which models are
    there, on which clusters, and which labels they have."""
    service = {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": "a", "namespace": "b"},
    }
    request = {
        "uid": "1",
        "resource": {"group": "modelplane.ai", "version": "v1alpha1", "resource": "modelservices"},
        "operation": "CREATE",
        "userInfo": {},
        "object": {**service, "spec": {"endpoints": [{"selector": {"matchLabels": {"model": "x"}}}]}},
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    for port in (stage.standby_port, stage.port):
        await stage.ask(port)  # until then it may not listen yet
    path = await stage.path()
    async with aiohttp.ClientSession() as session:
        for port in (stage.port, stage.standby_port):
            told = {}
            for asked in (path, "/", "/modelservices", path[:-1], f"{path}/"):
                url = f"https://localhost:{port}{asked}"
                async with session.post(url, json=review, ssl=False) as answer:
                    told[asked] = answer.status, await answer.text()
            assert "No ModelEndpoints matched" in told.pop(path)[1]
            assert {status for status, _ in told.values()} == {404}


async def test_a_standby_answers_too(stage: Stage) -> None:
    await stage.ask(stage.standby_port)
    await stage.ask(stage.port)


async def test_certificates_change_without_a_request_that_is_not_answered(stage: Stage) -> None:
    """A request that found no answer would be allowed."""
    over, answers = asyncio.Event(), list[str]()

    async def ask() -> None:
        while not over.is_set():
            answers.append(await stage.api.refusal(model(TYPING_ERROR)))

    asking = asyncio.create_task(ask())
    await stage.age(1, REPLACED + HOUR)
    await eventually(stage.certificates, lambda found: len(found) == 2, "another certificate")
    await eventually(stage.trusted, lambda count: count == 2, "both to be trusted")
    await stage.age(2, USED_AFTER + HOUR)
    await eventually(_shown(stage.operator, 2), bool, "the new one to be shown by the leader")
    await eventually(_shown(stage.standby, 2), bool, "the new one to be shown by the standby")
    await stage.age(2, USED_AFTER + DELETED_AFTER + HOUR)
    await eventually(
        stage.certificates, lambda found: [*found] == [f"{names.ADMISSION_CERTIFICATE}-2"], "the old to go"
    )
    await eventually(stage.trusted, lambda count: count == 1, "no more than one to be trusted")
    await asyncio.sleep(1)
    over.set()
    await asking
    assert len(answers) > 10
    assert [said for said in answers if REFUSED not in said] == []


def _shown(operator: Process, number: int) -> Any:
    async def found() -> bool:
        told = operator.said("admission certificate shown")
        return any(line["secret"].endswith(f"-{number}") for line in told)

    return found


async def test_who_leads_tells_that_somebody_has_changed_what_the_webhook_is_sent(stage: Stage) -> None:
    configuration = await stage.kube.get(VALIDATING_WEBHOOK, CONFIGURATION)

    async def tells(hooks: list[Manifest], altered: float) -> None:
        live = await stage.kube.get(VALIDATING_WEBHOOK, CONFIGURATION)
        await stage.kube.replace({**live, "webhooks": hooks})
        news = ("create", "secret", "generic", f"news-{altered:.0f}", f"-n{names.SYSTEM_NAMESPACE}")
        await stage.api.kubectl(*news)  # which has the leader look at once
        told = stage.operator.value
        await eventually(lambda: told("modelplane_webhook_altered"), lambda said: said == altered, "the leader to tell")

    (first, *others), rules = configuration["webhooks"], [{"operations": ["CREATE"], "resources": ["leases"]}]
    foreign = [{**one, "apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"]} for one in rules]
    await tells([{**first, "rules": [*first["rules"], *foreign]}, *others], 1.0)
    await tells([first, *others], 0.0)
    assert await stage.standby.value("modelplane_webhook_altered") is None


async def test_an_operator_that_hangs_delays_nobody_by_more_than_two_seconds(stage: Stage) -> None:
    stage.operator.signal(signal.SIGSTOP)
    try:
        seconds = await stage.fastest(model(TYPING_ERROR, name="hung"))
    finally:
        stage.operator.signal(signal.SIGCONT)
    assert 1.0 < seconds < DELAY


async def test_without_an_operator_everything_can_be_written(stage: Stage, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    flag = f"--admission-listen=localhost:{port}"
    with operating(stage.api.server.kubeconfig, tmp_path, flag, module=REAL) as one:
        await stage.ask(port)
        one.signal(signal.SIGKILL)
        await one.ended(30.0)
        seconds = await stage.fastest(model(TYPING_ERROR, name="alone"))
    await stage.ask(stage.port)
    assert seconds < DELAY
