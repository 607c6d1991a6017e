"""An LLMInference answers: anywhere in the fleet, and on a cluster that lets its namespace in."""

from __future__ import annotations

import json

import pytest

from tests.integration.harness import Stage, until
from tests.integration.kinds import IMAGE
from tests.support.manifests import Manifest
from tests.support.vllm import DEFINITION

pytestmark = pytest.mark.fleet

RUNTIME = "vllmruntimes.production-stack.vllm.ai"


def inference(namespace: str, **spec: object) -> Manifest:
    return {
        "apiVersion": "inference.devopstoolkit.ai/v1alpha1",
        "kind": "LLMInference",
        "metadata": {"name": "model", "namespace": namespace},
        "spec": {"model": "org/model", **spec},
    }


async def test_it_answers_by_its_url_anywhere_in_the_fleet(stage: Stage, space: str) -> None:
    await stage.hub.apply(inference(space, placement="Fleet", memory="20Gi"))
    await stage.hub.ready("LLMInference", "model", space)
    await stage.answered(space)

    found = await stage.hub.get("LLMInference", "model", space)
    service = await stage.hub.get("ModelService", "model", space)
    assert found and service
    assert found["status"]["url"] == service["status"]["address"]
    assert (found["status"]["replicas"], found["status"]["memoryPerGpu"]) == (1, "20Gi")
    await stage.hub.delete("LLMInference", "model", space)


async def test_it_answers_on_the_cluster_that_it_names_where_an_operator_runs_its_runtime(
    stage: Stage, space: str
) -> None:
    """The test is the vLLM production-stack operator: it makes a Deployment of the runtime, and says how it is."""
    target, on = f"{space}-models", "worker-1"
    kubectl = stage.fleet.kubectl
    kubectl(on, "apply", "-f-", documents=json.dumps(DEFINITION))
    kubectl(on, "create", "namespace", target)
    grants = [{"namespace": space, "targetNamespaces": [target]}]
    await stage.hub.patch("InferenceCluster", on, spec={"llmInferences": grants})
    try:
        await stage.hub.apply(inference(space, providerConfigName=on, targetNamespace=target))

        async def made() -> bool:
            return bool(kubectl(on, "get", RUNTIME, "model", f"-n={target}", "--ignore-not-found", "-oname"))

        await until("the VLLMRuntime to be there", made)
        runtime = json.loads(kubectl(on, "get", RUNTIME, "model", f"-n={target}", "-ojson"))
        kubectl(on, "apply", "-f-", documents=json.dumps(_as_its_operator_would(runtime, target)))

        async def answers() -> bool:
            pods = kubectl(on, "get", "pods", f"-n={target}", "-oname").split()
            return bool(pods) and "org/model" in _asked(stage, on, target, pods[0].removeprefix("pod/"))

        await until("the engine to answer", answers)
        status = json.dumps({"status": {"modelStatus": "Ready", "replicas": 1}})
        kubectl(on, "patch", RUNTIME, "model", f"-n={target}", "--subresource=status", "--type=merge", f"-p={status}")
        await stage.hub.ready("LLMInference", "model", space)

        kubectl("hub", "delete", "llmi", "model", f"-n={space}")
        assert not await made()
    finally:
        await stage.hub.patch("InferenceCluster", on, spec={"llmInferences": None})
        kubectl(on, "delete", "namespace", target, "--wait=false")


def _asked(stage: Stage, on: str, namespace: str, pod: str) -> str:
    """What an engine says that it serves, asked by way of the cluster's API server."""
    try:
        return stage.fleet.kubectl(
            on, "get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:8000/proxy/v1/models"
        )
    except Exception:  # noqa: BLE001 - it does not answer yet
        return ""


def _as_its_operator_would(runtime: Manifest, namespace: str) -> Manifest:
    labels = {"app": "model"}
    model = runtime["spec"]["model"]["modelURL"]
    engine = {"name": "engine", "image": IMAGE, "args": [f"--model={model}"], "ports": [{"containerPort": 8000}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "model", "namespace": namespace},
        "spec": {
            "replicas": runtime["spec"]["deploymentConfig"]["replicas"],
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [engine]}},
        },
    }
