"""Render the cloud's own object of an InferenceCluster, with node pools as their InferenceClasses describe them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kubeloop.objects import Manifest, Section
from kubeloop.resource import Resource
from modelplane_operator.api import names
from modelplane_operator.api.cluster_origin import EKS, GKE
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.api.clusters.gke import GKECluster
from modelplane_operator.api.inference_class import InferenceClass, Provisioning
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.node_pool import NodePool
from modelplane_operator.clouds.eks.render.charts import extra_charts as eks_charts
from modelplane_operator.clouds.eks.render.storage import storage as eks_storage
from modelplane_operator.clouds.gke.render.storage import storage as gke_storage
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.owned import on_hub

NodeT = TypeVar("NodeT")

MOST_POOLS: Final = 8  # the limit of the clouds' own kinds


def render_infrastructure(
    cluster: InferenceCluster, classes: Mapping[str, InferenceClass], retained: Sequence[Section] = ()
) -> Manifest:
    """Return the cloud's object of a cluster. Raise CannotMake when a class is missing or has no block for this cloud.

    `retained`: pools of the cloud's object that are no longer desired and must stay as they are.
    """
    recipe = INFRASTRUCTURE[cluster.spec.cluster.source]
    kind, spec = recipe.kind, recipe.spec(cluster, classes)
    pools = [*spec["nodePools"], *retained]
    if len(pools) > MOST_POOLS:
        raise CannotMake(
            f"{len(pools)} pools are more than {MOST_POOLS}, with those that are removed and that models still run on: "
            f"{', '.join(pool['name'] for pool in retained)}"
        )
    return {
        "apiVersion": kind.definition.api_version,
        "kind": kind.definition.kind,
        "metadata": on_hub(cluster, cluster.metadata.name, namespace=names.SYSTEM_NAMESPACE),
        "spec": {**spec, "nodePools": pools},
    }


def _render_eks(cluster: InferenceCluster, classes: Mapping[str, InferenceClass]) -> Manifest:
    """Return the spec of an EKSCluster."""
    origin = cluster.spec.cluster.eks
    if origin is None:
        raise CannotMake("source EKS needs its block: add `cluster.eks`")
    return {
        **_render_location(origin),
        "nodePools": [_render_eks_pool(pool, classes) for pool in _require_pools(cluster)],
    }


def _render_eks_pool(pool: NodePool, classes: Mapping[str, InferenceClass]) -> Manifest:
    """Return a node pool of an EKSCluster."""
    node = _require_node(pool, classes, lambda provisioning: provisioning.eks, "EKS")
    manifest: dict[str, Any] = {
        "name": pool.name,
        "role": "GPU",
        "instanceType": node.instance_type,
        "diskSizeGb": node.disk_size_gb,
        "nodeCount": pool.node_count,
        # The autoscaler of AWS learns from an existing node which devices a new one would have.
        **_render_size_limits(pool, least=1),
        "gpu": {"acceleratorType": node.accelerator.type},
        "zones": [*pool.zones],
    }
    if pool.capacity_block is not None:
        manifest["capacityBlock"] = pool.capacity_block.to_manifest()
    if pool.fabric is not None and pool.fabric.type == "EFA":
        manifest["fabric"] = "EFA"
    return manifest


def _render_gke(cluster: InferenceCluster, classes: Mapping[str, InferenceClass]) -> Manifest:
    """Return the spec of a GKECluster."""
    origin = cluster.spec.cluster.gke
    if origin is None:
        raise CannotMake("source GKE needs its block: add `cluster.gke`")
    optional = {"project": origin.project, "serviceAccount": origin.service_account}
    present = {name: value for name, value in optional.items() if value}
    return {
        **_render_location(origin),
        **present,
        "nodePools": [_render_gke_pool(pool, classes) for pool in _require_pools(cluster)],
    }


def _render_gke_pool(pool: NodePool, classes: Mapping[str, InferenceClass]) -> Manifest:
    """Return a node pool of a GKECluster."""
    node = _require_node(pool, classes, lambda provisioning: provisioning.gke, "GKE")
    return {
        "name": pool.name,
        "role": "GPU",
        "machineType": node.machine_type,
        "diskSizeGb": node.disk_size_gb,
        "nodeCount": pool.node_count,
        **_render_size_limits(pool, least=0),
        "gpu": {"acceleratorType": node.accelerator.type, "acceleratorCount": node.accelerator.count},
        "zones": [*pool.zones],
    }


def _render_location(origin: EKS | GKE) -> dict[str, Any]:
    """Return the fields that the clouds' specs have in common."""
    return {
        "region": origin.region,
        "kubernetesVersion": origin.kubernetes_version,
        **({"credentials": origin.credentials.to_manifest()} if origin.credentials else {}),
    }


