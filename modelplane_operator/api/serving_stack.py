"""ServingStack: the software that a workload cluster needs to serve models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import NORMAL, STEP, WARNING, ConditionType, Ready, ServerVerified, Synced
from kubeloop.model import ATOMIC, Extra, Model, Rule, list_map
from kubeloop.resource import Column, Definition, Resource, SummarizedStatus
from modelplane_operator.api import pins
from modelplane_operator.api.bounds import DataKey, Digest, NamespaceName, ObjectName, OurName, String63, Version
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.gateway_pods import GatewayPods
from modelplane_operator.api.groups import INFRASTRUCTURE

Values = Annotated[dict[str, Any], Field(max_length=256), Extra({"x-kubernetes-preserve-unknown-fields": True})]

ComponentName = Literal[
    "cert-manager",
    "envoy-gateway",
    "ai-gateway-crds",
    "ai-gateway",
    "prometheus",
    "leader-worker-set",
    "node-feature-discovery",
    "dra-driver",
]
"""The parts of the stack that are charts; `modelplane_operator/clusters/stack/charts.py` has a row for each."""


class StackSecret(Model):
    """A credential for the cluster."""

    type: Literal[
        "Kubeconfig",
        "GoogleApplicationCredentials",
        "AWSWebIdentityCredentials",
        "NebiusServiceAccountCredentials",
    ]
    """`Kubeconfig`, or the kind of cloud identity to use with it. The first of each is used."""
    name: ObjectName
    """Name of the Secret."""
    key: DataKey
    """Key within it."""
    namespace: NamespaceName | None = None
    """Namespace of the Secret of a cloud identity. Without one, the stack's own."""


class Versions(Model):
    """Versions of the stack's parts."""

    gateway_api: Version = pins.GATEWAY_API.version
    """Gateway API."""
    cert_manager: Version = pins.CERT_MANAGER.version
    """cert-manager chart."""
    envoy_gateway: Version = pins.ENVOY_GATEWAY.version
    """Envoy Gateway chart; endpoint pickers need v1.8 or later."""
    prometheus: Version = pins.PROMETHEUS.version
    """kube-prometheus-stack chart."""
    leader_worker_set: Version = pins.LEADER_WORKER_SET.version
    """LeaderWorkerSet chart."""
    node_feature_discovery: Version = pins.NODE_FEATURE_DISCOVERY.version
    """Node Feature Discovery chart."""
    nvidia_dra_driver: Version = pins.NVIDIA_DRA_DRIVER.version
    """NVIDIA DRA driver chart."""


class Listener(Model):
    """A port of the cluster's gateway."""

    name: String63
    """Name of the listener."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """Port it listens on."""
    protocol: Literal["HTTP", "TCP"]
    """Protocol it speaks."""


class StackGateway(GatewayPods):
    """The cluster's gateway."""

    class_name: OurName = "envoy"
    """Name of the GatewayClass."""
    listeners: Annotated[tuple[Listener, ...], Field(max_length=8), list_map("name")] = ()
    """Ports of the gateway. Without any, HTTP on port 80."""


class ComponentOverride(Model):
    """What is different about one part of the stack on this cluster."""

    name: ComponentName
    """Which part."""
    enabled: bool = True
    """Whether it is installed. A part that is named with `true` is installed even if the cluster has its own; one with
    `false` is uninstalled."""
    version: Version | None = None
    """Version of its chart; overrides `versions`."""
    digest: Digest | None = None
    """Digest of its chart's archive. Without it, the tested one, if this version has one."""
    values: Values = {}
    """Values for its chart, merged over the operator's: objects are merged, everything else is replaced."""


