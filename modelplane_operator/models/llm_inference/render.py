"""Render the objects of an LLMInference: a VLLMRuntime or Deployment on a named cluster, or a ModelDeployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubeloop.objects import Manifest
from kubeloop.ownership import owner_labels
from kubeloop.types import INGRESS, VLLM_RUNTIME
from modelplane_operator.api import pins
from modelplane_operator.api.llm_inference import LLMInference
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.models.llm_inference.render_deployment import (
    IMAGE,
    SELECTING,
    render_deployment,
    render_service,
)
from modelplane_operator.owned import on_hub

TOKEN_SECRET: Final = "huggingface-token"  # noqa: S105 - the name of a Secret
"""Name of the Secret with a Hugging Face token in the target namespace."""
TOKEN_KEY: Final = "token"  # noqa: S105
"""Key of that Secret."""
FAILOVER_AFTER: Final = "5m"
"""Time that a cluster of the fleet may be lost before the model is placed on another one."""
_SPAWN: Final = {"name": "VLLM_WORKER_MULTIPROC_METHOD", "value": "spawn"}
"""Variable that vLLM needs for several GPUs."""


def render_on_cluster(inference: LLMInference, *, token: bool) -> Sequence[Manifest]:
    """Render the objects on the named cluster. `token` is true if the namespace has a Hugging Face token."""
    ingress = (_render_ingress(inference),) if inference.spec.ingress_host else ()
    if inference.spec.runtime == "Deployment":
        metadata, env = _render_metadata(inference), _render_env(inference)
        return (
            render_service(metadata),
            render_deployment(inference, metadata, _render_args(inference), env),
            *ingress,
        )
    return (_render_runtime(inference, token=token), *ingress)


def render_in_fleet(inference: LLMInference, memory: int) -> Sequence[Manifest]:
    """Render the ModelDeployment, for GPUs of at least `memory` GiB each, and the ModelService of its endpoints."""
    name, gpu = inference.key.name, inference.spec.gpu
    cel = f'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("{memory}Gi")) >= 0'
    container = {"name": "engine", "image": IMAGE, "args": _render_args(inference), "env": _render_env(inference)}
    member = {
        "nodeSelector": {"devices": [{"name": "gpu", "count": gpu, "selectors": [{"cel": cel}]}]},
        "template": {"spec": {"containers": [container]}},
    }
    return (
        {
            "apiVersion": ModelDeployment.definition.api_version,
            "kind": ModelDeployment.definition.kind,
            "metadata": on_hub(inference, name),
            "spec": {
                "replicas": 1,
                "template": {
                    "metadata": {"labels": {SELECTING: name}},
                    "spec": {"failover": {"after": FAILOVER_AFTER}, "engines": [{"name": "vllm", "members": [member]}]},
                },
            },
        },
        {
            "apiVersion": ModelService.definition.api_version,
            "kind": ModelService.definition.kind,
            "metadata": on_hub(inference, name),
            "spec": {"endpoints": [{"selector": {"matchLabels": {SELECTING: name}}}]},
        },
    )


def _render_metadata(inference: LLMInference) -> Manifest:
    """Render the metadata of an object on the named cluster."""
    return {
        "name": inference.key.name,
        "namespace": inference.target_namespace,
        "labels": owner_labels(inference),
    }


def _render_runtime(inference: LLMInference, *, token: bool) -> Manifest:
    """Render the VLLMRuntime."""
    gpu = inference.spec.gpu
    secret = {"hfTokenSecretName": TOKEN_SECRET, "hfTokenKeyName": TOKEN_KEY}
    return {
        "apiVersion": VLLM_RUNTIME.api_version,
        "kind": VLLM_RUNTIME.kind,
        "metadata": _render_metadata(inference),
        "spec": {
            "model": {
                "modelURL": inference.spec.model,
                "dtype": "auto",
                **({"hfTokenSecret": secret} if token else {}),
            },
            "vllmConfig": {
                "gpuMemoryUtilization": "0.9",
                **({"tensorParallelSize": gpu, "env": [_SPAWN]} if gpu > 1 else {}),
            },
            "deploymentConfig": {
                "image": {"registry": "docker.io", "name": pins.LMCACHE.image},
                "replicas": 1,
                "resources": {"cpu": str(2 * gpu), "memory": f"{8 * gpu}Gi", "gpu": str(gpu)},
            },
        },
    }


def _render_ingress(inference: LLMInference) -> Manifest:
    """Render the Ingress for the LLMInference's host."""
    spec, backend = inference.spec, {"service": {"name": inference.key.name, "port": {"number": 80}}}
    return {
        "apiVersion": INGRESS.api_version,
        "kind": INGRESS.kind,
        "metadata": _render_metadata(inference),
        "spec": {
            **({"ingressClassName": spec.ingress_class_name} if spec.ingress_class_name else {}),
            "rules": [
                {
                    "host": spec.ingress_host,
                    "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
                }
            ],
        },
    }


def _render_args(inference: LLMInference) -> Sequence[str]:
    """Return the arguments of vLLM."""
    gpu = inference.spec.gpu
    return [
        f"--model={inference.spec.model}",
        "--gpu-memory-utilization=0.9",
        *([f"--tensor-parallel-size={gpu}"] if gpu > 1 else []),
    ]


def _render_env(inference: LLMInference) -> Sequence[Manifest]:
    """Render the variables of vLLM. A missing Hugging Face token is allowed."""
    token = {"secretKeyRef": {"name": TOKEN_SECRET, "key": TOKEN_KEY, "optional": True}}
    return [{"name": "HF_TOKEN", "valueFrom": token}, *([_SPAWN] if inference.spec.gpu > 1 else [])]