def _require_pools(cluster: InferenceCluster) -> Sequence[NodePool]:
    """Return the node pools. Raise CannotMake when there are none."""
    if not cluster.spec.node_pools:
        raise CannotMake("a cluster without nodes serves nothing: add `nodePools`")
    return cluster.spec.node_pools


def _require_node(
    pool: NodePool,
    classes: Mapping[str, InferenceClass],
    get_node: Callable[[Provisioning], NodeT | None],
    cloud: str,
) -> NodeT:
    """Return the class's description of a node on this cloud. Raise CannotMake when it is missing."""
    inference_class = classes.get(pool.class_name)
    if inference_class is None:
        raise CannotMake(f"pool {pool.name}: InferenceClass {pool.class_name} does not exist")
    node = get_node(inference_class.spec.provisioning) if inference_class.spec.provisioning else None
    if node is None:
        raise CannotMake(
            f"pool {pool.name}: InferenceClass {pool.class_name} does not say how {cloud} makes such a node: add "
            f"`provisioning.{cloud.lower()}` to it"
        )
    if not pool.zones:
        raise CannotMake(f"pool {pool.name} must say where there are such machines: add `zones`")
    return node


def _render_size_limits(pool: NodePool, *, least: int) -> Mapping[str, int]:
    """Return the size limits of a pool.

    Without a maximum its size is fixed; `least` is the default minimum otherwise.
    """
    if pool.max_node_count is None:
        return {"minNodeCount": pool.node_count, "maxNodeCount": pool.node_count}
    min_nodes = min(least, pool.max_node_count) if pool.min_node_count is None else pool.min_node_count
    return {"minNodeCount": min_nodes, "maxNodeCount": pool.max_node_count}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to create clusters of one source."""

    kind: type[Resource[Any, Any]]
    spec: Callable[[InferenceCluster, Mapping[str, InferenceClass]], Manifest]
    charts: Callable[[InferenceCluster, str], Iterable[Manifest]]
    """Additional charts of the serving stack, from the uid of the cloud's object."""
    objects: Callable[[InferenceCluster, Manifest], Iterable[Manifest]]
    """Objects on the cluster itself, from the cloud's object: storage classes."""
    driver_root: str = ""
    """Directory of the NVIDIA drivers that the cloud installs on nodes, if not NVIDIA's default."""


INFRASTRUCTURE: Final[Mapping[str, Recipe]] = {
    "EKS": Recipe(EKSCluster, _render_eks, eks_charts, eks_storage),
    "GKE": Recipe(GKECluster, _render_gke, lambda _, __: (), gke_storage, driver_root="/home/kubernetes/bin/nvidia"),
}
"""Recipes of the sources that the operator can create clusters on."""


def charts_of(cluster: InferenceCluster, infrastructure: Manifest | None) -> tuple[Manifest, ...] | None:
    """Return the charts that only the cluster's cloud needs; None until the cloud's object exists."""
    recipe = INFRASTRUCTURE.get(cluster.spec.cluster.source)
    if recipe is None:
        return ()
    return tuple(recipe.charts(cluster, infrastructure["metadata"]["uid"])) if infrastructure else None


def objects_of(cluster: InferenceCluster, infrastructure: Manifest | None) -> tuple[Manifest, ...]:
    """Return the objects that the cloud needs on the cluster itself; none until the cloud's object exists."""
    recipe = INFRASTRUCTURE.get(cluster.spec.cluster.source)
    return tuple(recipe.objects(cluster, infrastructure)) if recipe and infrastructure else ()


def driver_root_of(cluster: InferenceCluster) -> str:
    """Return the directory of NVIDIA's driver on the nodes; empty for the default."""
    existing = cluster.spec.cluster.existing
    cloud = existing.cloud if cluster.spec.cluster.source == "Existing" and existing else None
    recipe = INFRASTRUCTURE.get("GKE" if cloud and cloud.gke else cluster.spec.cluster.source)
    return recipe.driver_root if recipe else ""
