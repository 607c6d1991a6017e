"""Nodes of a workload cluster, and their devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelplane_operator.api import labels
from modelplane_operator.clusters.cluster.plan.hardware import prune_node, prune_slice
from tests.support.builders import GPU
from tests.support.manifests import Manifest

POOL = {"name": "gpu", "className": "h200", "nodeCount": 4}


# Nodes and devices, as the API server tells them ----------------------------------------------------------------------


def node(
    name: str,
    pool: str = "gpu",
    *,
    ready: str = "True",
    since: str = "",
    offers: Mapping[str, str] | None = None,
    fabrics: Mapping[str, str] | None = None,
    **spec: Any,
) -> Manifest:
    changed = {"lastTransitionTime": since} if since else {}
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready, **changed}]
    found = fabrics or {}
    labelled = {labels.POOL: pool, "kubernetes.io/hostname": name, **{k: v for k, v in found.items() if v}}
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "labels": labelled,
        "annotations": {"a": "b"},
    }
    offered = {"allocatable": dict(offers)} if offers else {}
    status = {"conditions": conditions, "images": [{}], **offered}
    return prune_node({"metadata": metadata, "spec": spec, "status": status}, found)


def slice_of(node: str | None, *sizes: str, driver: str = GPU, generation: int = 1, **device: Any) -> Manifest:
    """A ResourceSlice with a device of each of these sizes."""
    name = f"{node or 'all'}-{driver}-{generation}"
    spec = {
        "driver": driver,
        "pool": {"name": node or "all", "generation": generation, "resourceSliceCount": 1},
        **({"nodeName": node} if node else {"allNodes": True}),
        "devices": [
            {"name": f"gpu-{index}", "capacity": {"memory": {"value": size}}, **device}
            for index, size in enumerate(sizes)
        ],
    }
    return prune_slice({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": spec})
