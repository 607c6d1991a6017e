"""The cloud's own object of an InferenceCluster: its pools, as their classes say that the cloud makes such nodes."""

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

MOST_POOLS: Final = 8  # that the clouds' own kinds take


def render_infrastructure(
    cluster: InferenceCluster, classes: Mapping[str, InferenceClass], kept: Sequence[Section] = ()
) -> Manifest:
    """Raises CannotMake when a class is missing, or does not say how this cloud makes a node.

    `kept`: pools of the cloud's object that nobody asks for any more and that have to stay as they are.
    """
    recipe = INFRASTRUCTURE[cluster.spec.cluster.source]
    kind, spec = recipe.kind, recipe.spec(cluster, classes)
    pools = [*spec["nodePools"], *kept]
    if len(pools) > MOST_POOLS:
        raise CannotMake(
            f"{len(pools)} pools are more than {MOST_POOLS}, with those that are removed and that models still run on: "
            f"{', '.join(one['name'] for one in kept)}"
        )
    return {
        "apiVersion": kind.definition.api_version,
        "kind": kind.definition.kind,
        "metadata": on_hub(cluster, cluster.metadata.name, namespace=names.SYSTEM_NAMESPACE),
        "spec": {**spec, "nodePools": pools},
    }


def _eks(cluster: InferenceCluster, classes: Mapping[str, InferenceClass]) -> Manifest:
    origin = cluster.spec.cluster.eks
    if origin is None:
        raise CannotMake("source EKS needs its block: add `cluster.eks`")
    return {**_place(origin), "nodePools": [_eks_pool(pool, classes) for pool in _pools(cluster)]}


def _eks_pool(pool: NodePool, classes: Mapping[str, InferenceClass]) -> Manifest:
    node = _node(pool, classes, lambda provisioning: provisioning.eks, "EKS")
    made: dict[str, Any] = {
        "name": pool.name,
        "role": "GPU",
        "instanceType": node.instance_type,
        "diskSizeGb": node.disk_size_gb,
        "nodeCount": pool.node_count,
        # The autoscaler of AWS learns from a node what devices another would have.
        **_bounds(pool, least=1),
        "gpu": {"acceleratorType": node.accelerator.type},
        "zones": [*pool.zones],
    }
    if pool.capacity_block is not None:
        made["capacityBlock"] = pool.capacity_block.to_manifest()
    if pool.fabric is not None and pool.fabric.type == "EFA":
        made["fabric"] = "EFA"
    return made


def _gke(cluster: InferenceCluster, classes: Mapping[str, InferenceClass]) -> Manifest:
    origin = cluster.spec.cluster.gke
    if origin is None:
        raise CannotMake("source GKE needs its block: add `cluster.gke`")
    named = {"project": origin.project, "serviceAccount": origin.service_account}
    said = {name: value for name, value in named.items() if value}
    return {**_place(origin), **said, "nodePools": [_gke_pool(pool, classes) for pool in _pools(cluster)]}


def _gke_pool(pool: NodePool, classes: Mapping[str, InferenceClass]) -> Manifest:
    node = _node(pool, classes, lambda provisioning: provisioning.gke, "GKE")
    return {
        "name": pool.name,
        "role": "GPU",
        "machineType": node.machine_type,
        "diskSizeGb": node.disk_size_gb,
        "nodeCount": pool.node_count,
        **_bounds(pool, least=0),
        "gpu": {"acceleratorType": node.accelerator.type, "acceleratorCount": node.accelerator.count},
        "zones": [*pool.zones],
    }


def _place(origin: EKS | GKE) -> dict[str, Any]:
    return {
        "region": origin.region,
        "kubernetesVersion": origin.kubernetes_version,
        **({"credentials": origin.credentials.to_manifest()} if origin.credentials else {}),
    }


def _pools(cluster: InferenceCluster) -> Sequence[NodePool]:
    if not cluster.spec.node_pools:
        raise CannotMake("a cluster without nodes serves nothing: add `nodePools`")
    return cluster.spec.node_pools


def _node(
    pool: NodePool,
    classes: Mapping[str, InferenceClass],
    made_by: Callable[[Provisioning], NodeT | None],
    cloud: str,
) -> NodeT:
    """How a cloud makes a node of a pool."""
    known = classes.get(pool.class_name)
    if known is None:
        raise CannotMake(f"pool {pool.name}: InferenceClass {pool.class_name} does not exist")
    node = made_by(known.spec.provisioning) if known.spec.provisioning else None
    if node is None:
        raise CannotMake(
            f"pool {pool.name}: InferenceClass {pool.class_name} does not say how {cloud} makes such a node: add "
            f"`provisioning.{cloud.lower()}` to it"
        )
    if not pool.zones:
        raise CannotMake(f"pool {pool.name} must say where there are such machines: add `zones`")
    return node


def _bounds(pool: NodePool, *, least: int) -> Mapping[str, int]:
    """A pool that names no most nodes keeps its size. `least`: of one that does, unless it says otherwise."""
    if pool.max_node_count is None:
        return {"minNodeCount": pool.node_count, "maxNodeCount": pool.node_count}
    fewest = min(least, pool.max_node_count) if pool.min_node_count is None else pool.min_node_count
    return {"minNodeCount": fewest, "maxNodeCount": pool.max_node_count}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How clusters of one source are made."""

    kind: type[Resource[Any, Any]]
    spec: Callable[[InferenceCluster, Mapping[str, InferenceClass]], Manifest]
    charts: Callable[[InferenceCluster, str], Iterable[Manifest]]
    """What their serving stacks have beside the usual charts, from the uid of the cloud's object."""
    objects: Callable[[InferenceCluster, Manifest], Iterable[Manifest]]
    """What is on the cluster itself, from the cloud's object: its storage."""
    driver_root: str = ""
    """Where the drivers are that the cloud installs on nodes, if not where NVIDIA has them."""


INFRASTRUCTURE: Final[Mapping[str, Recipe]] = {
    "EKS": Recipe(EKSCluster, _eks, eks_charts, eks_storage),
    "GKE": Recipe(GKECluster, _gke, lambda _, __: (), gke_storage, driver_root="/home/kubernetes/bin/nvidia"),
}
"""The sources that clusters can be made on."""


def charts_of(cluster: InferenceCluster, infrastructure: Manifest | None) -> tuple[Manifest, ...] | None:
    """The charts that only its cloud asks for; None while it is not known what the cloud calls the cluster."""
    recipe = INFRASTRUCTURE.get(cluster.spec.cluster.source)
    if recipe is None:
        return ()
    return tuple(recipe.charts(cluster, infrastructure["metadata"]["uid"])) if infrastructure else None


def objects_of(cluster: InferenceCluster, infrastructure: Manifest | None) -> tuple[Manifest, ...]:
    """What its cloud asks for on the cluster itself, as far as that is known."""
    recipe = INFRASTRUCTURE.get(cluster.spec.cluster.source)
    return tuple(recipe.objects(cluster, infrastructure)) if recipe and infrastructure else ()


def driver_root_of(cluster: InferenceCluster) -> str:
    """Where its nodes have NVIDIA's driver; empty where that needs not be said."""
    existing = cluster.spec.cluster.existing
    cloud = existing.cloud if cluster.spec.cluster.source == "Existing" and existing else None
    recipe = INFRASTRUCTURE.get("GKE" if cloud and cloud.gke else cluster.spec.cluster.source)
    return recipe.driver_root if recipe else ""
