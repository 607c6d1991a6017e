"""Render an LLMInference's engine as a plain Deployment, for settings that VLLMRuntimes have no fields for.

Shared memory and the start time grow with the number of GPUs: the processes of one engine pass tensors through
shared memory, and more GPUs have more to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubeloop.objects import Manifest
from kubeloop.types import DEPLOYMENT, SERVICE
from modelplane_operator.api import pins
from modelplane_operator.api.llm_inference import LLMInference
from modelplane_operator.models.replica.render.pods import (
    GPU_TOLERATION,
    KEEP_ALIVE,
    UNPRIVILEGED,
    Lifecycle,
    drain,
    probes,
)

IMAGE: Final = pins.VLLM.image
"""Image of vLLM."""
SELECTING: Final = "inference.devopstoolkit.ai/llminference"
"""Label that selects the pods of an LLMInference."""
PORT: Final = 8000
"""Port on which vLLM listens."""
WEIGHTS: Final = "/weights"
"""Path for downloaded weights."""
GIB_OF_A_GPU: Final = 8  # the limit is twice as much, for shared memory
"""GiB of memory per GPU, and of shared memory."""
CPUS_OF_A_GPU: Final = 2
"""CPUs per GPU."""
_PROBES: Final = 2  # a later one would restart every engine at once
"""Pod revision whose probes are used."""


def render_service(metadata: Manifest) -> Manifest:
    """Render the Service of an engine."""
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": metadata,
        "spec": {
            "selector": {SELECTING: metadata["name"]},
            "ports": [{"name": "http", "port": 80, "targetPort": PORT, "protocol": "TCP"}],
        },
    }


def render_deployment(
    inference: LLMInference, metadata: Manifest, args: Sequence[str], env: Sequence[Manifest]
) -> Manifest:
    """Render the Deployment of an engine."""
    gpu, selector = inference.spec.gpu, {SELECTING: metadata["name"]}
    lifecycle = Lifecycle(startup_seconds=startup_seconds(gpu), drain_seconds=60, grace_seconds=90)
    requests = {"cpu": str(CPUS_OF_A_GPU * gpu), "memory": f"{GIB_OF_A_GPU * gpu}Gi", "nvidia.com/gpu": str(gpu)}
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": selector},
            # A new engine would wait for the GPUs that the old one occupies.
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": lifecycle.startup_seconds + 600,
            "template": {
                "metadata": {"labels": {**metadata["labels"], **selector}},
                "spec": {
                    "tolerations": [GPU_TOLERATION],
                    # Without this, a Service named `vllm` would set VLLM_PORT in every engine of its namespace.
                    "enableServiceLinks": False,
                    "automountServiceAccountToken": False,
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "terminationGracePeriodSeconds": lifecycle.grace_seconds,
                    "volumes": [
                        {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{GIB_OF_A_GPU * gpu}Gi"}},
                        # Downloaded weights survive a restart of the container.
                        {"name": "weights", "emptyDir": {}},
                    ],
                    "containers": [
                        {
                            "name": "engine",
                            "image": IMAGE,
                            "args": [*args, f"--port={PORT}"],
                            "env": [*env, {"name": "HF_HOME", "value": WEIGHTS}, *KEEP_ALIVE[:1]],
                            "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
                            **probes(PORT, lifecycle, _PROBES),
                            "lifecycle": drain(lifecycle),
                            # Shared memory counts towards the container's limit.
                            "resources": {
                                "requests": requests,
                                "limits": {**requests, "memory": f"{2 * GIB_OF_A_GPU * gpu}Gi"},
                            },
                            "volumeMounts": [
                                {"name": "dshm", "mountPath": "/dev/shm"},  # noqa: S108
                                {"name": "weights", "mountPath": WEIGHTS},
                            ],
                            "securityContext": {**UNPRIVILEGED, "capabilities": {"drop": ["ALL"]}},
                        }
                    ],
                },
            },
        },
    }


def startup_seconds(gpu: int) -> int:
    """Return the seconds that an engine gets to start. The download takes most of them."""
    return 1800 + 300 * gpu
