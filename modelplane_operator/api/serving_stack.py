"""ServingStack: the software that a workload cluster needs to serve models."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelplane_operator.api.base import INFRASTRUCTURE, Column, Definition, Resource, Status
from modelplane_operator.api.conditions import Ready, Synced
from modelplane_operator.api.model import Model, Rule, list_map
from modelplane_operator.api.shared import Spec, String63

Version = Annotated[str, Field(min_length=1, max_length=32)]
Up253 = Annotated[str, Field(max_length=253)]


class StackSecret(Model):
    """A credential for the cluster."""

    type: Literal[
        "Kubeconfig",
        "GoogleApplicationCredentials",
        "AWSWebIdentityCredentials",
        "NebiusServiceAccountCredentials",
    ]
    """`Kubeconfig`, or the kind of cloud identity to use with it. The first of each is used."""
    name: Up253
    """Name of the Secret."""
    key: Up253
    """Key within it."""
    namespace: Up253 | None = None
    """Namespace of the Secret of a cloud identity. Without one, the stack's own."""


class Versions(Model):
    """Versions of the stack's parts."""

    gateway_api: Version = "v1.5.1"
    """Gateway API."""
    cert_manager: Version = "v1.17.1"
    """cert-manager chart."""
    envoy_gateway: Version = "v1.8.1"
    """Envoy Gateway chart; InferencePools as backends need v1.8 or later."""
    prometheus: Version = "72.6.2"
    """kube-prometheus-stack chart."""
    leader_worker_set: Version = "v0.8.0"
    """LeaderWorkerSet chart."""
    node_feature_discovery: Version = "0.18.3"
    """Node Feature Discovery chart."""
    nvidia_dra_driver: Version = "0.4.0"
    """NVIDIA DRA driver chart."""


class Listener(Model):
    """A port of the cluster's gateway."""

    name: String63
    """Name of the listener."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """Port it listens on."""
    protocol: Literal["HTTP", "TCP"]
    """Protocol it speaks."""


class StackGateway(Model):
    """The cluster's gateway."""

    class_name: String63 = "envoy"
    """GatewayClass to make."""
    listeners: Annotated[tuple[Listener, ...], Field(max_length=8), list_map("name")] = ()
    """Ports of the gateway. Without any, HTTP on port 80."""


class ServingStackSpec(Spec):
    """The software of one workload cluster."""

    rules: ClassVar = (
        Rule(
            "self.secrets.exists(s, s.type == 'Kubeconfig')",
            "The cluster cannot be reached without a kubeconfig: add a secret with `type: Kubeconfig`.",
        ),
    )

    secrets: Annotated[tuple[StackSecret, ...], Field(min_length=1, max_length=8)]
    """Credentials for the cluster: a kubeconfig, and at most one cloud identity."""
    nvidia_driver_root: Annotated[str, Field(max_length=512)] = "/"
    """Where the NVIDIA driver lies on the nodes."""
    versions: Versions | None = None
    """Versions of the stack's parts. Without it, those that were tested together."""
    gateway: StackGateway | None = None
    """The cluster's gateway."""


class StackGatewayStatus(Model):
    """The cluster's gateway."""

    address: Annotated[str, Field(max_length=256)] | None = None
    """IP address or host name of the gateway."""


class ServingStackStatus(Status):
    """What is known of the stack."""

    gateway: StackGatewayStatus | None = None
    """The cluster's gateway."""


class ServingStack(Resource[ServingStackSpec, ServingStackStatus]):
    """The software that a workload cluster needs to serve models. The operator writes one for each cluster."""

    definition: ClassVar = Definition(
        kind="ServingStack",
        group=INFRASTRUCTURE,
        short="ss",
        scope="Namespaced",
        columns=(Column("GATEWAY", ".status.gateway.address"),),
        conditions=(Synced, Ready),
    )
