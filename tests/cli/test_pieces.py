"""What the commands make of what a hub and its clusters say."""

from __future__ import annotations

from typing import Any

import pytest

from modelplane_operator.api import ModelReplica
from modelplane_operator.cli.__main__ import COMMANDS
from modelplane_operator.cli.bundle import HIDDEN, without_secrets
from modelplane_operator.cli.draining import with_drain
from modelplane_operator.cli.joining import judged_services, judged_version, manifests
from modelplane_operator.cli.usage import used
from modelplane_operator.planning.answers.discovery import Pool
from modelplane_operator.planning.answers.snapshot import Snapshot
from tests.support.builders import EPOCH, cluster, deployment, taint
from tests.support.manifests import ROOT
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
    ("version", "ok"),
    [("v1.34.0", True), ("v1.36.3-gke.100", True), ("v2.0.0", True), ("v1.33.9", False), ("x", False)],
)
def test_a_version_is_new_enough_or_says_what_to_do(version: str, *, ok: bool) -> None:
    found = judged_version(version)
    assert (found.ok, bool(found.remedy)) == (ok, not ok)


def test_load_balancers_are_judged_by_those_that_there_are() -> None:
    asking: Manifest = {"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer"}}
    given = {**asking, "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}}
    assert judged_services([given]).ok
    assert judged_services([{"metadata": {"name": "x"}, "spec": {"type": "ClusterIP"}}]).ok
    refused = judged_services([given, asking])
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
    assert [(found.name, found.nodes, found.ready, found.desired) for found in used(seen)] == [
        ("many", 3, 3, 3),
        ("one", 1, 0, 1),
    ]