class ExtraChart(Model):
    """A chart that the cluster needs beside the stack."""

    name: Annotated[NamespaceName, Field(max_length=53)]
    """Name of its Helm release."""
    namespace: NamespaceName
    """Namespace of its release, created if it does not exist."""
    chart: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9][-a-zA-Z0-9._]*$")]
    """Name of the chart in its repository."""
    repository: Annotated[str, Field(max_length=512, pattern=r"^(https?|oci)://[^ ]+$")]
    """Where the chart is: a Helm repository, or the part of an OCI reference before the chart's name."""
    version: Version
    """Version of the chart."""
    digest: Digest | None = None
    """Digest of the chart's archive. An archive with another digest is not installed."""
    values: Values = {}
    """Values for the chart."""


class ServingStackSpec(Spec):
    """The software of one workload cluster."""

    rules: ClassVar = (
        Rule(
            "self.secrets.exists(s, s.type == 'Kubeconfig')",
            "The cluster cannot be reached without a kubeconfig: add a secret with `type: Kubeconfig`.",
            field="secrets",
        ),
    )

    secrets: Annotated[tuple[StackSecret, ...], Field(min_length=1, max_length=8)]
    """Credentials for the cluster: a kubeconfig, and at most one cloud identity."""
    nvidia_driver_root: Annotated[str, Field(max_length=512)] = "/"
    """Folder of the NVIDIA driver on the nodes."""
    versions: Versions | None = None
    """Versions of the stack's parts. Without it, those that were tested together."""
    gateway: StackGateway | None = None
    """The cluster's gateway."""
    components: Annotated[tuple[ComponentOverride, ...], Field(max_length=16), list_map("name")] = ()
    """Parts with another version or other values than those that were tested together, or turned off."""
    extra_charts: Annotated[tuple[ExtraChart, ...], Field(max_length=16), list_map("namespace", "name")] = ()
    """Charts that are installed after the stack."""


class StackGatewayStatus(Model):
    """The cluster's gateway."""

    address: Annotated[str, Field(max_length=256)] | None = None
    """IP address or host name of the gateway."""
    server_name: Annotated[str, Field(max_length=253)] | None = None
    """Name in the certificate that the gateway shows the hub gateway, by https on port 443."""
    http: bool | None = None
    """Whether it answers everyone by http."""


ComponentState = Literal[
    "Waiting",
    "Installing",
    "Upgrading",
    "RollingBack",
    "Deployed",
    "Starting",
    "Failed",
    "RolledBack",
    "Uninstalling",
    "Present",
]


class ComponentStatus(Model):
    """What is known of one chart."""

    name: Annotated[str, Field(max_length=128)]
    """The part of the stack; an extra chart as `namespace/name`."""
    state: ComponentState
    """Its state. `Starting`: deployed, but not all pods are ready. `RolledBack`: an upgrade failed, and the previous
    version runs. `Present`: the cluster has this software from another owner, so the stack does not install it."""
    version: Annotated[str, Field(max_length=128)] | None = None
    """Version of the chart that is deployed."""
    digest: Annotated[str, Field(max_length=71)] | None = None
    """Digest of the installed archive, if the operator installed it."""
    message: Annotated[str, Field(max_length=2048)] | None = None
    """What it waits for, or Helm's error."""


RolloutPhase = Literal["Waiting", "Upgrading", "Watching", "Done", "Failed", "Aborted"]


class ChartChange(Model):
    """A chart that a rollout changes."""

    name: Annotated[str, Field(max_length=128)]
    """The part of the stack; an extra chart as `namespace/name`."""
    previous: Annotated[str, Field(max_length=128)] | None = None
    """Version before the change. It is the same as `version` if only values change."""
    version: Annotated[str, Field(max_length=128)]
    """Version that the stack asks for."""
    revision: Annotated[int, Field(ge=1)]
    """Helm's revision of the release before the change, to which a failed rollout goes back."""


