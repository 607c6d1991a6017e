"""Where a cluster comes from: a cloud that makes it, or whoever brings it along."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.model import Model, Rule, must, require
from modelplane_operator.api.bounds import PLACE, DataKey, ObjectName
from modelplane_operator.api.shared import Credentials

Source = Literal["GKE", "EKS", "AKS", "Nebius", "Vultr", "Existing"]


def immutable(what: str) -> Rule:
    """A field that keeps its first value."""
    return Rule(
        "self == oldSelf",
        f"The {what} of a cluster cannot change, since all that runs there would be lost: delete it and create it "
        "again.",
    )


def _account(of: str) -> str:
    return f"(has({of}.credentials) ? {of}.credentials.name : 'default')"


ACCOUNT_STAYS = Rule(
    f"{_account('self')} == {_account('oldSelf')}",
    "A cluster stays in its account, so that its credentials keep their name: write new keys of that account into the "
    "same Secret, or delete the cluster and create it again.",
    field="credentials",
)
PROJECT_STAYS = Rule(
    "!has(oldSelf.project) || (has(self.project) && self.project == oldSelf.project)",
    "A cluster stays in its project: delete it and create it again.",
    field="project",
)
ACCOUNT_WITHOUT_PROJECT_STAYS = replace(
    ACCOUNT_STAYS, expression=f"(has(self.project) && has(oldSelf.project)) || {ACCOUNT_STAYS.expression}"
)
"""On Google Cloud a project is named, and several credentials may lead to it."""


_PLACE = Field(min_length=1, max_length=32, pattern=PLACE)
Region = Annotated[str, _PLACE, must(immutable("region"))]
Location = Annotated[str, _PLACE, must(immutable("location"))]
KubernetesVersion = Annotated[str, Field(max_length=32)]
Project = Annotated[str, Field(max_length=128, pattern="^[-.:a-z0-9]*$")]
ServiceAccount = Annotated[
    str, Field(max_length=254, pattern=r"^[a-z0-9][-a-z0-9]*@([a-z0-9][-a-z0-9]*\.)+gserviceaccount\.com$")
]


class KubeconfigRef(Model):
    """A kubeconfig in a Secret in `modelplane-system`."""

    name: ObjectName
    """Name of the Secret."""
    key: DataKey = "kubeconfig"
    """Key within it."""


class IdentityRef(Model):
    """A cloud identity in a Secret in `modelplane-system`."""

    name: ObjectName
    """Name of the Secret."""
    key: DataKey = "private_key"
    """Key within it."""
    type: Literal["GoogleApplicationCredentials", "AWSWebIdentityCredentials", "NebiusServiceAccountCredentials"] = (
        "GoogleApplicationCredentials"
    )
    """Kind of the identity; it must belong to the cluster's cloud."""


class ExistingCache(Model):
    """Storage for model caches on a cluster that you bring."""

    storage_class_name: ObjectName | None = None
    """A StorageClass of the cluster whose volumes many nodes can write to. Without one the cluster holds no
    ModelCache."""


