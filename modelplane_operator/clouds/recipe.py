"""One cloud as data: its kind, and how clusters, charts, accounts and references of existing clusters are read from it.

The recipes are in the clouds' folders, and `render.py` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kubeloop.model import Model
from kubeloop.objects import Manifest, Section, section
from kubeloop.resource import Resource
from modelplane_operator.api.inference_class import InferenceClass, Provisioning
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.node_pool import NodePool
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.resources import Account

NodeT = TypeVar("NodeT")


class CloudOrigin(Protocol):
    """What the blocks of all clouds in an InferenceCluster have in common."""

    @property
    def region(self) -> str: ...

    @property
    def kubernetes_version(self) -> str: ...

    @property
    def credentials(self) -> Model | None: ...


OWN_IDENTITY = "default"
"""Name of the credentials where none are named: the operator's own identity, unless a Secret has this name."""


def no_charts(_: InferenceCluster, __: str) -> Iterable[Manifest]:
    """Return no charts: the cloud needs none of its own."""
    return ()


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to create and to find clusters of one cloud."""

    source: str
    """The source of InferenceClusters that are created there; in lower case, the field of `existing.cloud`."""
    kind: type[Resource[Any, Any]]
    """Kind of the cloud's object, such as EKSCluster."""
    spec: Callable[[InferenceCluster, Mapping[str, InferenceClass]], Manifest]
    """Renders the spec of that object. Raises CannotMake."""
    account_of: Callable[[Any], Account]
    """Returns the account of a parsed object of the kind."""
    account_of_existing: Callable[[Section], Account]
    """Returns the account of an existing cluster, from its block in `existing.cloud`."""
    objects: Callable[[InferenceCluster, Manifest], Iterable[Manifest]]
    """Objects on the cluster itself, from the cloud's object: storage classes."""
    charts: Callable[[InferenceCluster, str], Iterable[Manifest]] = no_charts
    """Additional charts of the serving stack, from the uid of the cloud's object."""
    driver_root: str = ""
    """Directory of the NVIDIA drivers that the cloud installs on nodes, if not NVIDIA's default."""


def credentials_of(block: Section) -> str:
    """Return the name of the credentials in a block of an existing cluster."""
    return section(block, "credentials").get("name", OWN_IDENTITY)


def render_location(origin: CloudOrigin) -> dict[str, Any]:
    """Return the fields that the clouds' specs have in common."""
    return {
        "region": origin.region,
        "kubernetesVersion": origin.kubernetes_version,
        **({"credentials": origin.credentials.to_manifest()} if origin.credentials else {}),
    }


def require_pools(cluster: InferenceCluster) -> Sequence[NodePool]:
    """Return the node pools. Raise CannotMake when there are none."""
    if not cluster.spec.node_pools:
        raise CannotMake("a cluster without nodes serves nothing: add `nodePools`")
    return cluster.spec.node_pools


def require_node(
    pool: NodePool,
    classes: Mapping[str, InferenceClass],
    get_node: Callable[[Provisioning], NodeT | None],
    cloud: str,
) -> NodeT:
    """Return the class's description of a node on this cloud.

    Raise CannotMake when it is missing, or when the pool has no zones, which EKS and GKE need.
    """
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


def render_size_limits(pool: NodePool, *, least: int) -> Mapping[str, int]:
    """Return the size limits of a pool.

    Without a maximum its size is fixed; `least` is the default minimum otherwise.
    """
    if pool.max_node_count is None:
        return {"minNodeCount": pool.node_count, "maxNodeCount": pool.node_count}
    # The default must not exceed a small maximum.
    min_nodes = min(least, pool.max_node_count) if pool.min_node_count is None else pool.min_node_count
    return {"minNodeCount": min_nodes, "maxNodeCount": pool.max_node_count}
