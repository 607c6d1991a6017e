"""What `modelplane render` prints: the operator's own objects, without a fleet and with one, and plain examples.

`pytest --golden-update tests/cli/test_rendering.py` writes examples/llminference/plain.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from modelplane_operator.api import LLMInference, ModelDeployment, ModelReplica, labels
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.cli.__main__ import app
from modelplane_operator.cli.output import FailedError
from modelplane_operator.cli.rendering import CLUSTER, Renderer, plain
from modelplane_operator.models.llm_inference.render import render_on_cluster
from tests.rendering.cases import CASES
from tests.support.builders import EPOCH, cluster, deployment, model_cache
from tests.support.golden import Golden
from tests.support.manifests import ROOT

PLAIN = ROOT / "examples/llminference/plain"
SCENARIOS = ("qwen", "embeddings", "kimi")
EXAMPLES = sorted(
    path for path in (ROOT / "examples").rglob("*.yaml") if not {"access", "plain"} & {*path.relative_to(ROOT).parts}
)


def printed(*arguments: str, stdin: str | None = None) -> tuple[int, str]:
    """The exit code of the command and what it prints."""
    result = CliRunner(env={"COLUMNS": "1000", "NO_COLOR": "1"}).invoke(app, ["render", *arguments], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def objects(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT / "examples")))
def test_every_example_is_rendered_with_what_it_becomes(example: Path) -> None:
    # Classes and clusters of a cloud are in files beside each other.
    classes = example.parent.parent / "classes" / example.name
    beside = ["-f", str(classes)] if example.parent.name == "clusters" and example.stem in {"eks", "gke"} else []
    code, text = printed("-f", str(example), *beside)

    unsupported = example.parent.name == "clusters" and example.stem in {"aks", "nebius", "vultr"}
    assert code == (3 if unsupported else 0), text
    assert text.startswith("# ")
    places = re.split("^# [A-Z].*, on (.*):$", text, flags=re.MULTILINE)[1:]
    identities = [
        (place, one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
        for place, content in zip(places[::2], places[1::2], strict=True)
        for one in objects(content)
    ]
    assert len(identities) == len(set(identities)), "an object is printed twice for one place"
    assert labels.OWNER_UID not in text
    assert "ownerReferences" not in text


@pytest.mark.parametrize("runtime", ["VLLMRuntime", "Deployment"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_plain_examples_are_what_the_operator_would_make(name: str, runtime: str, golden: Golden) -> None:
    inference = yaml.safe_load((ROOT / f"examples/llminference/{name}.yaml").read_text())
    inference["spec"]["runtime"] = runtime
    code, text = printed("-f", "-", stdin=yaml.safe_dump(inference))

    assert code == 0
    golden.holds(PLAIN / (f"{name}.yaml" if runtime == "VLLMRuntime" else f"{name}-deployment.yaml"), text)
    found = LLMInference.parse({**inference, "metadata": {**inference["metadata"], "uid": "u"}})
    assert objects(text) == [plain(one) for one in render_on_cluster(found, token=False)]


def test_with_a_fleet_models_are_on_the_clusters_that_the_scheduler_chooses() -> None:
    fleet = Snapshot((cluster("berlin", nodes=1), cluster("oslo", nodes=1)), (), (), (), EPOCH)
    models = [deployment(name="first", uid=""), deployment(name="second", uid=""), deployment(name="third", uid="")]
    rendered = [*Renderer(models, fleet).render()]

    places = [one.place for one in rendered if one.source.startswith("ModelReplica")]
    assert sorted(places) == ["berlin", "oslo"], "each takes the only node of a cluster"
    third = next(one for one in rendered if one.source == "ModelDeployment ml-team/third")
    assert not third.complete
    assert third.notes[0].startswith("0 of 1 replica placed")


def test_a_model_of_the_fleet_keeps_its_replicas() -> None:
    subject = deployment(replicas=1)
    fleet = Snapshot((cluster("berlin"), cluster("oslo")), (), (subject,), (), EPOCH)
    (made, *_) = Renderer([subject], fleet).render()
    stored = [ModelReplica.parse(one) for one in made.objects if one["kind"] == "ModelReplica"]
    owned = Snapshot(fleet.clusters, tuple(stored), (subject,), (), EPOCH)

    again = [
        *Renderer(
            [ModelDeployment.parse({**subject.to_manifest(), "metadata": {**_unstored(subject)}})], owned
        ).render()
    ]

    assert [one["metadata"]["name"] for one in again[0].objects if one["kind"] == "ModelReplica"] == [
        one.metadata.name for one in stored
    ]


def _unstored(subject: ModelDeployment) -> dict[str, Any]:
    metadata = subject.to_manifest()["metadata"]
    return {"name": metadata["name"], "namespace": metadata["namespace"], "uid": "none"}


def test_a_cache_is_on_every_cluster_that_it_selects() -> None:
    fleet = Snapshot((cluster("berlin", region="eu"), cluster("iowa", region="us")), (), (), (), EPOCH)

    assert [one.place for one in Renderer([model_cache(region="us")], fleet).render()] == ["iowa"]
    assert [one.place for one in Renderer([model_cache(region="us")]).render()] == [CLUSTER]


def test_what_becomes_nothing_says_so() -> None:
    inference = {"apiVersion": "inference.devopstoolkit.ai/v1alpha1", "kind": "LLMInference", "metadata": {"name": "a"}}
    code, text = printed(
        "-f", "-", stdin=yaml.safe_dump({**inference, "spec": {"model": "acme/x", "placement": "Fleet"}})
    )
    assert (code, "set spec.memory" in text, objects(text)) == (3, True, [])


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("{", "while parsing"),
        ("kind: Pod", "has no object of a kind of Modelplane"),
        ("{apiVersion: modelplane.ai/v1alpha1, kind: ModelDeployment, metadata: {name: a}, spec: {}}", "spec.replicas"),
        ("{apiVersion: modelplane.ai/v1alpha1, kind: ModelDeployment, metadata: 3, spec: {}}", "ModelDeployment"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(manifest: str, message: str) -> None:
    code, text = printed("-f", "-", stdin=manifest)
    assert (code, message in text) == (2, True), text


@pytest.mark.parametrize("name", ["a\n---\nkind: Secret\nmetadata: {name: b}\n", "\u001b[2J", "a\u202eb"])
def test_a_name_writes_no_other_object_and_nothing_that_a_terminal_obeys(name: str) -> None:
    subject = deployment().to_manifest()
    subject["metadata"]["name"] = name
    code, text = printed("-f", "-", stdin=yaml.safe_dump(subject))
    assert (code, {*text} & {"\u001b", "\u202e"}) == (0, set())
    assert {one["kind"] for one in objects(text)} & {"Secret", "ModelReplica"} == {"ModelReplica"}
    code, text = printed("-f", "-", stdin=yaml.safe_dump({**subject, "spec": {}}))
    assert (code, {*text} & {"\u001b", "\u202e"}) == (2, set())


def test_what_only_the_api_server_refuses_is_no_crash() -> None:
    manifest = {**model_cache().to_manifest()}
    manifest["spec"] = {name: value for name, value in manifest["spec"].items() if name == "source"}
    result = CliRunner().invoke(app, ["render", "-f", "-"], input=yaml.safe_dump(manifest))
    assert isinstance(result.exception, FailedError), result.exception
    assert "the API server would refuse one of these objects: ModelCache" in str(result.exception)


def test_a_file_that_is_no_text_or_not_on_this_machine_says_why(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for file, message in (
        (str(tmp_path / "binary"), "is not a text file"),
        (str(tmp_path), "Is a directory"),
        ("https://example.com/a.yaml", "URLs are not read"),
    ):
        code, text = printed("-f", file)
        assert (code, message in " ".join(text.replace("│", " ").split())) == (2, True), text


def test_every_renderer_of_the_operator_is_part_of_it() -> None:
    """A golden case of each kind of object that the operator renders also is rendered here."""
    for folder in {case.parent for case in CASES} - {ROOT / "tests/rendering/golden/gateway_relay"}:
        case = min(folder.glob("*.in.yaml"))
        kinds = {one["kind"] for one in yaml.safe_load_all(case.read_text()) if one and "kind" in one}
        code, text = printed("-f", str(case))
        assert code in {0, 3}, text
        assert f"# {sorted(kinds & {'ModelReplica', 'ModelCache', 'ModelService'} or kinds)[0]} " in text
