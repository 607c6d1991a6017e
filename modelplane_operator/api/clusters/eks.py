"""EKSCluster: a cluster on Amazon EKS."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.model import Model, list_map
from kubeloop.resource import Column, Definition, Resource
from modelplane_operator.api.bounds import CloudName
from modelplane_operator.api.cluster_origin import ACCOUNT_STAYS, Region
from modelplane_operator.api.clusters.parts import (
    GPU_NEEDS_BLOCK,
    GPU_NEEDS_ZONES,
    AutoscaledPool,
    Cidr,
    Gpu,
    KubeconfigSecret,
    KubernetesVersion,
    Zones,
    fixed_network,
)
from modelplane_operator.api.clusters.provisioning import CONDITIONS, CloudStatus
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.groups import INFRASTRUCTURE
from modelplane_operator.api.node_pool import CapacityBlock
from modelplane_operator.api.shared import Credentials

SUBNETS = ("10.0.0.0/20", "10.0.16.0/20", "10.0.32.0/20")


class EKSNetworking(Model):
    """Address ranges of the cluster. They cannot change."""

    vpc_cidr: Cidr = "10.0.0.0/16"
    """Addresses of the VPC."""
    subnet_cidrs: Annotated[tuple[Cidr, ...], Field(min_length=2, max_length=6)] = SUBNETS
    """Addresses of the public subnets, one for each zone, in order. The private subnet of a zone has a third number
    that is 48 higher."""


class EKSPool(AutoscaledPool):
    """A node group."""

    rules: ClassVar = (GPU_NEEDS_BLOCK, GPU_NEEDS_ZONES)

    instance_type: CloudName
    """Instance type, for example `p5.48xlarge`."""
    gpu: Gpu | None = None
    """The accelerators; needed with role GPU."""
    capacity_block: CapacityBlock | None = None
    """An AWS Capacity Block to take the nodes from."""
    zones: Zones = ()
    """Zones to place the nodes in; needed with role GPU."""
    fabric: Literal["None", "EFA"] = "None"
    """`EFA` gives the nodes EFA network cards and the driver that pods claim them through."""


class EKSClusterSpec(Spec):
    """A cluster on Amazon EKS."""

    rules: ClassVar = (
        ACCOUNT_STAYS,
        fixed_network("vpcCidr", "'10.0.0.0/16'"),
        fixed_network("subnetCidrs", f"[{', '.join(repr(subnet) for subnet in SUBNETS)}]"),
    )

    region: Region
    """AWS region. It cannot change."""
    kubernetes_version: KubernetesVersion = "1.36"
    """Kubernetes version of the control plane."""
    credentials: Credentials | None = None
    """The account that creates the cluster. Without it, the Secret `default`. The name cannot change."""
    networking: EKSNetworking | None = None
    """Address ranges. Without them, the defaults."""
    node_pools: Annotated[tuple[EKSPool, ...], Field(min_length=1, max_length=8), list_map("name")]
    """The node groups."""


class Machine(Model):
    """What AWS says of an instance type."""

    instance_type: Annotated[str, Field(max_length=63)]
    """The instance type."""
    efa: int
    """Number of its network cards with EFA."""
    zones: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=32)] = ()
    """The zones that have it."""


class EKSFacts(Model):
    """What was found out of the account and its region, once: the cluster follows from it and the spec, always."""

    zones: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=6)]
    """The zones of the cluster's subnets."""
    principal: Annotated[str, Field(max_length=2048)]
    """ARN of the operator's role or user on AWS, which may administer the cluster."""
    machines: Annotated[tuple[Machine, ...], Field(max_length=8), list_map("instanceType")] = ()
    """The instance types of the pools."""


class EKSClusterStatus(CloudStatus):
    """Observed state of the cluster."""

    secrets: tuple[KubeconfigSecret, ...] = ()
    """Credentials that came with the cluster."""
    facts: EKSFacts | None = None
    """Data of the account and its region."""


class EKSCluster(Resource[EKSClusterSpec, EKSClusterStatus]):
    """A cluster on Amazon EKS, with its network and node groups. An InferenceCluster makes its own."""

    definition: ClassVar = Definition(
        kind="EKSCluster",
        group=INFRASTRUCTURE,
        short="eks",
        scope="Namespaced",
        columns=(Column("REGION", ".spec.region"),),
        conditions=CONDITIONS,
    )
