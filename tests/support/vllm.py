"""As much of the vLLM production-stack operator as its users see: its kind, and what it says of the engine."""

from __future__ import annotations

from kubeloop.client.kube import Kube
from kubeloop.objects import Key, Manifest
from kubeloop.types import VLLM_RUNTIME

_ANYTHING: Manifest = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": str(VLLM_RUNTIME)},
    "spec": {
        "group": VLLM_RUNTIME.group,
        "scope": "Namespaced",
        "names": {"kind": VLLM_RUNTIME.kind, "plural": VLLM_RUNTIME.plural},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "properties": {"spec": _ANYTHING, "status": _ANYTHING}}
                },
                "subresources": {"status": {}},
            }
        ],
    },
}


async def say(kube: Kube, key: Key, told: str, replicas: int = 1) -> None:
    """Have the status of a VLLMRuntime say how its engine is."""
    live = await kube.get(VLLM_RUNTIME, key)
    await kube.replace_status({**live, "status": {"modelStatus": told, "replicas": replicas}})
