"""What the command does where the hub lets its user read little: it asks the operator, or says what is lacking."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from kubeloop.client.kube import Kube
from kubeloop.errors import Forbidden, NotFound, Unreachable
from modelplane_operator.api import ModelDeployment, ModelReplica
from modelplane_operator.ask.answers.questions import QuestionError, answer, parse_question
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.cli.hub import either
from modelplane_operator.cli.known import names
from tests.support.builders import EPOCH, cluster, deployment
from tests.support.command import NO, OUT_OF_REACH, YES, modelplane
from tests.support.observed import placed
from tests.support.web_server import on_loopback

OWN = deployment(replicas=2)
FLEET = (cluster("berlin", nodes=1),)
SEEN = Snapshot(FLEET, tuple(map(ModelReplica.parse, placed(OWN, *FLEET))), (OWN,), (), EPOCH)
QUESTIONS = f"/apis/modelplane.ai/v1alpha1/namespaces/{OWN.key.namespace}/questions"
ONE = f"/apis/modelplane.ai/v1alpha1/namespaces/{OWN.key.namespace}/modeldeployments/{OWN.key.name}"
REPLICAS = f"/apis/modelplane.ai/v1alpha1/namespaces/{OWN.key.namespace}/modelreplicas"
DEPLOYMENTS = ONE.rpartition("/")[0]
SERVICES = f"/apis/modelplane.ai/v1alpha1/namespaces/{OWN.key.namespace}/modelservices"
LISTS: dict[str, tuple[Any, ...]] = {SERVICES: (), REPLICAS: SEEN.replicas, DEPLOYMENTS: (OWN,)}
EVERYWHERE: dict[str, tuple[Any, ...]] = {
    "/apis/modelplane.ai/v1alpha1/inferenceclusters": FLEET,
    "/apis/modelplane.ai/v1alpha1/modelreplicas": SEEN.replicas,
    "/apis/modelplane.ai/v1alpha1/modeldeployments": (OWN,),
    "/apis/modelplane.ai/v1alpha1/modelcaches": (),
}


@dataclass
class Hub:
    """An API server that lets its user read one namespace's models, and the operator's webhook behind it."""

    url: str = ""
    answers: bool = True
    reads_fleet: bool = False
    hostile: str = ""
    """What it says with its refusals, and calls an object more."""
    cut: tuple[str, ...] = ()
    """Fields of Questions that its definition does not have."""
    paths: list[str] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def kubeconfig(self, folder: Path) -> Path:
        config = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": OWN.key.namespace}}],
            "clusters": [{"name": "it", "cluster": {"server": self.url}}],
            "users": [{"name": "it", "user": {"token": "t"}}],
        }
        (path := folder / "kubeconfig").write_text(yaml.safe_dump(config))
        return path

    def said(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        self.paths.append(path)
        if path == ONE:
            return 200, OWN.to_manifest()
        lists = {**LISTS, **(EVERYWHERE if self.reads_fleet else {})}
        if path in lists:
            items = [one.to_manifest() for one in lists[path]]
            items += [{**one, "metadata": {**one["metadata"], "name": self.hostile}} for one in items if self.hostile]
            return 200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}
        if (method, path) != ("POST", QUESTIONS):
            return 403, {"kind": "Status", "message": f"{path} is forbidden{self.hostile}"}
        if not self.answers:
            return 404, {"kind": "Status", "message": "the server could not find the requested resource"}
        question = json.loads(body)
        question["spec"] = {name: one for name, one in question["spec"].items() if name not in self.cut}
        self.asked.append(question["spec"])
        try:
            found = answer(parse_question(question), (), SEEN)
        except QuestionError as error:
            return error.code, {"kind": "Status", "message": str(error)}
        causes = [{"reason": "Answer", "message": json.dumps(found.document)}]
        return 422, {"kind": "Status", "message": found.words, "details": {"causes": causes}}


@pytest.fixture
def hub() -> Iterator[Hub]:
    found = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            status, said = found.said(self.command, self.path.partition("?")[0], self.rfile.read(size))
            data = json.dumps(said, default=str).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815 - the name that the server looks for

        def handle(self) -> None:
            with suppress(ConnectionError):  # of lists that are read at once the client breaks off the rest
                super().handle()

        def log_message(self, *_: object) -> None:
            pass

    with on_loopback(Handler) as found.url:
        yield found


async def test_whoever_may_not_read_the_fleet_is_answered_by_the_operator(hub: Hub, tmp_path: Path) -> None:
    code, said = await modelplane(hub.kubeconfig(tmp_path), "why", OWN.key.name)
    first, cause, remedy, *_ = said.splitlines()
    assert (code, first.startswith(f"{OWN.key} is not Ready")) == (NO, True), said
    assert cause.startswith("1 of 2 replicas placed")
    assert remedy.startswith("What would help: ")
    assert hub.asked == [{"ask": "Why", "modelDeployment": OWN.key.name}]


async def test_plans_and_hardware_are_asked_for_as_well(hub: Hub, tmp_path: Path) -> None:
    config = hub.kubeconfig(tmp_path)
    code, said = await modelplane(config, "plan", OWN.key.name, "--replicas", "1")
    assert (code, "1 of 1 replica placed" in said) == (YES, True)
    new = deployment(name="new", uid="").to_manifest()
    code, said = await modelplane(config, "plan", "-f", "-", stdin=yaml.safe_dump(json.loads(json.dumps(new))))
    assert (code, f"{OWN.key.namespace}/new" in said) == (NO, True)
    code, said = await modelplane(config, "hardware")
    assert (code, 'device.driver == "gpu.nvidia.com"' in said) == (YES, True)
    assert [one["ask"] for one in hub.asked] == ["Plan", "Plan", "Hardware"]


async def test_where_nobody_answers_it_is_told_what_the_user_lacks(hub: Hub, tmp_path: Path) -> None:
    hub.answers = False
    code, said = await modelplane(hub.kubeconfig(tmp_path), "why", OWN.key.name)
    assert (code, "is forbidden" in said, "kubectl auth can-i" in said) == (OUT_OF_REACH, True, True), said
    code, said = await modelplane(hub.kubeconfig(tmp_path), "fleet")
    assert (code, "is forbidden" in said) == (OUT_OF_REACH, True)


async def test_a_refusal_is_told_whatever_broke_off_beside_it() -> None:
    refusal = Forbidden("it is forbidden")

    async def read(_: Kube) -> None:
        raise ExceptionGroup("lists that are read at once", [Unreachable("it broke off"), refusal])

    async def ask(_: Kube) -> None:
        raise NotFound("nobody answers")

    with pytest.raises(Forbidden) as told:
        await either(cast("Any", None), read, ask)
    assert told.value is refusal


async def test_the_models_of_the_namespace_are_told_to_whoever_may_read_no_more(hub: Hub, tmp_path: Path) -> None:
    code, said = await modelplane(hub.kubeconfig(tmp_path), "top", "models", "-o", "json")
    assert (code, [(one["name"], one["nodes"]) for one in json.loads(said)["items"]]) == (YES, [(OWN.key.name, 1)])


async def test_the_operator_is_asked_before_the_hub_is_read(hub: Hub, tmp_path: Path) -> None:
    hub.reads_fleet = True
    code, said = await modelplane(hub.kubeconfig(tmp_path), "why", OWN.key.name)
    assert (code, said.startswith(f"{OWN.key} is not Ready")) == (NO, True)
    assert hub.paths == [QUESTIONS]


async def test_plans_of_clusters_and_of_several_deployments_are_the_operator_s_too(hub: Hub, tmp_path: Path) -> None:
    hub.reads_fleet, config = True, hub.kubeconfig(tmp_path)
    several = [deployment(name=name, uid="", replicas=1).to_manifest() for name in ("a", "b")]
    text = yaml.safe_dump_all(json.loads(json.dumps(several)))
    for command in (["--drain=berlin"], ["--without=berlin"], ["-f", "-"]):
        hub.answers, hub.paths = True, []
        asked_for = await modelplane(config, "plan", *command, "-o", "json", stdin=text)
        assert hub.paths == [QUESTIONS]
        hub.answers = False
        assert await modelplane(config, "plan", *command, "-o", "json", stdin=text) == asked_for
        assert json.loads(asked_for[1])["items"], asked_for


async def test_a_manifest_without_a_namespace_is_planned_in_that_of_the_context(hub: Hub, tmp_path: Path) -> None:
    config, manifest = hub.kubeconfig(tmp_path), json.loads(json.dumps(deployment(name="a", uid="").to_manifest()))
    for metadata in ({"name": "a", "namespace": None}, {"name": "a"}):
        text = yaml.safe_dump({**manifest, "metadata": metadata})
        _, said = await modelplane(config, "plan", "-f", "-", "-o", "json", stdin=text)
        assert [one["namespace"] for one in json.loads(said)["items"]] == [OWN.key.namespace], said


async def test_a_file_without_a_deployment_is_refused_before_anybody_is_asked(hub: Hub, tmp_path: Path) -> None:
    text = yaml.safe_dump({"kind": "ModelCache", "metadata": {"name": "a"}})
    code, said = await modelplane(hub.kubeconfig(tmp_path), "plan", "-f", "-", stdin=text)
    assert (code, "has no ModelDeployment" in said, hub.paths) == (2, True, [])


async def test_an_operator_that_knows_no_clusters_in_questions_is_not_needed(hub: Hub, tmp_path: Path) -> None:
    """A hub of before would cut the fields off that it does not know."""
    hub.reads_fleet, hub.cut = True, ("drain", "without")
    code, said = await modelplane(hub.kubeconfig(tmp_path), "plan", "--drain=berlin")
    assert (code, f"{OWN.key}" in said) == (NO, True), said
    assert hub.asked == [{"ask": "Plan"}]


async def test_without_an_operator_the_hub_is_read_and_says_the_same(hub: Hub, tmp_path: Path) -> None:
    hub.reads_fleet, config = True, hub.kubeconfig(tmp_path)
    for command in (["why", OWN.key.name], ["plan", OWN.key.name, "--replicas=3"], ["hardware"]):
        hub.answers = True
        asked_for = await modelplane(config, *command, "-o", "json")
        hub.answers = False
        assert await modelplane(config, *command, "-o", "json") == asked_for
    assert len(hub.asked) == 3


async def test_a_terminal_obeys_nothing_of_what_a_hub_says(hub: Hub, tmp_path: Path) -> None:
    hub.answers, hub.hostile = False, "\x1b]0;renamed\x07\x1b[2J\u202e"
    code, said = await modelplane(hub.kubeconfig(tmp_path), "fleet")
    assert (code, "is forbidden" in said) == (OUT_OF_REACH, True)
    assert not [one for one in said if one in hub.hostile and not one.isprintable()]
    assert "\u202e" not in said


@pytest.mark.parametrize("hostile", ["$(touch owned)", "`touch owned`", "a';touch owned;'", "\x1b[2J", "a b"])
async def test_a_shell_completes_names_of_objects_and_nothing_else(hub: Hub, tmp_path: Path, hostile: str) -> None:
    hub.hostile = hostile
    given = {"kubeconfig": hub.kubeconfig(tmp_path), "namespace": OWN.key.namespace}
    assert await asyncio.to_thread(names, ModelDeployment, given, "") == [OWN.key.name]


def test_nothing_of_the_scheduler_is_loaded_to_print_an_answer() -> None:
    text = "import sys; from modelplane_operator.cli import __main__, answers; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("aiohttp", "pydantic", "lark", "structlog", "modelplane_operator.api", "modelplane_operator.scheduling")
    assert not [one for one in loaded if one.startswith(heavy)]
