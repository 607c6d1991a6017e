"""AKSCluster: a cluster on Azure Kubernetes Service."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import Ready, Synced
from kubeloop.model import Model, list_map
from kubeloop.resource import Column, Definition, Resource, SummarizedStatus
from modelplane_operator.api.bounds import PLACE, CloudName
from modelplane_operator.api.cluster_origin import ACCOUNT_STAYS, Location
from modelplane_operator.api.clusters.parts import (
    GPU_NEEDS_BLOCK,
    AutoscaledPool,
    Cidr,
    Gpu,
    KubeconfigSecret,
    KubernetesVersion,
    NodeCount,
    fixed_network,
)
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.groups import INFRASTRUCTURE
from modelplane_operator.api.shared import CacheStatus, Credentials


class AKSNetworking(Model):
    """Address ranges of the cluster. They cannot change."""

    vnet_cidr: Cidr = "10.0.0.0/16"
    """Addresses of the virtual network."""
    subnet_cidr: Cidr = "10.0.0.0/20"
    """Addresses for nodes. They must not overlap with 10.244.0.0/16 of pods and 10.96.0.0/16 of Services."""


class AKSPool(AutoscaledPool):
    """A node pool."""

    rules: ClassVar = (GPU_NEEDS_BLOCK,)

    name: Annotated[str, Field(min_length=1, max_length=12, pattern="^[a-z][a-z0-9]{0,11}$")]
    """Name of the pool, and value of the node label modelplane.ai/pool: at most 12 lower-case letters and digits,
    beginning with a letter."""
    vm_size: CloudName
    """VM size, for example `Standard_ND96isr_H100_v5`."""
    min_node_count: NodeCount = 0
    """Minimum of nodes for the autoscaler. AKS cannot create the first node of a pool whose devices are claimed: keep
    one."""
    zones: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=8, pattern=PLACE)], ...], Field(min_length=1, max_length=3)
    ] = ()
    """Availability zones to place the nodes in, for example `1`."""
    gpu: Gpu | None = None
    """The accelerators; needed with role GPU."""
    fabric: Literal["None", "InfiniBand"] = "None"
    """`InfiniBand` adds NVIDIA's network operator to the cluster."""


class AKSClusterSpec(Spec):
    """A cluster on Azure Kubernetes Service."""

    rules: ClassVar = (
        ACCOUNT_STAYS,
        fixed_network("vnetCidr", "'10.0.0.0/16'"),
        fixed_network("subnetCidr", "'10.0.0.0/20'"),
    )

    location: Location
    """Azure region. It cannot change."""
    kubernetes_version: KubernetesVersion = "1.34"
    """Kubernetes version of the control plane."""
    credentials: Credentials | None = None
    """The account that creates the cluster. Without it, the Secret `default`. The name cannot change."""
    networking: AKSNetworking | None = None
    """Address ranges. Without them, the defaults."""
    node_pools: Annotated[tuple[AKSPool, ...], Field(min_length=1, max_length=8), list_map("name")]
    """The node pools."""


class AKSClusterStatus(SummarizedStatus):
    """Observed state of the cluster."""

    secrets: tuple[KubeconfigSecret, ...] = ()
    """Credentials that came with the cluster."""
    cache: CacheStatus | None = None
    """Storage for model caches."""


class AKSCluster(Resource[AKSClusterSpec, AKSClusterStatus]):
    """A cluster on Azure Kubernetes Service, with its network and node pools. An InferenceCluster makes its own."""

    definition: ClassVar = Definition(
        kind="AKSCluster",
        group=INFRASTRUCTURE,
        short="aks",
        scope="Namespaced",
        columns=(Column("LOCATION", ".spec.location"),),
        conditions=(Synced, Ready),
    )
