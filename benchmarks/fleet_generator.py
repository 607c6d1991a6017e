"""Fleets and deployments for benchmarks: the same for the same seed, and as API objects, as the operator gets them.

Two kinds of fleet bound what one meets. In a *uniform* fleet all clusters have the same pools, so that everything is
remembered after the first. In a *mixed* fleet each cluster draws its pools from forty classes, so that hardly two are
alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_deployment import ModelDeployment

Manifest = dict[str, Any]

SEED = 20261121
REGIONS = [f"region-{number}" for number in range(10)]
GPUS = [("T4", 15, "7.5.0"), ("A10G", 22, "8.6.0"), ("L4", 22, "8.9.0"), ("L40S", 44, "8.9.0"), ("A100", 79, "8.0.0"),
        ("H100", 79, "9.0.0"), ("H200", 140, "9.0.0"), ("B200", 178, "10.0.0")]  # fmt: skip
SINCE = "2026-01-01T00:00:00Z"


def gpu_class(number: int) -> list[Manifest]:
    """Return the devices of a node: one, two, four or eight of one of eight GPUs, and a network that is fast or not."""
    model, memory, capability = GPUS[number % 8]
    count = (8, 4, 2, 1)[number // 8 % 4]
    gpu = {
        "name": "gpu",
        "claim": "DRA",
        "driver": "gpu.nvidia.com",
        "deviceClassName": "gpu.nvidia.com",
        "count": count,
        "attributes": {
            "productName": {"string": f"NVIDIA {model}"},
            "cudaComputeCapability": {"version": capability},
            "generation": {"int": number},
        },
        "capacity": {"memory": {"value": f"{memory}Gi"}},
    }
    link = "infiniband" if number % 3 == 0 else "ethernet"
    nic = {
        "name": "nic",
        "claim": "Synthetic",
        "driver": "nic.nvidia.com",
        "count": 8,
        "attributes": {"linkType": {"string": link}},
    }
    return [gpu, nic]


def clusters(
    size: int, *, pools: int = 8, mixed: bool = False, nodes: int = 8, shared: bool = False
) -> Iterator[InferenceCluster]:
    """Return so many clusters; two in a hundred are tainted, two are not Ready, and each is in one of ten regions.

    `shared`: their nodes are shared by device.
    """
    sharing = {"sharing": "Device"} if shared else {}
    random = Random(SEED)  # noqa: S311  (the same fleet every time is the point)
    for number in range(size):
        kinds = random.choices(range(40), k=pools) if mixed else range(pools)
        tainted = [{"key": "upkeep", "effect": "NoSchedule"}] if number % 50 == 17 else []
        condition = {
            "type": "Ready",
            "status": "False" if number % 50 == 31 else "True",
            "reason": "Available",
            "lastTransitionTime": SINCE,
        }
        yield InferenceCluster.parse(
            {
                "metadata": {
                    "name": f"cluster-{number:05}",
                    "labels": {"region": REGIONS[number % 10], "example.com/rack": str(number)},
                },
                "spec": {"cluster": {"source": "Existing"}, "taints": tainted},
                "status": {
                    "conditions": [condition],
                    "gateway": {"address": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"},
                    "gpuPools": [
                        {"name": f"pool-{place}", "nodes": nodes, "devices": gpu_class(kind), **sharing}
                        for place, kind in enumerate(kinds)
                    ],
                },
            }
        )


def deployment(
    name: str, *selectors: str, replicas: int = 1, count: int = 1, workers: int = 0, region: str | None = None
) -> ModelDeployment:
    """Return a deployment of one engine: a pod, or a leader with so many workers."""
    requests = [{"name": "gpu", "count": count, "selectors": [{"cel": text} for text in selectors]}]
    template = {"spec": {"containers": [{"name": "engine", "image": "vllm"}]}}
    asked = {"nodeSelector": {"devices": requests}, "template": template}
    gang = [{"role": "Leader", **asked}, {"role": "Worker", "worker": {"nodes": workers}, **asked}]
    members = gang if workers else [{"role": "Standalone", **asked}]
    labels = {"clusterSelector": {"matchLabels": {"region": region}}} if region else {}
    return ModelDeployment.parse(
        {
            "metadata": {"name": name, "namespace": "bench", "uid": f"uid-of-{name}"},
            "spec": {
                "replicas": replicas,
                "template": {"spec": {"engines": [{"name": "main", "members": members}], **labels}},
            },
        }
    )


def product(model: str) -> str:
    return f'device.attributes["gpu.nvidia.com"].productName == "NVIDIA {model}"'


def memory(gib: int) -> str:
    return f'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("{gib}Gi")) >= 0'


def capability(version: str) -> str:
    return f'device.attributes["gpu.nvidia.com"].cudaComputeCapability.compareTo(semver("{version}")) >= 0'


def models(count: int, *, replicas: int, kinds: int) -> Iterator[ModelDeployment]:
    """Return so many deployments of so many kinds: sizes, numbers of GPUs, gangs and regions as teams ask for them."""
    for number in range(count):
        kind = number % kinds
        size = (14, 20, 40, 70)[kind % 4]
        version = ("7.5.0", "8.0.0", "8.9.0", "9.0.0")[kind // 4 % 4]
        yield deployment(
            f"model-{number:05}",
            memory(size - kind // 16 % 7),
            capability(version),
            replicas=replicas,
            count=(1, 1, 2, 4)[kind // 3 % 4],
            workers=1 if kind % 10 == 9 else 0,
            region=REGIONS[kind % 10] if kind % 5 == 4 else None,
        )
