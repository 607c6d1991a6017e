"""NebiusCluster: a cluster on Nebius."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import Ready, Synced
from kubeloop.model import Model, Rule, list_map
from kubeloop.resource import Definition, Resource, SummarizedStatus
from modelplane_operator.api.bounds import CloudName, String63
from modelplane_operator.api.cluster_origin import ACCOUNT_STAYS
from modelplane_operator.api.clusters.parts import (
    GPU_NEEDS_BLOCK,
    MIN_NEEDS_MAX,
    AtLeastOneNode,
    DiskSize,
    Gpu,
    KubernetesVersion,
    NodeCount,
    PoolName,
    PoolRole,
    ProducedSecret,
)
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.groups import INFRASTRUCTURE
from modelplane_operator.api.node_pool import ONLY_WITH_INFINIBAND, InfiniBand
from modelplane_operator.api.shared import CacheStatus, Credentials


class NebiusGpu(Gpu):
    """The accelerators of a node."""

    drivers_preset: String63 = "cuda13.0"
    """NVIDIA drivers that come with the node."""


class NebiusFabric(Model):
    """The network between the nodes of a pool."""

    rules: ClassVar = (
        Rule(
            "self.type != 'InfiniBand' || has(self.infiniband)",
            "An InfiniBand pool must say which fabric it joins: add `infiniband: {fabric: ...}`.",
        ),
        ONLY_WITH_INFINIBAND,
    )

    type: Literal["None", "InfiniBand"] = "None"
    """`InfiniBand` puts the nodes into one GPU cluster."""
    infiniband: InfiniBand | None = None
    """Which InfiniBand fabric to join."""


class NebiusPool(Model):
    """A node group."""

    rules: ClassVar = (GPU_NEEDS_BLOCK, MIN_NEEDS_MAX)

    name: PoolName
    """Name of the pool, and value of the node label modelplane.ai/pool."""
    role: PoolRole
    """`GPU` for models. The operator adds a pool for its own pods."""
    platform: CloudName
    """Compute platform, for example `gpu-h100-sxm`."""
    preset: CloudName
    """Shape within the platform, for example `8gpu-128vcpu-1600gb`."""
    disk_size_gb: DiskSize = 100
    """Size of the boot disk in GB."""
    node_count: NodeCount = 1
    """Nodes to start with, or the size of a fixed pool."""
    min_node_count: NodeCount | None = None
    """Minimum of nodes for the autoscaler; without it, `nodeCount`."""
    max_node_count: AtLeastOneNode | None = None
    """Maximum of nodes for the autoscaler. Without it the pool keeps its size."""
    gpu: NebiusGpu | None = None
    """The accelerators; needed with role GPU."""
    fabric: NebiusFabric | None = None
    """The network between the nodes."""


class NebiusClusterSpec(Spec):
    """A cluster on Nebius."""

    rules: ClassVar = (ACCOUNT_STAYS,)

    kubernetes_version: KubernetesVersion = "1.34"
    """Kubernetes version of the control plane."""
    credentials: Credentials | None = None
    """The account that creates the cluster. Without it, the Secret `default`. The name cannot change."""
    node_pools: Annotated[tuple[NebiusPool, ...], Field(min_length=1, max_length=8), list_map("name")]
    """The node groups."""


class NebiusSecret(ProducedSecret):
    """A credential that came with the cluster."""

    type: Literal["Kubeconfig", "NebiusServiceAccountCredentials"]
    """Type of the credential."""
    namespace: Annotated[str, Field(max_length=253)] | None = None
    """Namespace of the Secret, if it is not the cluster's own."""


class NebiusClusterStatus(SummarizedStatus):
    """Observed state of the cluster."""

    secrets: tuple[NebiusSecret, ...] = ()
    """Credentials that came with the cluster."""
    cache: CacheStatus | None = None
    """Storage for model caches."""


class NebiusCluster(Resource[NebiusClusterSpec, NebiusClusterStatus]):
    """A cluster on Nebius, with its network and node groups. An InferenceCluster makes its own."""

    definition: ClassVar = Definition(
        kind="NebiusCluster", group=INFRASTRUCTURE, short="mk8s", scope="Namespaced", conditions=(Synced, Ready)
    )