class NamedGKE(Model):
    """A cluster that is there on Google Kubernetes Engine."""

    location: Annotated[str, _PLACE]
    """Its region, or the zone of a zonal cluster, for example `us-central1`."""
    cluster: Annotated[str, Field(min_length=1, max_length=40, pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    """Its name on GKE."""
    project: Project | None = None
    """Google Cloud project. Without one, the project of the credentials."""
    credentials: Credentials | None = None
    """The account with which the operator queries the cloud and administers the cluster. Without it, the Secret
    `default`."""


class NamedEKS(Model):
    """A cluster that is there on Amazon EKS."""

    region: Annotated[str, _PLACE]
    """AWS region, for example `us-west-2`."""
    cluster: Annotated[str, Field(min_length=1, max_length=100, pattern="^[0-9A-Za-z][-_0-9A-Za-z]*$")]
    """Its name on EKS."""
    credentials: Credentials | None = None
    """The account with which the operator queries the cloud; an access entry makes it an administrator of the cluster.
    Without it, the Secret `default`."""


class NamedOnCloud(Model):
    """A cluster by its name on a cloud, which says where it is. Tokens for it are made in memory, and renewed."""

    rules: ClassVar = (
        Rule("has(self.gke) != has(self.eks)", "A cluster is on one cloud: name either `gke` or `eks`, and not both."),
    )

    gke: NamedGKE | None = None
    """A cluster on Google Kubernetes Engine."""
    eks: NamedEKS | None = None
    """A cluster on Amazon EKS."""


class Existing(Model):
    """How to reach a cluster that you bring."""

    rules: ClassVar = (
        Rule(
            "has(self.secretRef) != has(self.cloud)",
            "A cluster is reached in one way: by a kubeconfig in `secretRef` or by its name on a `cloud`. Keep one of "
            "them.",
        ),
        Rule(
            "!has(self.cloud) || (!has(self.identitySecretRef) && self.credentialRenewal == 'Never')",
            "Credentials for a cluster that is named on a `cloud` come from there: remove `identitySecretRef` and "
            "`credentialRenewal`.",
        ),
    )

    secret_ref: KubeconfigRef | None = None
    """The cluster's kubeconfig."""
    cloud: NamedOnCloud | None = None
    """The cluster by its name on a cloud, instead of a kubeconfig."""
    identity_secret_ref: IdentityRef | None = None
    """A cloud identity to use with the kubeconfig, for kubeconfigs that carry none."""
    cache: ExistingCache | None = None
    """Storage for model caches."""
    credential_renewal: Literal["Never", "TokenRequest"] = "Never"
    """`TokenRequest`: the operator requests a new token when half of the lifetime of the kubeconfig's token has passed,
    and writes it into the Secret. Use it for tokens that expire, of service accounts that may create tokens for
    themselves."""


class GKE(Model):
    """A cluster to make on Google Kubernetes Engine."""

    rules: ClassVar = (PROJECT_STAYS, ACCOUNT_WITHOUT_PROJECT_STAYS)

    region: Region
    """Google Cloud region, for example `us-central1`. It cannot change."""
    kubernetes_version: KubernetesVersion = "1.35"
    """Kubernetes version of the control plane."""
    project: Project | None = None
    """Google Cloud project. Without one, the project of the credentials. It cannot change."""
    credentials: Credentials | None = None
    """The account that creates the cluster. Without it, the Secret `default`. The name cannot change."""
    service_account: ServiceAccount | None = None
    """Service account of the nodes, for example `nodes@my-project.iam.gserviceaccount.com`. Without one, the project's
    default service account of Compute Engine. Existing pools keep theirs."""


class EKS(Model):
    """A cluster to make on Amazon EKS."""

    rules: ClassVar = (ACCOUNT_STAYS,)

    region: Region
    """AWS region, for example `us-west-2`. It cannot change."""
    kubernetes_version: KubernetesVersion = "1.36"
    """Kubernetes version of the control plane."""
    credentials: Credentials | None = None
    """The account that creates the cluster. Without it, the Secret `default`. The name cannot change."""


class AKS(Model):
    """A cluster to make on Azure Kubernetes Service."""

    rules: ClassVar = (ACCOUNT_STAYS,)

    location: Location
    """Azure region, for example `westeurope`. It cannot change."""
    kubernetes_version: KubernetesVersion = "1.34"
    """Kubernetes version of the control plane."""
    credentials: Credentials | None = None
    """The account that creates the cluster. Without it, the Secret `default`. The name cannot change."""


class Nebius(Model):
    """A cluster to make on Nebius."""

    rules: ClassVar = (ACCOUNT_STAYS,)

    kubernetes_version: KubernetesVersion = "1.34"
    """Kubernetes version of the control plane."""
    credentials: Credentials | None = None
    """The account that creates the cluster. Without it, the Secret `default`. The name cannot change."""


class Vultr(Model):
    """A cluster to make on Vultr."""

    rules: ClassVar = (ACCOUNT_STAYS,)

    region: Region
    """Vultr region, for example `ewr`. It cannot change."""
    kubernetes_version: KubernetesVersion = "v1.36.1+3"
    """Version of Vultr's Kubernetes, with its build."""
    credentials: Credentials | None = None
    """The account that creates the cluster. Without it, the Secret `default`. The name cannot change."""


def _block_of(source: str) -> Rule:
    field = source.lower()
    return require(
        field,
        f"self.source != '{source}'",
        f"Source {source} needs its own block: add `cluster.{field}`.",
    )


class ClusterOrigin(Model):
    """Where the cluster comes from."""

    rules: ClassVar = tuple(_block_of(source) for source in ("Existing", "GKE", "EKS", "AKS", "Nebius", "Vultr"))

    source: Annotated[Source, must(immutable("source"))]
    """The cloud to make it on, or `Existing` for a cluster that you bring. The block of the same name must be there.
    It cannot change."""
    existing: Existing | None = None
    """How to reach a cluster that you bring."""
    gke: GKE | None = None
    """A cluster to make on Google Kubernetes Engine."""
    eks: EKS | None = None
    """A cluster to make on Amazon EKS."""
    aks: AKS | None = None
    """A cluster to make on Azure Kubernetes Service."""
    nebius: Nebius | None = None
    """A cluster to make on Nebius; `{}` will do."""
    vultr: Vultr | None = None
    """A cluster to make on Vultr."""
