"""InferenceClass: what one kind of GPU node has, and how a cloud makes such a node."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import WARNING, ConditionType, Ready, Synced
from kubeloop.model import Model, Rule, list_map, must, require
from kubeloop.resource import Column, Definition, Resource, SummarizedStatus
from modelplane_operator.api.bounds import KEYS, CloudName, DiskSize, ObjectName, Prose, String63, String253
from modelplane_operator.api.crossplane import ClusterSpec
from modelplane_operator.api.engines import DeviceCount
from modelplane_operator.api.groups import MODELPLANE
from modelplane_operator.api.shared import Attribute, ClaimMode, Sharing


class Accelerator(Model):
    """The accelerators of a node."""

    type: String63
    """The accelerator's name, as the node label modelplane.ai/gpu carries it. On GKE it is Google's own name, such as
    `nvidia-l4`, and decides what is attached."""
    count: Annotated[int, Field(ge=1, le=16)]
    """Accelerators per node. GKE attaches this many; elsewhere the machine type decides."""


class GKENode(Model):
    """A node on Google Kubernetes Engine."""

    machine_type: CloudName
    """Machine type, for example `g2-standard-12`."""
    disk_size_gb: DiskSize = 100
    """Size of the boot disk in GB."""
    accelerator: Accelerator
    """What is attached to the machine."""


class EKSNode(Model):
    """A node on Amazon EKS."""

    instance_type: CloudName
    """Instance type, for example `p5.48xlarge`. It decides the GPUs."""
    disk_size_gb: DiskSize = 100
    """Size of the root disk in GB."""
    accelerator: Accelerator
    """What the instance type has."""


class AKSNode(Model):
    """A node on Azure Kubernetes Service."""

    vm_size: CloudName
    """VM size, for example `Standard_ND96isr_H100_v5`. It decides the GPUs."""
    disk_size_gb: DiskSize = 100
    """Size of the OS disk in GB."""
    accelerator: Accelerator
    """What the VM size has."""


class NebiusNode(Model):
    """A node on Nebius."""

    platform: CloudName
    """Compute platform, for example `gpu-h100-sxm`."""
    preset: CloudName
    """Shape within the platform, for example `8gpu-128vcpu-1600gb`."""
    disk_size_gb: DiskSize = 100
    """Size of the boot disk in GB."""
    drivers_preset: String63 = "cuda13.0"
    """NVIDIA drivers that come with the node."""
    accelerator: Accelerator
    """What the preset has."""


class VultrNode(Model):
    """A node on Vultr."""

    plan: CloudName
    """Plan, for example `vcg-a100-12c-120g-80vram`. It decides the GPUs."""
    accelerator: Accelerator
    """What the plan has."""


def _block_of(provider: str) -> Rule:
    field = provider.lower()
    return require(
        field,
        f"self.provider != '{provider}'",
        f"Provider {provider} needs its own block: add `provisioning.{field}`.",
    )


class Provisioning(Model):
    """How to make such a node on a cloud."""

    rules: ClassVar = tuple(_block_of(provider) for provider in ("GKE", "EKS", "AKS", "Nebius", "Vultr"))

    provider: Literal["GKE", "EKS", "AKS", "Nebius", "Vultr"]
    """The cloud. The block of the same name must be there."""
    gke: GKENode | None = None
    """How to make the node on Google Kubernetes Engine."""
    eks: EKSNode | None = None
    """How to make the node on Amazon EKS."""
    aks: AKSNode | None = None
    """How to make the node on Azure Kubernetes Service."""
    nebius: NebiusNode | None = None
    """How to make the node on Nebius."""
    vultr: VultrNode | None = None
    """How to make the node on Vultr."""


EXACTLY_ONE_VALUE = Rule(
    "[has(self.string), has(self.version), has(self.bool), has(self.int)].filter(x, x).size() == 1",
    "An attribute has exactly one value: give one of string, version, bool or int.",
)


class ClassCapacity(Model):
    """An amount."""

    value: Annotated[str, Field(min_length=1, max_length=32)]
    """A Kubernetes quantity, for example `81559Mi`. Give what a workload can use, not the nominal size."""


class ClassDevice(Model):
    """One kind of device on the node."""

    rules: ClassVar = (
        require(
            "deviceClassName",
            "self.claim != 'DRA'",
            "A device that is claimed through DRA needs a deviceClassName, such as gpu.nvidia.com; a device that only "
            "guides placement has `claim: Synthetic`.",
        ),
    )

    name: String63
    """Name of the device in this class, for example `gpu`."""
    claim: ClaimMode = "DRA"
    """`DRA`: pods claim it from the cluster. `Synthetic`: it only guides placement, nothing is claimed."""
    driver: String253
    """DRA driver of the device, for example `gpu.nvidia.com`. Attribute and capacity keys without a domain belong to
    it."""
    device_class_name: ObjectName | None = None
    """DeviceClass on the cluster through which pods claim the device."""
    count: DeviceCount = 1
    """Devices of this kind on each node."""
    attributes: Annotated[
        dict[str, Annotated[Attribute, must(EXACTLY_ONE_VALUE)]],
        Field(max_length=32),
        must(KEYS),
    ] = {}
    """Properties of the device, by key: `architecture`, or `domain/id` for another domain than the driver's."""
    capacity: Annotated[dict[str, ClassCapacity], Field(max_length=32), must(KEYS)] = {}
    """Amounts that the device has, with keys like those of the attributes: `memory`."""


class InferenceClassSpec(ClusterSpec):
    """One kind of GPU node."""

    description: Prose | None = None
    """What this node is, in your words."""
    provisioning: Provisioning | None = None
    """How to make such a node on a cloud. Leave it out for clusters that you bring."""
    devices: Annotated[tuple[ClassDevice, ...], Field(min_length=1, max_length=16), list_map("name")]
    """The devices of one node: one entry for each kind of device."""
    sharing: Sharing = "Node"
    """`Device`: replicas share nodes of this class by their devices. `Node`: each pod that claims devices takes a node.
    A pool can say otherwise."""


class Accepted(ConditionType):
    """Whether the class can be used."""

    AVAILABLE = "Available", "True", "Clusters may name this class in their node pools."
    INVALID_DEVICE = (
        "InvalidDevice",
        "False",
        "An attribute or capacity of a device is invalid; the message names it.",
        WARNING,
    )


class InferenceClassStatus(SummarizedStatus):
    """Who uses the class."""

    clusters: int | None = None
    """InferenceClusters with a pool of this class. While it is above 0 the class is not deleted."""
    nodes: int | None = None
    """Nodes of this class on all clusters that the scheduler counts."""


class InferenceClass(Resource[InferenceClassSpec, InferenceClassStatus]):
    """One kind of GPU node: the devices that models can request, and how a cloud creates the node."""

    definition: ClassVar = Definition(
        kind="InferenceClass",
        group=MODELPLANE,
        short="icl",
        scope="Cluster",
        columns=(Column("CLUSTERS", ".status.clusters", "integer"), Column("NODES", ".status.nodes", "integer")),
        conditions=(Accepted, Synced, Ready),
    )
