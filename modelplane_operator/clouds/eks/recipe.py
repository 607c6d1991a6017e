"""EKS as data, for InferenceClusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kubeloop.objects import Manifest, Section
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.api.inference_class import InferenceClass
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.node_pool import NodePool
from modelplane_operator.clouds.eks.plan import account_of
from modelplane_operator.clouds.eks.render.charts import extra_charts
from modelplane_operator.clouds.eks.render.storage import storage
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
    """Return the spec of an EKSCluster."""
    origin = cluster.spec.cluster.eks
    if origin is None:
        raise CannotMake("source EKS needs its block: add `cluster.eks`")
    return {
        **render_location(origin),
        "nodePools": [_render_pool(pool, classes) for pool in require_pools(cluster)],
    }


def _render_pool(pool: NodePool, classes: Mapping[str, InferenceClass]) -> Manifest:
    """Return a node pool of an EKSCluster."""
    node = require_node(pool, classes, lambda provisioning: provisioning.eks, "EKS")
    manifest: dict[str, Any] = {
        "name": pool.name,
        "role": "GPU",
        "instanceType": node.instance_type,
        "diskSizeGb": node.disk_size_gb,
        "nodeCount": pool.node_count,
        # The autoscaler of AWS learns from an existing node which devices a new one would have.
        **render_size_limits(pool, least=1),
        "gpu": {"acceleratorType": node.accelerator.type},
        "zones": [*pool.zones],
    }
    if pool.capacity_block is not None:
        manifest["capacityBlock"] = pool.capacity_block.to_manifest()
    if pool.fabric is not None and pool.fabric.type == "EFA":
        manifest["fabric"] = "EFA"
    return manifest


def account_of_existing(block: Section) -> Account:
    """Return the account of an existing cluster."""
    return Account("EKS", block["region"], credentials_of(block))


RECIPE: Final = Recipe("EKS", EKSCluster, render_spec, account_of, account_of_existing, storage, extra_charts)
