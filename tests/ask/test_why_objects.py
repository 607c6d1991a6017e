"""Why a ModelService or an LLMInference is not Ready: the cause and the remedy of what it needs."""

from __future__ import annotations

from typing import Any

import pytest

from modelplane_operator.api import LLMInference, ModelDeployment, ModelService, labels
from modelplane_operator.api.model_deployment import PodTemplateAllowed, UpToDate
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.ask.answers.why import explain
from modelplane_operator.ask.answers.why_objects import explain_object, find_deployments
from modelplane_operator.cli.options import split_type
from tests.support.builders import EPOCH, cluster, deployment, engine, memory, request

SINCE = "2026-01-01T00:00:00Z"


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": SINCE}


def service(*conditions: dict[str, Any], routes: tuple[dict[str, Any], ...] = (), of: str = "my-model") -> ModelService:
    return ModelService.parse(
        {
            "apiVersion": ModelService.definition.api_version,
            "kind": "ModelService",
            "metadata": {"name": "front", "namespace": "ml-team"},
            "spec": {"endpoints": [{"selector": {"matchLabels": {labels.DEPLOYMENT: of}}}]},
            "status": {"conditions": [*conditions], "routes": [*routes]},
        }
    )


def inference(*conditions: dict[str, Any], **spec: Any) -> LLMInference:
    return LLMInference.parse(
        {
            "apiVersion": LLMInference.definition.api_version,
            "kind": "LLMInference",
            "metadata": {"name": "my-model", "namespace": "ml-team"},
            "spec": {"model": "Qwen/Qwen3-8B", "gpu": 1, **spec},
            "status": {"conditions": [*conditions]},
        }
    )


def with_status(subject: ModelDeployment, *conditions: dict[str, Any]) -> ModelDeployment:
    return ModelDeployment.parse({**subject.to_manifest(), "status": {"conditions": [*conditions]}})


def hub(*deployments: ModelDeployment) -> Snapshot:
    return Snapshot((cluster("berlin"),), (), deployments, (), EPOCH)


TOO_BIG = deployment(engine(request(memory("200Gi"))))


@pytest.mark.parametrize(
    "item",
    [
        service(condition("Ready", "False", "NoEndpoints", "No endpoint is selected")),
        inference(condition("Ready", "False", "NotReady", "ModelDeployment is not ready"), placement="Fleet"),
    ],
)
def test_the_cause_is_that_of_the_deployment_and_so_is_the_remedy(item: ModelService | LLMInference) -> None:
    other = TOO_BIG.model_copy(update={"metadata": TOO_BIG.metadata.model_copy(update={"name": "other", "labels": {}})})
    found = find_deployments(item, (other, TOO_BIG))
    assert [one.key.name for one in found] == ["my-model"]
    explained = explain_object(item, (), (), [explain(one, (), hub(*found)) for one in found])
    assert explained.cause.startswith("ModelDeployment my-model: 0 of 1 replica placed; 1 cluster checked")
    assert explained.help[:1] == ("List what exists: modelplane hardware",)
    assert [(part.name, part.ready) for part in explained.parts] == [("my-model", False)]


def test_an_inference_on_a_cluster_has_the_remedy_of_its_own_condition() -> None:
    refused = condition("TargetResolved", "False", "Forbidden", "cluster berlin refuses to list pods")
    item = inference(refused, condition("Ready", "False", "Creating", "Cluster berlin refuses"), providerConfigName="x")
    assert find_deployments(item, (TOO_BIG,)) == []
    explained = explain_object(item, (), (), ())
    assert (explained.ready, explained.cause) == (False, "Cluster berlin refuses")
    assert any("permission" in text for text in explained.help), explained.help


def test_a_service_that_is_ready_says_which_paths_reach_no_engine() -> None:
    left_out = {"path": "/v1/embeddings", "carried": False, "message": "the engine has none"}
    carried = {"path": "/v1/models", "carried": True}
    item = service(condition("Ready", "True", "Available", "1 endpoint"), routes=(left_out, carried))
    explained = explain_object(item, (), (), ())
    assert explained.ready
    assert explained.cause == "1 endpoint; requests to /v1/embeddings do not reach the engines: the engine has none"
    assert explained.help == ()
    both = service(condition("Ready", "True", "Available", "1 endpoint"), routes=(left_out, {**left_out, "path": "/x"}))
    assert (
        "requests to /v1/embeddings, /x do not reach the engines: the engine" in explain_object(both, (), (), ()).cause
    )
    broken = service(condition("Ready", "False", "NoEndpoints", "No endpoint"), routes=(left_out,))
    assert explain_object(broken, (), (), ()).cause == "No endpoint"


def test_a_model_that_is_ready_says_what_its_pods_do_without() -> None:
    message = "pods run without the fields that their cluster does not allow: berlin: path /dev/shm"
    left_out = condition(PodTemplateAllowed.__name__, "False", "LeftOut", message)
    subject = with_status(deployment(), left_out, condition("Ready", "True", "Available", "1 of 1 replica ready"))
    explained = explain(subject, (), hub(subject))
    assert (explained.ready, explained.cause) == (True, f"1 of 1 replica ready; {message}")
    assert explained.help, "a warning has a remedy"


@pytest.mark.parametrize("reason", ["WaitingForWindow", "WaitingForRoom"])
def test_a_model_that_waits_to_roll_says_for_what_and_the_command_that_does_not_wait(reason: str) -> None:
    waits = condition(UpToDate.__name__, "False", reason, "pods would change; 1 waits. Before that: modelplane roll m")
    subject = with_status(deployment(), waits, condition("Ready", "True", "Available", "1 of 1 replica ready"))
    explained = explain(subject, (), hub(subject))
    assert (explained.ready, explained.cause) == (True, "1 of 1 replica ready; pods would change; 1 waits")
    assert explained.help == ("Before that: modelplane roll m",)


def test_a_model_that_is_scaled_to_zero_or_paused_says_so_and_what_starts_it() -> None:
    available = condition("Ready", "True", "Available", "0 of 0 replicas ready")
    none = with_status(deployment(replicas=0), available)
    explained = explain(none, (), hub(none))
    assert explained.cause == "0 of 0 replicas ready; it is scaled to zero, so no replica runs"
    assert explained.help == ("Start it: kubectl scale modeldeployment my-model -n ml-team --replicas=1",)

    behind = explain_object(
        service(condition("Ready", "False", "NoEndpoints", "No endpoint is selected")), (), (), [explained]
    )
    assert "scaled to zero" in behind.cause
    assert behind.help[0].startswith("Start it: kubectl scale")

    paused = with_status(deployment(), available, condition("Synced", "False", "ReconcilePaused"))
    explained = explain(paused, (), hub(paused))
    assert "it is paused, so the operator changes nothing of it" in explained.cause
    assert explained.help[0] == "Resume it: kubectl annotate modeldeployment my-model -n ml-team crossplane.io/paused-"


@pytest.mark.parametrize(
    ("argument", "kind", "name"),
    [
        ("front", None, "front"),
        ("ml-team/front", None, "ml-team/front"),
        ("service/front", "ModelService", "front"),
        ("ModelService.modelplane.ai/front", "ModelService", "front"),
        ("llminference/front", "LLMInference", "front"),
        ("deployment/front", "ModelDeployment", "front"),
        ("service", None, "service"),
    ],
)
def test_a_type_before_the_name_chooses_the_kind(argument: str, kind: str | None, name: str) -> None:
    assert split_type(argument) == (kind, name)
