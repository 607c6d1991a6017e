"""An engine of an LLMInference that Kubernetes itself runs, for what a VLLMRuntime has no fields for.

What differs with the number of GPUs is here: shared memory, in which the processes of one engine pass tensors to each
other, and how long an engine may take to start, since more GPUs have more to load.
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
SELECTING: Final = "inference.devopstoolkit.ai/llminference"
PORT: Final = 8000
WEIGHTS: Final = "/weights"
GIB_OF_A_GPU: Final = 8  # of memory, and as much again to share
CPUS_OF_A_GPU: Final = 2
_PROBES: Final = 2  # a later revision of theirs would restart every engine at once


def render_service(metadata: Manifest) -> Manifest:
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
            # The old engine holds the GPUs for which a new one beside it would wait.
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": lifecycle.startup_seconds + 600,
            "template": {
                "metadata": {"labels": {**metadata["labels"], **selector}},
                "spec": {
                    "tolerations": [GPU_TOLERATION],
                    # Without it a Service called `vllm` would set VLLM_PORT in every engine of its namespace.
                    "enableServiceLinks": False,
                    "automountServiceAccountToken": False,
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "terminationGracePeriodSeconds": lifecycle.grace_seconds,
                    "volumes": [
                        {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{GIB_OF_A_GPU * gpu}Gi"}},
                        # What was downloaded outlasts a restart of the container.
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
                            # What is in shared memory counts as the container's.
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
    """From the container's start until it answers: what it downloads is most of that."""
    return 1800 + 300 * gpu
