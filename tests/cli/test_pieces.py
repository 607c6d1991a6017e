"""What the commands make of what a hub and its clusters say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubeloop.objects import Key
from modelplane_operator.api import KINDS, ModelReplica
from modelplane_operator.ask.answers.discovery import Pool
from modelplane_operator.ask.answers.documents import Explanation
from modelplane_operator.ask.answers.schema import read
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.cli.__main__ import COMMANDS
from modelplane_operator.cli.answers import show_explanation
from modelplane_operator.cli.bundle import HIDDEN, without_secrets, without_values
from modelplane_operator.cli.draining import with_drain
from modelplane_operator.cli.joining import check_component, check_services, check_version, manifests
from modelplane_operator.cli.output import console, print_piece
from modelplane_operator.cli.usage import usage_by_model
from modelplane_operator.clusters.stack.charts import STACK
from tests.support.builders import EPOCH, cluster, deployment, taint
from tests.support.manifests import ROOT, load
from tests.support.observed import placed

Manifest = dict[str, Any]


def test_docs_tell_of_every_command_and_of_no_other() -> None:
    """By the tables of docs/cli.md."""
    rows = [line for line in (ROOT / "docs/cli.md").read_text().splitlines() if line.startswith("| `modelplane ")]
    assert {row.split("`")[1].split()[1] for row in rows} == {*COMMANDS}


def test_a_drain_adds_one_taint_and_its_undo_takes_that_one_away() -> None:
    stored = cluster("berlin", taints=[taint("maintenance")]).to_manifest()
    drained = with_drain(stored, on=True)
    assert [one["key"] for one in drained["spec"]["taints"]] == ["maintenance", "modelplane.ai/drain"]
    assert with_drain(drained, on=True) == drained
    assert with_drain(drained, on=False) == stored
    bare = cluster("oslo").to_manifest()
    assert with_drain(with_drain(bare, on=True), on=False)["spec"] == {
        name: value for name, value in bare["spec"].items() if name != "taints"
    }


def test_why_does_not_call_a_model_unready_that_answers_where_it_cannot_stay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = {"namespace": "ml", "name": "m", "ready": False, "reason": "Available", "cause": "1 replica stays"}
    told = read(Explanation, {**document, "since": EPOCH.isoformat()})
    show_explanation(told, EPOCH)
    assert capsys.readouterr().out.splitlines()[0] == "ml/m is Ready, but on the wrong cluster"
    show_explanation(replace(told, reason="[bold]x[/]"), EPOCH)
    assert capsys.readouterr().out.splitlines()[0] == "ml/m is not Ready ([bold]x[/], for 0s)"


def test_an_answer_keeps_its_lines_and_obeys_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    out = console()
    for piece in ("a\n\nb", "\n", " [red]c :smile: \x1b[2J"):
        print_piece(out, piece)
    assert capsys.readouterr().out == "a\n\nb\n [red]c :smile: \N{REPLACEMENT CHARACTER}[2J"


def test_a_bundle_has_no_values_that_may_be_secret() -> None:
    told = "hunter2"
    container = {
        "name": "engine",
        "args": ["--model=qwen", "--hf-token", told, f"--api-key={told}", f"export HF_TOKEN={told}"],
        "env": [{"name": "ANYTHING", "value": told}, {"name": "LATER", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
    }
    manifest = {
        "kind": "ModelDeployment",
        "metadata": {
            "name": "qwen",
            "managedFields": [told],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": told, "team": "ml"},
        },
        "spec": {"containers": [container], "url": f"https://me:{told}@example.com/v1", "password": told},
    }
    left = without_secrets(manifest)

    assert told not in str(left)
    assert left["metadata"] == {"name": "qwen", "annotations": {"team": "ml"}}
    assert left["spec"]["containers"][0]["args"][:3] == ["--model=qwen", "--hf-token", HIDDEN]
    assert left["spec"]["containers"][0]["env"][1] == container["env"][1]
    assert left["spec"]["url"] == f"https://{HIDDEN}@example.com/v1"


@pytest.mark.parametrize(
    "argument",
    [
        "vllm serve --api-key hunter2 --port 8000",
        "A=1 HF_TOKEN=hunter2 vllm serve",
        '--override={"api_key": "hunter2"}',
        '{"auth": {"password": "hunter2"}}',
        "curl -H 'Authorization: Bearer hunter2'",
        "https://example.com/weights?X-Amz-Signature=hunter2&part=1",
        "s3://bucket?access_token=hunter2",
    ],
)
def test_a_bundle_has_no_secret_of_a_line_that_a_shell_reads(argument: str) -> None:
    left = without_secrets({"metadata": {"name": "m"}, "spec": {"command": ["sh", "-c"], "args": [argument, "--last"]}})
    assert "hunter2" not in str(left)
    assert left["spec"]["args"][-1] == "--last"


@pytest.mark.parametrize(
    "token",
    ["hf_" + "a" * 34, "sk-" + "b" * 40, "AKIA" + "C" * 16, "eyJhbGciOi" + "d" * 20 + ".e.f", "Bearer 0123456789ab"],
)
def test_a_token_that_is_known_by_its_form_is_in_no_message_and_no_annotation(token: str) -> None:
    manifest = {
        "metadata": {
            "name": "m",
            "annotations": {
                "kapp.k14s.io/original": f'{{"x": "{token}"}}',
                "objectset.rio.cattle.io/applied": "H4sI" * 100,
                "note": f"use {token}",
                "team": "ml",
            },
        },
        "spec": {
            "template": {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": token}}}
        },
        "status": {"conditions": [{"message": f"exit code 1: token {token} is refused"}]},
    }
    left = without_secrets(manifest)
    assert token.rsplit(maxsplit=1)[-1] not in str(left)
    assert left["metadata"]["annotations"]["team"] == "ml"
    assert left["metadata"]["annotations"]["objectset.rio.cattle.io/applied"] == HIDDEN


TOLD = {
    "apiVersion": "modelplane.ai/v1alpha1",
    "kind": "ModelDeployment",
    "metadata": {
        "name": "qwen",
        "namespace": "ml",
        "uid": "6a1c",
        "labels": {"modelplane.ai/deployment": "qwen", "team": "hunter2"},
        "annotations": {"note": "hunter2"},
    },
    "spec": {
        "replicas": 2,
        "template": {
            "metadata": {"labels": {"team/x": "hunter2"}},
            "spec": {
                "serving": {"mode": "Unified"},
                "modelCacheRef": {"name": "weights"},
                "clusterSelector": {"matchLabels": {"region": "hunter2"}},
                "engines": [{"name": "main", "copies": 1}],
            },
        },
    },
    "status": {"conditions": [{"type": "Ready", "status": "True", "message": "2 of 2 replicas are Ready"}]},
}


def holding(where: str, text: str) -> Manifest:
    """A deployment with a text somewhere in the pod of its engine."""
    container: Manifest = {"name": "engine", "image": "vllm/vllm-openai:v0.32.0"}
    match where:
        case "args" | "command":
            container[where] = [text]
        case "value":
            container["env"] = [{"name": "A", "value": text}]
        case _:
            return {**TOLD, "metadata": {**TOLD["metadata"], where: {"a": text}}}
    return {
        **TOLD,
        "spec": {"engines": [{"name": "main", "members": [{"template": {"spec": {"containers": [container]}}}]}]},
    }


@pytest.mark.parametrize("where", ["args", "command", "value", "labels", "annotations"])
@pytest.mark.parametrize(
    "text",
    [
        "hunter2",
        "-phunter2",
        "--hunter2",
        "--pass=hunter2",
        "--pwd hunter2",
        "PGPASS=hunter2 serve",
        "mysql --user root -phunter2",
        "https://hooks.example.com/services/hunter2",
        "https://example.com/?x=hunter2",
        "echo aHVudGVyMg== hunter2 | base64 -d",
        '{"pat": "hunter2"}',
        "user: me\npass: hunter2",
    ],
)
def test_a_bundle_has_no_text_that_somebody_wrote_as_they_like(where: str, text: str) -> None:
    """By an allow-list: nobody can know all forms of secrets."""
    left = without_values(holding(where, text))

    assert "hunter2" not in str(left) or text == "--hunter2", "of arguments the names of flags are told"
    assert "(left out)" in str(left) or text == "--hunter2"


def test_a_bundle_tells_what_helps() -> None:
    left = without_values(TOLD)

    assert left["metadata"]["labels"] == {"modelplane.ai/deployment": "qwen", "team": HIDDEN}
    assert left["spec"]["template"]["metadata"]["labels"] == {"team/x": HIDDEN}
    assert left["spec"]["template"]["spec"] == {
        **TOLD["spec"]["template"]["spec"],
        "clusterSelector": {"matchLabels": {"region": HIDDEN}},
    }
    assert (left["status"], left["spec"]["replicas"]) == (TOLD["status"], 2)
    endpoint = {
        "kind": "ModelEndpoint",
        "metadata": {"name": "a"},
        "spec": {"url": "https://me.example/hunter2?a=hunter2"},
    }
    assert without_values(endpoint)["spec"] == {"url": f"https://me.example:443/{HIDDEN}"}


@pytest.mark.parametrize("kind", [one.definition.kind for one in KINDS])
def test_a_bundle_can_tell_of_every_kind(kind: str) -> None:
    rich_one = next(one for one in load(ROOT / "tests/api/rich.yaml") if one["kind"] == kind)
    left = without_values(rich_one)

    assert (left["kind"], left["metadata"]["name"]) == (kind, rich_one["metadata"]["name"])
    assert left["status"].get("conditions") == rich_one["status"].get("conditions")


def test_of_pods_and_events_a_bundle_tells_what_has_become_of_them() -> None:
    container = {
        "name": "a",
        "image": "a:v1",
        "env": [{"name": "A", "value": "hunter2"}],
        "args": ["--a=hunter2", "run"],
    }
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "hunter2"}}
    status = {
        "phase": "Running",
        "message": "hunter2",
        "containerStatuses": [{"name": "a", "restartCount": 3, "state": state}],
    }
    left = without_values(
        {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [container]}, "status": status}
    )

    assert "hunter2" not in str(left)
    assert left["spec"]["containers"][0]["args"] == [f"--a={HIDDEN}", HIDDEN]
    assert left["status"]["containerStatuses"][0] == {
        "name": "a",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": HIDDEN}},
    }
    event = {"kind": "Event", "metadata": {"name": "a"}, "reason": "Placed", "message": "replica placed", "count": 2}
    assert without_values(event) == event


@pytest.mark.parametrize(
    "told",
    [
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2",
        "key hunter2AbCdEfGhIjKlMnOp is refused",
    ],
)
def test_what_is_a_credential_by_its_form_is_in_no_message(told: str) -> None:
    left = without_values({**TOLD, "status": {"conditions": [{"type": "Ready", "message": told}]}})

    assert "hunter2" not in str(left["status"])


@pytest.mark.parametrize(
    ("version", "ok"),
    [("v1.34.0", True), ("v1.36.3-gke.100", True), ("v2.0.0", True), ("v1.33.9", False), ("x", False)],
)
def test_a_version_is_new_enough_or_says_what_to_do(version: str, *, ok: bool) -> None:
    found = check_version(version)
    assert (found.ok, bool(found.remedy)) == (ok, not ok)


def test_load_balancers_are_judged_by_those_that_there_are() -> None:
    asking: Manifest = {"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer"}}
    given = {**asking, "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}}
    assert check_services([given]).ok
    assert check_services([{"metadata": {"name": "x"}, "spec": {"type": "ClusterIP"}}]).ok
    refused = check_services([given, asking])
    assert (refused.ok, refused.says) == (False, "no address for web")


def test_a_cluster_that_is_registered_names_its_secret_and_its_classes() -> None:
    pool = Pool("dgx", "h100", ("a", "b"), (), "8 H100 on each node", ())
    of_class, made = manifests("berlin", [pool])
    assert (of_class["kind"], of_class["metadata"]["name"]) == ("InferenceClass", "h100")
    assert made["spec"]["cluster"]["existing"]["secretRef"] == {"name": "berlin-kubeconfig"}
    assert made["spec"]["nodePools"] == [{"name": "dgx", "className": "h100", "nodeCount": 2}]


def test_models_are_told_by_the_nodes_that_they_take() -> None:
    fleet = (cluster("berlin", nodes=5), cluster("oslo", nodes=5))
    many, one = deployment(name="many", uid="1", replicas=3), deployment(name="one", uid="2")
    replicas = (*placed(many, *fleet), *placed(one, *fleet, ready=False))
    seen = Snapshot(fleet, tuple(map(ModelReplica.parse, replicas)), (one, many), (), EPOCH)
    assert [(found.name, found.nodes, found.ready, found.desired) for found in usage_by_model(seen)] == [
        ("many", 3, 3, 3),
        ("one", 1, 0, 1),
    ]


@pytest.mark.parametrize(
    ("part", "annotations", "says"),
    [
        ("prometheus", None, "is not installed: a ServingStack installs it"),
        ("cert-manager", None, "is not installed, and no other component needs it"),
        ("prometheus", ("monitoring", "mp-kube-prometheus-stack"), "is not installed: a ServingStack installs it"),
        ("prometheus", ("obs", "kps"), "is installed by Helm release obs/kps: a ServingStack keeps that one"),
        ("cert-manager", ("cert", "cm"), "is installed by Helm release cert/cm: a ServingStack keeps that one"),
        (
            "envoy-gateway",
            ("eg", "eg"),
            "is installed by Helm release eg/eg: a ServingStack would install another one, which",
        ),
    ],
)
def test_a_check_says_what_becomes_of_each_part(part: str, annotations: tuple[str, str] | None, says: str) -> None:
    (chart,) = [one for one in STACK if one.name == part]
    noted = zip(("meta.helm.sh/release-namespace", "meta.helm.sh/release-name"), annotations or (), strict=False)
    definition = {"metadata": {"name": chart.marker.name, "annotations": dict(noted)}}

    found = check_component(chart, [definition] if annotations else [], [])
    assert found.says.startswith(says)
    assert found.ok is (part != "envoy-gateway")


@pytest.mark.parametrize("part", ["envoy-gateway", "prometheus", "leader-worker-set"])
def test_a_check_says_that_a_release_of_another_stack_is_not_installed_again(part: str) -> None:
    """As Helm's driver refuses it: `Helm release ... exists and is another owner's`."""
    (chart,) = [one for one in STACK if one.name == part]
    found = check_component(chart, [], [], {chart.release})
    assert (found.ok, f"release {chart.release} of another ServingStack exists" in found.says) == (False, True)
    assert f"helm uninstall {chart.release.name} -n {chart.release.namespace}" in found.remedy
    assert check_component(chart, [], [], {Key("elsewhere", chart.release.name)}).ok
