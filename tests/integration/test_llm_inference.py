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
            return bool(pods) and "org/model" in _asked(stage, on, f"{target}/pods/{pods[0].removeprefix('pod/')}:8000")

        await until("the engine to answer", answers)
        status = json.dumps({"status": {"modelStatus": "Ready", "replicas": 1}})
        kubectl(on, "patch", RUNTIME, "model", f"-n={target}", "--subresource=status", "--type=merge", f"-p={status}")
        await stage.hub.ready("LLMInference", "model", space)

        kubectl("hub", "delete", "llmi", "model", f"-n={space}")
        assert not await made()
    finally:
        await stage.hub.patch("InferenceCluster", on, spec={"llmInferences": None})
        kubectl(on, "delete", "namespace", target, "--wait=false")


async def test_it_answers_on_the_cluster_that_it_names_where_kubernetes_runs_it(stage: Stage, space: str) -> None:
    """The test is the device plugin: it says that a node has two GPUs."""
    target, on = f"{space}-models", "worker-1"
    kubectl = stage.fleet.kubectl
    kubectl(on, "create", "namespace", target)
    grants = [{"namespace": space, "targetNamespaces": [target], "ingressHosts": ["model.example.com"]}]
    await stage.hub.patch("InferenceCluster", on, spec={"llmInferences": grants})
    node = kubectl(on, "get", "nodes", "-oname").split()[0]

    def has(gpus: str | None) -> None:
        status = json.dumps({"status": {what: {"nvidia.com/gpu": gpus} for what in ("capacity", "allocatable")}})
        kubectl(on, "patch", node, "--subresource=status", "--type=merge", f"-p={status}")

    has("2")
    try:
        spec = {"runtime": "Deployment", "gpu": 2, "ingressHost": "model.example.com"}
        await stage.hub.apply(inference(space, providerConfigName=on, targetNamespace=target, **spec))
        await stage.hub.ready("LLMInference", "model", space)
        assert "org/model" in _asked(stage, on, f"{target}/services/model:80")
        found = await stage.hub.get("LLMInference", "model", space)
        assert found
        assert (found["status"]["url"], found["status"]["replicas"]) == ("http://model.example.com", 1)
        (pod,) = json.loads(kubectl(on, "get", "pods", f"-n={target}", "-ojson"))["items"]
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"

        kubectl("hub", "delete", "llmi", "model", f"-n={space}")
        kinds = "deployments,services,ingresses"
        assert kubectl(on, "get", kinds, f"-n={target}", "--ignore-not-found", "-oname").split() == []
    finally:
        has(None)
        await stage.hub.patch("InferenceCluster", on, spec={"llmInferences": None})
        kubectl(on, "delete", "namespace", target, "--wait=false")


def _asked(stage: Stage, on: str, what: str) -> str:
    """What an engine says that it serves, asked by way of the cluster's API server."""
    try:
        return stage.fleet.kubectl(on, "get", "--raw", f"/api/v1/namespaces/{what}/proxy/v1/models")
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
