"""The objects that scenarios apply, each with what a scenario is about as its argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.manifests import Manifest

GROUP = "modelplane.ai/v1alpha1"
IMAGE = "vllm/vllm-openai:v0.11.0"
ANY_GPU = 'device.driver == "gpu.nvidia.com"'
HOPPER = 'device.attributes["gpu.nvidia.com"].architecture == "Hopper"'
ADA = 'device.attributes["gpu.nvidia.com"].architecture == "Ada Lovelace"'
OF_THE_SIMULATOR = "localfleet.dev/"


def gpus(cel: str = ANY_GPU, count: int = 1) -> Manifest:
    """A node selector for so many devices of a node."""
    return {"devices": [{"name": "gpu", "count": count, "selectors": [{"cel": cel}]}]}


def pod(**settings: Any) -> Manifest:
    """A pod with one engine; the settings are the simulator's: `startup_seconds=3` (localfleet/engine/settings.py)."""
    annotations = {f"{OF_THE_SIMULATOR}{name.replace('_', '-')}": str(value) for name, value in settings.items()}
    return {
        **({"metadata": {"annotations": annotations}} if annotations else {}),
        "spec": {"containers": [{"name": "engine", "image": IMAGE, "args": ["--model=org/model"]}]},
    }


def engine(cel: str = ANY_GPU, *, name: str = "vllm", template: Manifest | None = None, **more: Any) -> Manifest:
    """An engine of one pod."""
    return {"name": name, "members": [{"nodeSelector": gpus(cel), "template": template or pod()}], **more}


def deployment(
    namespace: str,
    name: str = "model",
    *,
    replicas: int = 1,
    engines: Sequence[Manifest] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Manifest:
    """A ModelDeployment whose replicas carry `model: NAME`; further arguments go to the replica's spec."""
    return {
        "apiVersion": GROUP,
        "kind": "ModelDeployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "template": {
                "metadata": {"labels": {"model": name, **(labels or {})}},
                "spec": {**spec, "engines": list(engines or [engine()])},
            },
        },
    }


def service(namespace: str, name: str = "model", *shares: tuple[int, Mapping[str, str]]) -> Manifest:
    """A ModelService over shares of (weight, labels); without any, over the deployment of its name."""
    return {
        "apiVersion": GROUP,
        "kind": "ModelService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "endpoints": [
                {"weight": weight, "selector": {"matchLabels": dict(chosen)}}
                for weight, chosen in shares or [(1, {"model": name})]
            ]
        },
    }


def endpoint(namespace: str, name: str, url: str, rewrite: str = "/", **spec: Any) -> Manifest:
    """A ModelEndpoint that leads out of the fleet, with the label `model: NAME`."""
    return {
        "apiVersion": GROUP,
        "kind": "ModelEndpoint",
        "metadata": {"name": name, "namespace": namespace, "labels": {"model": name}},
        "spec": {"url": url, "rewritePath": rewrite, **spec},
    }


def cache(namespace: str, name: str = "model", *, on: str = "") -> Manifest:
    """A ModelCache, which nothing fills; of one cluster, where that is named."""
    spec: Manifest = {"source": "HuggingFace", "huggingFace": {"repo": "org/model", "sizeGiB": 1}}
    spec |= {"clusterSelector": {"matchLabels": {"site": on}}} if on else {}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": GROUP, "kind": "ModelCache", "metadata": metadata, "spec": spec}


def secret(namespace: str, name: str, **values: str) -> Manifest:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}


def config_map(namespace: str, name: str, **values: str) -> Manifest:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": values}


def namespace(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


# The platform that all scenarios share: the pools are those of localfleet/profiles/default.yaml -----------------------

POOLS = {"h100": (8, "Hopper", "80Gi"), "l4": (4, "Ada Lovelace", "24Gi")}
NODES = 2  # of each pool, on each cluster


def gateway() -> Manifest:
    spec = {"backend": "Traefik", "traefik": {"version": "40.2.0"}}
    return {"apiVersion": GROUP, "kind": "InferenceGateway", "metadata": {"name": "default"}, "spec": spec}


def inference_class(name: str, like: str = "") -> Manifest:
    """The class of a pool; `like` another one's under a name of its own."""
    count, architecture, memory = POOLS[like or name]
    device = {
        "name": "gpu",
        "driver": "gpu.nvidia.com",
        "deviceClassName": "gpu.nvidia.com",
        "count": count,
        "attributes": {"architecture": {"string": architecture}},
        "capacity": {"memory": {"value": memory}},
    }
    return {"apiVersion": GROUP, "kind": "InferenceClass", "metadata": {"name": name}, "spec": {"devices": [device]}}


def cluster(name: str, pools: Mapping[str, str] = {pool: pool for pool in POOLS}) -> Manifest:
    """A cluster of the fleet; `pools` are their classes by name."""
    return {
        "apiVersion": GROUP,
        "kind": "InferenceCluster",
        "metadata": {"name": name, "labels": {"site": name}},
        "spec": {
            "cluster": {"source": "Existing", "existing": {"secretRef": {"name": f"{name}-kubeconfig"}}},
            "taints": [],
            "gateway": {"replicas": 1},
            "nodePools": [{"name": pool, "className": named, "nodeCount": NODES} for pool, named in pools.items()],
            "isolation": {"pods": {"allowedAnnotations": [OF_THE_SIMULATOR]}},
        },
    }
