"""What a line of `kubectl get` says of an object."""

from __future__ import annotations

from typing import Any

import pytest

from modelplane_operator.api import KINDS
from modelplane_operator.printer_columns import add_printer_columns
from tests.support.builders import deployment, replica
from tests.support.manifests import change

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]


def conditions(reason: str = "Available", synced: str = "ReconcileSuccess") -> list[Manifest]:
    true = {"Available", "Degraded", "ReconcileSuccess"}
    return [
        {"type": kind, "status": str(why in true), "reason": why, "message": "since 12:00, after 3 restarts"}
        for kind, why in (("Synced", synced), ("Ready", reason))
    ]


def of(kind: str, spec: Manifest | None = None) -> Manifest:
    return {"apiVersion": "modelplane.ai/v1alpha1", "kind": kind, "metadata": {"name": "a"}, "spec": spec or {}}


CLUSTER = of("InferenceCluster", {"nodePools": [{"name": "h100"}, {"name": "l4"}]})
TAINTED = change(
    of("InferenceCluster", {"nodePools": [{"name": "h100", "nodeCount": 10}, {"name": "l4", "nodeCount": 3}]}),
    "spec.taints",
    [{"key": "repair", "effect": "NoExecute"}, {"key": "x", "effect": "NoSchedule"}],
)
POOLS = [{"name": "h100", "nodes": 8, "usable": 7}, {"name": "l4", "nodes": 4, "usable": 4}]
ONE = deployment(replicas=3).to_manifest()
PLACED = replica("a").to_manifest()


@pytest.mark.parametrize(
    ("manifest", "status", "expected"),
    [
        (ONE, {"replicas": {"total": 3, "ready": 3}}, {"summary": "3 of 3 replicas ready"}),
        (PLACED, {}, {"nodes": 1, "pool": "default", "summary": "1 node of pool default on cluster a"}),
        (CLUSTER, {}, {"pools": 2, "summary": "Nodes not seen, 0 replicas placed"}),
        (
            TAINTED,
            {"observed": {"pools": POOLS}, "replicas": 4},
            {
                "pools": 2,
                "nodes": "10/13",
                "taints": "repair:NoExecute,x:NoSchedule",
                "summary": "10 of 13 nodes usable, 4 replicas placed",
            },
        ),
        (of("InferenceClass"), {"nodes": 8, "clusters": 2}, {"summary": "8 nodes on 2 clusters"}),
        (of("InferenceGateway"), {}, {"summary": "No address yet"}),
        (of("InferenceGateway"), {"url": "http://192.0.2.1"}, {"summary": "Models are reached at http://192.0.2.1"}),
        (of("ModelEndpoint"), {}, {"summary": "No requests go there"}),
        (of("ModelEndpoint"), {"routing": {"url": "https://x:443"}}, {"summary": "Requests go to https://x:443"}),
        (of("ModelService"), {"endpointCount": 2}, {"summary": "Requests go to 2 endpoints"}),
        (
            of("ServingStack"),
            {"components": [{"name": "a", "state": "Deployed"}, {"name": "b", "state": "Starting"}]},
            {"summary": "1 of 2 charts deployed"},
        ),
    ],
)
def test_an_object_is_summed_up_from_the_rest_of_it(manifest: Manifest, status: Manifest, expected: Manifest) -> None:
    whole = {**status, "conditions": conditions()}
    told = add_printer_columns(manifest, whole)

    assert told == {**whole, **expected}
    assert add_printer_columns(manifest, told) == told, "at rest nothing is written"


@pytest.mark.parametrize(
    ("said", "tail"),
    [
        (conditions("ReplicasFailing"), ": ReplicasFailing"),
        (conditions("Degraded"), ": Degraded"),
        (conditions("Available", "ReconcilePaused"), ": ReconcilePaused"),
        (conditions("CrashLoop", "ReconcileError"), ": ReconcileError, CrashLoop"),
        ([], ""),
    ],
)
def test_what_is_wrong_is_one_word_and_no_message(said: list[Manifest], tail: str) -> None:
    assert add_printer_columns(ONE, {"conditions": said})["summary"] == f"0 of 3 replicas ready{tail}"


@pytest.mark.parametrize(
    ("count", "told"),
    [(2, "2 endpoints to send requests to: Creating"), (0, "No endpoint to send requests to: Creating")],
)
def test_a_service_that_is_not_ready_does_not_say_where_requests_go(count: int, told: str) -> None:
    assert (
        add_printer_columns(of("ModelService"), {"endpointCount": count, "conditions": conditions("Creating")})[
            "summary"
        ]
        == told
    )


def test_what_is_no_longer_so_is_taken_away() -> None:
    before = add_printer_columns(TAINTED, {"conditions": []})

    assert "taints" not in add_printer_columns(CLUSTER, before)


def test_an_object_that_cannot_be_read_says_so() -> None:
    assert add_printer_columns(of("ModelDeployment", {"replicas": {}}), {"conditions": []})["summary"].startswith(
        "The object cannot be read"
    )


ARGUMENTS = [
    (["--model=Qwen/Qwen3-8B"], "Qwen/Qwen3-8B"),
    (["serve", "Qwen/Qwen3-8B", "--port=8000"], "Qwen/Qwen3-8B"),
    (["serve", "--model", "b"], "b"),
    (["--port=8000"], None),
]


@pytest.mark.parametrize(("arguments", "model"), ARGUMENTS)
def test_a_deployment_tells_which_model_it_serves(arguments: list[str], model: str | None) -> None:
    template = {"spec": {"containers": [{"name": "engine", "image": "vllm/vllm-openai", "args": arguments}]}}
    manifest = change(ONE, "spec.template.spec.engines[].members[].template", template)

    assert add_printer_columns(manifest, {"conditions": []}).get("model") == model


def test_a_deployment_without_a_word_on_the_model_tells_its_cache() -> None:
    assert add_printer_columns(deployment(cache="qwen").to_manifest(), {"conditions": []})["model"] == "cache qwen"


def test_every_kind_that_has_a_controller_is_summed_up() -> None:
    without = {"ModelCache", "GKECluster", "EKSCluster", "AKSCluster", "NebiusCluster", "VultrCluster"}

    for kind in {one.definition.kind for one in KINDS} - without:
        assert "summary" in add_printer_columns(of(kind), {"conditions": []}), kind


@pytest.mark.parametrize(
    ("pool", "nodes", "usable", "cell"),
    [
        ({"nodeCount": 14}, 10, 10, "10/14"),
        ({"nodeCount": 2}, 4, 4, "2/2"),
        ({}, 1, 0, "0/1"),
        ({"nodeCount": 1, "minNodeCount": 3, "maxNodeCount": 9}, 2, 2, "2/3"),
        ({"nodeCount": 1, "maxNodeCount": 9}, 5, 4, "4/5"),
        ({"nodeCount": 1, "maxNodeCount": 9}, 0, 0, "0/0"),
    ],
)
def test_nodes_are_counted_against_those_that_are_asked_for(pool: Manifest, nodes: int, usable: int, cell: str) -> None:
    manifest = of("InferenceCluster", {"nodePools": [{"name": "gpu", **pool}]})
    observed = {"pools": [{"name": "gpu", "nodes": nodes, "usable": usable}]}
    assert add_printer_columns(manifest, {"observed": observed, "conditions": conditions()})["nodes"] == cell
