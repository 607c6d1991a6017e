"""InferenceGateway: the front door on the hub, behind which every model has its URL."""

from __future__ import annotations

from typing import ClassVar, Literal

from modelplane_operator.api.base import MODELPLANE, Column, Definition, Resource, Status
from modelplane_operator.api.conditions import ConditionType, Ready, Synced
from modelplane_operator.api.model import Model, Rule
from modelplane_operator.api.shared import ClusterSpec


class MetalLB(Model):
    """Addresses for a network that gives none to load balancers."""

    address_pool: str
    """A range or CIDR of free addresses, for example `192.168.10.50-192.168.10.60`."""


class Traefik(Model):
    """Traefik as the front door."""

    rules: ClassVar = (
        Rule(
            "!has(self.loadBalancer) || self.loadBalancer != 'MetalLB' || has(self.metallb)",
            "Load balancer MetalLB needs addresses to give out: add `metallb: {addressPool: ...}`.",
        ),
    )

    version: str
    """Version of the Traefik Helm chart, for example `40.2.0`."""
    load_balancer: Literal["MetalLB"] | None = None
    """Installs a load balancer where the network has none. Leave it out where one exists."""
    metallb: MetalLB | None = None
    """Settings of MetalLB; read only with `loadBalancer: MetalLB`."""


class InferenceGatewaySpec(ClusterSpec):
    """The front door on the hub."""

    rules: ClassVar = (
        Rule(
            "self.backend != 'Traefik' || has(self.traefik)",
            "Backend Traefik needs its settings: add `traefik: {version: ...}`.",
        ),
    )

    backend: Literal["Traefik"]
    """What answers requests."""
    traefik: Traefik | None = None
    """Settings of Traefik."""


class InferenceGatewayStatus(Status):
    """What is known of the front door."""

    address: str | None = None
    """IP address or host name under which models are reached."""


class ControllerReady(ConditionType):
    """Whether the gateway's controller runs."""

    INSTALLING = "Installing", "False", "The controller's Helm release is not there yet."
    UPGRADING = (
        "Upgrading",
        "False",
        "A change of a Helm release is on its way; what was there before answers requests.",
    )
    ROLLED_BACK = "RolledBack", "False", "A change failed; what was there before answers requests."
    HEALTHY = "ControllerHealthy", "True", "The controller's Helm release is deployed and its pods are up."
    NOT_SERVED = "NotServed", "False", "Only the InferenceGateway named default is served through; this one is not."


class InferenceGateway(Resource[InferenceGatewaySpec, InferenceGatewayStatus]):
    """The front door on the hub. The one named `default` is the one that models are served through."""

    definition: ClassVar = Definition(
        kind="InferenceGateway",
        group=MODELPLANE,
        short="ig",
        scope="Cluster",
        columns=(Column("GATEWAY", ".spec.backend"), Column("ADDRESS", ".status.address")),
        conditions=(ControllerReady, Synced, Ready),
    )
