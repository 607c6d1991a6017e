"""GKECluster: a cluster on Google Kubernetes Engine."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.model import Model, list_map
from kubeloop.resource import Column, Definition, Resource
from modelplane_operator.api.bounds import CloudName
from modelplane_operator.api.cluster_origin import (
    ACCOUNT_WITHOUT_PROJECT_STAYS,
    PROJECT_STAYS,
    Project,
    Region,
    ServiceAccount,
)
from modelplane_operator.api.clusters.parts import (
    GPU_NEEDS_BLOCK,
    GPU_NEEDS_ZONES,
    AutoscaledPool,
    Cidr,
    Gpu,
    KubernetesVersion,
    ProducedSecret,
    Zones,
    fixed_network,
)
from modelplane_operator.api.clusters.provisioning import CONDITIONS, CloudStatus
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.groups import INFRASTRUCTURE
from modelplane_operator.api.shared import Credentials


class GKENetworking(Model):
    """Address ranges of the cluster. They cannot change."""

    pod_cidr: Cidr = "10.1.0.0/16"
    """Addresses for pods."""
    service_cidr: Cidr = "10.2.0.0/16"
    """Addresses for Services."""
    node_cidr: Cidr = "10.0.0.0/24"
    """Addresses for nodes."""


class GKEGpu(Gpu):
    """The accelerators of a node."""

    accelerator_count: Annotated[int, Field(ge=1, le=16)] = 1
    """Accelerators attached to every node."""


class GKEPool(AutoscaledPool):
    """A node pool."""

    rules: ClassVar = (GPU_NEEDS_BLOCK, GPU_NEEDS_ZONES)

    machine_type: CloudName
    """Machine type, for example `a3-highgpu-8g`."""
    gpu: GKEGpu | None = None
    """The accelerators; needed with role GPU."""
    zones: Zones = ()
    """Zones to place the nodes in; needed with role GPU."""


class GKEClusterSpec(Spec):
    """A cluster on Google Kubernetes Engine."""

    rules: ClassVar = (
        PROJECT_STAYS,
        ACCOUNT_WITHOUT_PROJECT_STAYS,
        fixed_network("podCidr", "'10.1.0.0/16'"),
        fixed_network("serviceCidr", "'10.2.0.0/16'"),
        fixed_network("nodeCidr", "'10.0.0.0/24'"),
    )

    region: Region
    """Google Cloud region. It cannot change."""
    kubernetes_version: KubernetesVersion = "1.35"
    """Kubernetes version of the control plane."""
    project: Project | None = None
    """Google Cloud project. Without one, the project of the credentials. It cannot change."""
    credentials: Credentials | None = None
    """The account that creates the cluster. Without it, the Secret `default`. The name cannot change."""
    service_account: ServiceAccount | None = None
    """Service account of the nodes. Without one, the project's default service account of Compute Engine. Existing
    pools keep theirs."""
    networking: GKENetworking | None = None
    """Address ranges. Without them, the defaults."""
    node_pools: Annotated[tuple[GKEPool, ...], Field(min_length=1, max_length=8), list_map("name")]
    """The node pools."""


class GKESecret(ProducedSecret):
    """A credential that came with the cluster."""

    type: Literal["Kubeconfig", "GoogleApplicationCredentials"]
    """Type of the credential."""


class GKEFacts(Model):
    """What was found out of the account, once: the cluster stays there."""

    project: Annotated[str, Field(max_length=128)]
    """The project that the cluster is in."""


class GKEClusterStatus(CloudStatus):
    """Observed state of the cluster."""

    secrets: tuple[GKESecret, ...] = ()
    """Credentials that came with the cluster."""
    facts: GKEFacts | None = None
    """Data of the account."""


class GKECluster(Resource[GKEClusterSpec, GKEClusterStatus]):
    """A cluster on Google Kubernetes Engine, with its network and node pools. An InferenceCluster makes its own."""

    definition: ClassVar = Definition(
        kind="GKECluster",
        group=INFRASTRUCTURE,
        short="gke",
        scope="Namespaced",
        columns=(Column("REGION", ".spec.region"),),
        conditions=CONDITIONS,
    )
