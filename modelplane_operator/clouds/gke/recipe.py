"""GKE as data, for InferenceClusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeloop.objects import Manifest, Section
from modelplane_operator.api.clusters.gke import GKECluster
from modelplane_operator.api.inference_class import InferenceClass
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.node_pool import NodePool
from modelplane_operator.clouds.gke.plan import account_of
from modelplane_operator.clouds.gke.render.storage import storage
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.recipe import (
    Recipe,
    credentials_of,
    render_location,
    render_size_limits,
    require_node,
    require_pools,
)
from modelplane_operator.clouds.resources import Account


def render_spec(cluster: InferenceCluster, classes: Mapping[str, InferenceClass]) -> Manifest:
    """Return the spec of a GKECluster."""
    origin = cluster.spec.cluster.gke
    if origin is None:
        raise CannotMake("source GKE needs its block: add `cluster.gke`")
    optional = {"project": origin.project, "serviceAccount": origin.service_account}
    present = {name: value for name, value in optional.items() if value}
    return {
        **render_location(origin),
        **present,
        "nodePools": [_render_pool(pool, classes) for pool in require_pools(cluster)],
    }


def _render_pool(pool: NodePool, classes: Mapping[str, InferenceClass]) -> Manifest:
    """Return a node pool of a GKECluster."""
    node = require_node(pool, classes, lambda provisioning: provisioning.gke, "GKE")
    return {
        "name": pool.name,
        "role": "GPU",
        "machineType": node.machine_type,
        "diskSizeGb": node.disk_size_gb,
        "nodeCount": pool.node_count,
        **render_size_limits(pool, least=0),
        "gpu": {"acceleratorType": node.accelerator.type, "acceleratorCount": node.accelerator.count},
        "zones": [*pool.zones],
    }


def account_of_existing(block: Section) -> Account:
    """Return the account of an existing cluster."""
    return Account("GKE", block["location"], credentials_of(block), block.get("project", ""))


RECIPE: Final = Recipe(
    "GKE",
    GKECluster,
    render_spec,
    account_of,
    account_of_existing,
    storage,
    driver_root="/home/kubernetes/bin/nvidia",
)
