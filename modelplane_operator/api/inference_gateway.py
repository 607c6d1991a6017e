"""InferenceGateway: the hub gateway on the hub, behind which every model has its URL."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import NORMAL, STEP, WARNING, ConditionType, Ready, Synced
from kubeloop.model import ATOMIC, Model, Rule, must, require
from kubeloop.resource import Column, Definition, Resource, SummarizedStatus
from modelplane_operator.api.auth import Auth
from modelplane_operator.api.bounds import SUBDOMAIN, Digest, ObjectName, Version
from modelplane_operator.api.crossplane import ClusterSpec
from modelplane_operator.api.gateway_pods import GatewayPods
from modelplane_operator.api.groups import MODELPLANE


class MetalLB(Model):
    """Addresses for a network that gives none to load balancers."""

    address_pool: Annotated[str, Field(max_length=128)]
    """A range or CIDR of free addresses, for example `192.168.10.50-192.168.10.60`."""


class Software(Model):
    """What answers requests, as a chart, and a load balancer before it."""

    rules: ClassVar = (
        require(
            "metallb",
            "!has(self.loadBalancer) || self.loadBalancer != 'MetalLB'",
            "Load balancer MetalLB needs addresses to give out: add `metallb: {addressPool: ...}`.",
        ),
    )

    version: Version
    """Version of the Helm chart."""
    digest: Digest | None = None
    """Digest of the chart's archive. An archive with another digest is not installed."""
    load_balancer: Literal["MetalLB"] | None = None
    """Installs a load balancer where the network has none. Leave it out where one exists."""
    metallb: MetalLB | None = None
    """Settings of MetalLB; read only with `loadBalancer: MetalLB`."""


class Traefik(Software):
    """Traefik as the hub gateway."""

    version: Version
    """Version of the Traefik Helm chart, for example `40.2.0`."""


class EnvoyGateway(Software):
    """Envoy Gateway as the hub gateway."""

    version: Version
    """Version of the Envoy Gateway Helm chart, for example `v1.9.1`. Not before 1.9."""


Hostname = Annotated[str, Field(min_length=1, max_length=253, pattern=rf"^(\*\.)?{SUBDOMAIN[1:]}")]


class CertificateRef(Model):
    """A Secret in `modelplane-system`."""

    name: ObjectName
    """Name of a Secret of type `kubernetes.io/tls` in `modelplane-system`, with `tls.crt` and `tls.key`."""


class TLS(Model):
    """HTTPS for those who ask."""

    secret_ref: CertificateRef
    """The certificate. New connections use a changed one at once."""
    hostnames: Annotated[
        tuple[Hostname, ...],
        Field(min_length=1, max_length=16),
        ATOMIC,
        must(
            Rule(
                "self.size() == 0 || !self[0].startsWith('*')",
                "The first host name begins every model's URL: it must not be a wildcard.",
            ),
            Rule(
                "self.all(h, self.exists_one(other, other == h))",
                "Every host name may be listed only once: remove the one that is there twice.",
            ),
            Rule(
                "!self.exists(h, h.matches('^[0-9.]+$'))",
                "An IP address is no host name: clients find the hub gateway by a name that the certificate proves.",
            ),
        ),
    ]
    """Host names for https, such as `models.example.com` or `*.example.com`; requests for others get 404. The first one
    is in every model's URL. Point them to the hub gateway's address in your DNS."""
    http: Literal["Served", "Refused"] = "Served"
    """Whether models are reached without TLS as well."""