class StackRollout(Model):
    """The rollout of changed charts, as far as this cluster takes part in it."""

    target: Annotated[str, Field(max_length=64)]
    """Digest of the charts, versions and values that the stack asks for."""
    phase: RolloutPhase
    """`Waiting` for its turn, `Upgrading`, `Watching` whether the cluster stays healthy, `Done`; `Failed` if it did
    not, and `Aborted` if `modelplane stack abort` keeps the installed charts."""
    since: datetime
    """Beginning of the phase."""
    healthy_since: datetime | None = None
    """Time from which the cluster was healthy after the change, without a break."""
    changes: Annotated[tuple[ChartChange, ...], Field(max_length=32), list_map("name")] = ()
    """The charts that change. `Done` without any: nothing had to change."""
    failing_before: Annotated[tuple[Annotated[str, Field(max_length=512)], ...], Field(max_length=32), ATOMIC] = ()
    """ModelServices on the cluster whose requests failed before the change already, so that they do not count."""
    attempt: Annotated[str, Field(max_length=256)] | None = None
    """Value of the annotation `modelplane.ai/retry` when the rollout began; another value lets a failed one begin
    again."""
    message: Annotated[str, Field(max_length=2048)] | None = None
    """Cause of the failure, or what is not healthy at the moment."""


class ServingStackStatus(SummarizedStatus):
    """Observed state of the stack."""

    gateway: StackGatewayStatus | None = None
    """The cluster's gateway."""
    components: Annotated[tuple[ComponentStatus, ...], Field(max_length=32), list_map("name")] = ()
    """The charts, one by one."""
    rollout: StackRollout | None = None
    """The rollout of changed charts, as far as this cluster takes part in it."""


class Installed(ConditionType):
    """Whether every chart is deployed as the object asks for. `Ready` tells whether the cluster can serve meanwhile."""

    INSTALLED = (
        "ComponentsInstalled",
        "True",
        "Every chart is deployed, at the requested version and with the requested values.",
    )
    INSTALLING = "Installing", "False", "A chart is being installed, or waits for another.", STEP
    UPGRADING = "Upgrading", "False", "A chart is being upgraded, or its values change.", NORMAL
    FAILED = "InstallFailed", "False", "A chart could not be installed; the message has Helm's error.", WARNING
    ROLLED_BACK = "RolledBack", "False", "An upgrade failed and was rolled back; the message has Helm's error.", WARNING


class ServingStackRollout(ConditionType):
    """State of the rollout of changed charts on the cluster: it goes over the fleet in waves, and each cluster has to
    stay healthy for some minutes before the next one begins."""

    ROLLED_OUT = "RolledOut", "True", "No installed chart waits for a change."
    WAITING = "Waiting", "False", "Charts are to change, and other clusters are first; the message says which.", STEP
    UPGRADING = "Upgrading", "False", "Charts change on this cluster.", NORMAL
    WATCHING = "Watching", "False", "The charts have changed; the cluster has to stay healthy for some minutes.", STEP
    STOPPED = (
        "Stopped",
        "False",
        "The change failed here, goes back where Helm can, and stops for the whole fleet; the message says why.",
        WARNING,
    )
    ABORTED = "Aborted", "False", "The cluster keeps its charts: modelplane stack abort was called.", STEP


class GatewayCertified(ConditionType):
    """State of the gateway's certificate; nothing is said of a gateway without one."""

    ISSUED = "CertificateIssued", "True", "The Secret of the certificate is as the operator wrote it."
    REPLACED = (
        "CertificateReplaced",
        "False",
        "Another client has changed the Secret of the certificate; the operator issues it again.",
        WARNING,
    )


class ServingStack(Resource[ServingStackSpec, ServingStackStatus]):
    """The software that a workload cluster needs to serve models. The operator writes one for each cluster."""

    definition: ClassVar = Definition(
        kind="ServingStack",
        group=INFRASTRUCTURE,
        short="ss",
        scope="Namespaced",
        columns=(Column("GATEWAY", ".status.gateway.address"), Column("ROLLOUT", ".status.rollout.phase")),
        conditions=(ServerVerified, Installed, ServingStackRollout, GatewayCertified, Synced, Ready),
    )
