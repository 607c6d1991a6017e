"""What the clouds' cluster kinds have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kubeloop.model import Model, Rule, must, require
from modelplane_operator.api.bounds import CloudName, DiskSize, String63
from modelplane_operator.api.node_pool import PoolName as AnyPoolName

PoolName = Annotated[AnyPoolName, Field(min_length=1)]
KubernetesVersion = Annotated[str, Field(min_length=1, max_length=16)]
Cidr = Annotated[
    str,
    Field(max_length=18),
    must(
        Rule(
            "isCIDR(self) && cidr(self).ip().family() == 4",
            "Write a range of IPv4 addresses as CIDR, for example 10.0.0.0/16. It cannot be changed later.",
        )
    ),
]
NodeCount = Annotated[int, Field(ge=0, le=1000)]
AtLeastOneNode = Annotated[int, Field(ge=1, le=1000)]
Zones = Annotated[tuple[CloudName, ...], Field(min_length=1, max_length=8)]
PoolRole = Literal["System", "GPU"]

GPU_NEEDS_BLOCK = require(
    "gpu",
    "self.role != 'GPU'",
    "A pool with role GPU needs its accelerators: add `gpu: {acceleratorType: ...}`.",
)
GPU_NEEDS_ZONES = require(
    "zones",
    "self.role != 'GPU'",
    "A pool with role GPU must say where there are GPUs: add `zones`.",
)
MIN_NEEDS_MAX = require(
    "maxNodeCount",
    "!has(self.minNodeCount)",
    "minNodeCount means something only for an autoscaled pool: add maxNodeCount, or remove it.",
)


def fixed_network(field: str, default: str) -> Rule:
    """A field of the optional block `networking` keeps its first value, whether that was written or the default."""

    def effective(of: str) -> str:
        return f"(has({of}.networking) ? {of}.networking.{field} : {default})"

    return Rule(
        f"{effective('self')} == {effective('oldSelf')}",
        f"networking.{field} cannot change, since the network under a running cluster cannot: delete it and create it "
        "again.",
        field="networking",
    )


class Gpu(Model):
    """The accelerators of a node."""

    accelerator_type: String63
    """Value of the node label modelplane.ai/gpu."""


class AutoscaledPool(Model):
    """A node pool of GKE, EKS or AKS, which are autoscaled unless their bounds are one; a kind adds the machine."""

    name: PoolName
    """Name of the pool, and value of the node label modelplane.ai/pool."""
    role: PoolRole
    """`GPU` for models. The operator adds a pool for its own pods."""
    disk_size_gb: DiskSize = 100
    """Size of the boot disk in GB."""
    node_count: NodeCount = 1
    """Nodes to start with, or the size of a fixed pool."""
    min_node_count: NodeCount = 0
    """Minimum of nodes for the autoscaler."""
    max_node_count: NodeCount = 8
    """Maximum of nodes for the autoscaler."""


class ProducedSecret(Model):
    """A credential that came with the cluster; a kind says which there can be."""

    name: Annotated[str, Field(max_length=253)]
    """Name of the Secret, in the cluster's namespace."""
    key: Annotated[str, Field(max_length=253)]
    """Key within it."""


class KubeconfigSecret(ProducedSecret):
    """A credential that came with the cluster."""

    type: Literal["Kubeconfig"]
    """Type of the credential."""