class InferenceGatewaySpec(GatewayPods, ClusterSpec):
    """The hub gateway on the hub."""

    rules: ClassVar = (
        require(
            "traefik",
            "self.backend != 'Traefik'",
            "Backend Traefik needs its settings: add `traefik: {version: ...}`.",
        ),
        require(
            "envoyGateway",
            "self.backend != 'EnvoyGateway'",
            "Backend EnvoyGateway needs its settings: add `envoyGateway: {version: ...}`.",
        ),
    )

    backend: Literal["Traefik", "EnvoyGateway"]
    """What answers requests."""
    traefik: Traefik | None = None
    """Settings of Traefik; read only with `backend: Traefik`."""
    envoy_gateway: EnvoyGateway | None = None
    """Settings of Envoy Gateway; read only with `backend: EnvoyGateway`."""
    tls: TLS | None = None
    """A certificate and its host names. With it, clients reach models by https."""
    auth: Auth | None = None
    """Who may call ModelServices without an `auth` of their own. The Secrets with these names are in the namespace of
    each service."""
    mutual_tls: Annotated[Literal["Auto", "Always", "Never"], Field(alias="mutualTLS")] = "Auto"
    """Whether the gateways of clusters accept only encrypted requests of the hub gateway. `Auto`: where the operator
    installs Traefik. `Always`: also with a Traefik of your own, which has to be set up for it (docs/hub-gateway.md)."""


class InferenceGatewayStatus(SummarizedStatus):
    """Observed state of the hub gateway."""

    address: str | None = None
    """IP address or host name at which clients reach models."""
    url: str | None = None
    """What every model's URL begins with."""


class ControllerReady(ConditionType):
    """Whether the gateway's controller runs."""

    INSTALLING = "Installing", "False", "The controller's Helm release does not exist yet.", STEP
    INSTALL_FAILED = "InstallFailed", "False", "A chart could not be installed; the message has Helm's error.", WARNING
    UPGRADING = (
        "Upgrading",
        "False",
        "A Helm upgrade is running; the previous release serves requests meanwhile.",
        NORMAL,
    )
    ROLLED_BACK = "RolledBack", "False", "A Helm upgrade failed; the previous release serves requests.", WARNING
    HEALTHY = "ControllerHealthy", "True", "The controller's Helm release is deployed and its pods are up."
    NOT_SERVED = (
        "NotServed",
        "False",
        "Only the InferenceGateway named default is used; this one is not.",
        WARNING,
    )


class TLSReady(ConditionType):
    """Whether requests by https are answered."""

    SERVED = "Served", "True", "The gateway listens with the certificate."
    CERTIFICATE_UNUSABLE = (
        "CertificateUnusable",
        "False",
        "The Secret is missing or holds no certificate; the message says which.",
        WARNING,
    )
    CONFIGURING = "Configuring", "False", "The gateway does not listen yet.", STEP
    NOT_ASKED = "NotAsked", "False", "Without `spec.tls` keys and prompts of clients travel unencrypted.", STEP


class MutualTLSReady(ConditionType):
    """Whether the hub gateway can prove to the gateways of clusters what it is, by a certificate of the operator's."""

    READY = (
        "Ready",
        "True",
        "The hub gateway presents its certificate. GatewaySecured of each InferenceCluster shows the other side.",
    )
    PREPARING = "Preparing", "False", "The certificate, or the chart that presents it, does not exist yet.", STEP
    REPLACED = (
        "CertificateReplaced",
        "False",
        "Another client has changed the Secret of the hub gateway's certificate; the operator issues it again.",
        WARNING,
    )
    NOT_OFFERED = (
        "NotOffered",
        "False",
        "Requests travel to clusters unencrypted: the gateway cannot present a certificate; the message says why.",
        STEP,
    )
    NOT_ASKED = "NotAsked", "False", "`spec.mutualTLS` is Never: requests travel to clusters unencrypted.", NORMAL

    @property
    def is_desired(self) -> bool:
        """Whether clusters are to have their gateways answer the hub's alone."""
        return self in {MutualTLSReady.READY, MutualTLSReady.PREPARING, MutualTLSReady.REPLACED}


class InferenceGateway(Resource[InferenceGatewaySpec, InferenceGatewayStatus]):
    """The gateway on the hub through which clients reach models. Only the one named `default` is used."""

    definition: ClassVar = Definition(
        kind="InferenceGateway",
        group=MODELPLANE,
        short="ig",
        scope="Cluster",
        columns=(Column("GATEWAY", ".spec.backend"), Column("ADDRESS", ".status.address")),
        conditions=(ControllerReady, TLSReady, MutualTLSReady, Synced, Ready),
    )
