"""VultrCluster: a cluster on Vultr."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from kubeloop.condition_types import Ready, Synced
from kubeloop.model import Model, list_map
from kubeloop.resource import Column, Definition, Resource, SummarizedStatus
from modelplane_operator.api.bounds import CloudName
from modelplane_operator.api.cluster_origin import ACCOUNT_STAYS, Region
from modelplane_operator.api.clusters.parts import (
    GPU_NEEDS_BLOCK,
    MIN_NEEDS_MAX,
    AtLeastOneNode,
    Gpu,
    KubeconfigSecret,
    KubernetesVersion,
    PoolName,
    PoolRole,
)
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.groups import INFRASTRUCTURE
from modelplane_operator.api.shared import Credentials


class VultrPool(Model):
    """A node pool."""

    rules: ClassVar = (GPU_NEEDS_BLOCK, MIN_NEEDS_MAX)

    name: PoolName
    """Name of the pool, and value of the node label modelplane.ai/pool."""
    role: PoolRole
    """`GPU` for models. The operator adds a pool for its own pods."""
    plan: CloudName
    """Plan, for example `vcg-a100-12c-120g-80vram`."""
    node_count: AtLeastOneNode = 1
    """Nodes to start with, or the size of a fixed pool. Vultr keeps at least one."""
    min_node_count: AtLeastOneNode | None = None
    """Minimum of nodes for the autoscaler; without it, `nodeCount`."""
    max_node_count: AtLeastOneNode | None = None
    """Maximum of nodes for the autoscaler. Without it the pool keeps its size."""
    gpu: Gpu | None = None
    """The accelerators; needed with role GPU."""


class VultrClusterSpec(Spec):
    """A cluster on Vultr."""

    rules: ClassVar = (ACCOUNT_STAYS,)

    region: Region
    """Vultr region. It cannot change."""
    kubernetes_version: KubernetesVersion = "v1.36.1+3"
    """Version of Vultr's Kubernetes, with its build."""
    credentials: Credentials | None = None
    """The account that creates the cluster. Without it, the Secret `default`. The name cannot change."""
    node_pools: Annotated[tuple[VultrPool, ...], Field(min_length=1, max_length=8), list_map("name")]
    """The node pools."""


class VultrClusterStatus(SummarizedStatus):
    """Observed state of the cluster."""

    secrets: tuple[KubeconfigSecret, ...] = ()
    """Credentials that came with the cluster."""


class VultrCluster(Resource[VultrClusterSpec, VultrClusterStatus]):
    """A cluster on Vultr, with its node pools. An InferenceCluster makes its own."""

    definition: ClassVar = Definition(
        kind="VultrCluster",
        group=INFRASTRUCTURE,
        short="vke",
        scope="Namespaced",
        columns=(Column("REGION", ".spec.region"),),
        conditions=(Synced, Ready),
    )
