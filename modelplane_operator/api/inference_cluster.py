"""InferenceCluster: a GPU cluster of the fleet, made on a cloud or brought along."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import STEP, WARNING, ConditionType, Ready, ServerVerified, Synced
from kubeloop.model import Model, Rule, list_map
from kubeloop.resource import Column, Definition, Resource, SummarizedStatus
from modelplane_operator.api.bounds import TAINTS, AnyTaintKey, TaintValue
from modelplane_operator.api.cluster_origin import ClusterOrigin
from modelplane_operator.api.crossplane import ClusterSpec
from modelplane_operator.api.gateway_pods import GatewayPods
from modelplane_operator.api.gateway_status import GatewayStatus
from modelplane_operator.api.groups import MODELPLANE
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.api.llm_inference_grant import LLMInferenceGrant
from modelplane_operator.api.maintenance import Amount, MaintenanceWindows
from modelplane_operator.api.node_pool import POOLS_OF_EKS_STAY, POOLS_OF_GKE_STAY, NodePool
from modelplane_operator.api.serving_stack import ComponentOverride
from modelplane_operator.api.shared import Amounts, Attribute, CacheStatus, ClaimMode, Effect, Sharing

# What it offers -------------------------------------------------------------------------------------------------------


class Taint(Model):
    """Keeps replicas off the cluster, except those that tolerate it."""

    key: Annotated[AnyTaintKey, Field(min_length=1)]
    """Key that a toleration names."""
    value: TaintValue | None = None
    """Value that a toleration names; absent means empty."""
    effect: Effect
    """`NoSchedule` keeps new replicas off; `NoExecute` also moves running ones elsewhere."""


class StackSelection(Model):
    """What the cluster's ServingStack is to say from its first moment."""

    components: Annotated[tuple[ComponentOverride, ...], Field(max_length=16), list_map("name")] = ()
    """Parts that are turned on or off explicitly, or have another version or other values than those that were tested
    together."""


class InferenceClusterSpec(ClusterSpec):
    """A GPU cluster of the fleet."""

    rules: ClassVar = (
        Rule(
            "self.cluster.source != 'Nebius' || !has(self.nodePools) || self.nodePools.all(p, !has(p.fabric) || "
            "p.fabric.type != 'InfiniBand' || has(p.fabric.infiniband))",
            "On Nebius an InfiniBand pool must say which fabric it joins: add `infiniband: {fabric: ...}`.",
            field="nodePools",
        ),
        POOLS_OF_EKS_STAY,
        POOLS_OF_GKE_STAY,
    )

    cluster: ClusterOrigin
    """Where the cluster comes from."""
    taints: Annotated[tuple[Taint, ...], Field(max_length=TAINTS), list_map("key", "effect")] = ()
    """Taints that keep replicas off this cluster, or drain it."""
    maintenance: MaintenanceWindows = ()
    """Windows in which changes of replicas here may begin that the operator makes by itself, such as those of outdated
    pods; at any time without windows. Edits, taints, drains, deletions and failures do not wait."""
    max_disruptions: Amount = "10%"
    """Maximum of replicas here that may be out of service at a time through such changes: a number, or a percentage of
    the replicas on the cluster, rounded down, at least one. The same limit applies to each pool of the cluster."""
    node_pools: Annotated[tuple[NodePool, ...], Field(min_length=1, max_length=8), list_map("name")] = ()
    """The pools of GPU nodes. On a cluster that the operator creates, it adds a pool for its own pods."""
    gateway: GatewayPods | None = None
    """How the cluster's gateway runs; it is copied to the ServingStack."""
    stack: StackSelection | None = None
    """Which software is installed on the cluster, if the operator has a Helm; it is copied to the ServingStack."""
    isolation: Isolation | None = None
    """How models of different namespaces are isolated from each other and from the cluster. The defaults are the safe
    values."""
    llm_inferences: Annotated[tuple[LLMInferenceGrant, ...], Field(max_length=128), list_map("namespace")] = ()
    """Namespaces of the hub that may name this cluster in LLMInferences; without it, none may. The scheduler does not
    count the GPUs that their engines use."""


# What is known of it --------------------------------------------------------------------------------------------------


class PublishedCapacity(Model):
    """An amount."""

    value: Annotated[str, Field(max_length=32)]
    """A Kubernetes quantity."""


class PublishedDevice(Model):
    """A device of the pool's class, as it was when the pool was last resolved."""

    name: Annotated[str, Field(max_length=63)]
    """Name of the device in its class."""
    claim: ClaimMode | None = None
    """Whether pods claim it, or it only guides placement."""
    driver: Annotated[str, Field(max_length=253)]
    """DRA driver of the device."""
    device_class_name: Annotated[str, Field(max_length=253)] | None = None
    """DeviceClass through which pods claim it."""
    count: int | None = None
    """Devices of this kind on each node."""
    attributes: Annotated[dict[str, Attribute], Field(max_length=32)] = {}
    """Properties of the device."""
    capacity: Annotated[dict[str, PublishedCapacity], Field(max_length=32)] = {}
    """Amounts that it has."""


class Fabric(Model):
    """The nodes of a pool that are on one fabric."""

    value: Annotated[str, Field(max_length=63)]
    """Value of the label."""
    nodes: int
    """Usable nodes with that value."""


class GpuPool(Model):
    """What the scheduler can count on in one pool."""

    name: str
    """Name of the pool."""
    nodes: int | None = None
    """Nodes that count: the maximum of an autoscaled pool, otherwise the usable nodes. If the operator may not list
    nodes, `nodeCount`."""
    devices: Annotated[tuple[PublishedDevice, ...], Field(max_length=16), list_map("name")] = ()
    """Devices of each node."""
    sharing: Sharing | None = None
    """`Device`: replicas share nodes and take only the devices that they claim. Otherwise each of their pods takes a
    node."""
    allocatable: Amounts | None = None
    """Allocatable resources of its smallest node, if any is known. By default, engines request a share of them."""
    largest_fabric: Fabric | None = None
    """For a pool with a `topologyKey`, if its nodes are known: the label value that most nodes have. A gang of more
    nodes is not placed there."""


class ProviderConfigRef(Model):
    """A handle to the cluster."""

    name: str | None = None
    """Name of the handle."""


class ObservedPool(Model):
    """The nodes of a pool that are there."""

    name: str
    """Name of the pool."""
    nodes: int
    """Nodes that carry the pool's label."""
    usable: int
    """Nodes that are ready, accept pods, and have the devices of the pool's class."""
    cordoned: int | None = None
    """Nodes that are ready and cordoned (`kubectl cordon`), if there are any."""
    not_ready: int | None = None
    """Nodes that are not ready, if there are any."""


class ObservedCluster(Model):
    """State of the cluster when it last answered."""

    version: str | None = None
    """Version of Kubernetes."""
    latency_ms: int | None = None
    """About how long its API server takes to answer, in milliseconds."""
    identity: Annotated[str, Field(max_length=64)] | None = None
    """Hash by which the operator recognizes the cluster under another name: of the uid of its namespace kube-system and
    of its root certificate."""
    apis: tuple[str, ...] = ()
    """APIs for models that it serves: `DRA`, `EnvoyGateway`, `GatewayAPI`, `LeaderWorkerSet`."""
    pools: Annotated[tuple[ObservedPool, ...], Field(max_length=8), list_map("name")] = ()
    """Existing nodes of each pool."""


DeletionPhase = Literal["Blocked", "DrainServing", "UninstallServingStack", "DeleteCluster", "Unreachable"]


class DeletionStatus(Model):
    """How far the deletion of a cluster has come."""

    phase: DeletionPhase
    """`Blocked`: replicas are placed on it. `DrainServing`: their objects are being deleted. `UninstallServingStack`:
    its gateway is being removed. `DeleteCluster`: the cloud is deleting it. `Unreachable`: it does not answer."""
    waiting_for: tuple[str, ...] = ()
    """The first five objects that block it; Ready has the number of the others."""


class InferenceClusterStatus(SummarizedStatus):
    """Observed state of the cluster."""

    provider_config_ref: ProviderConfigRef | None = None
    """Handle of the cluster's connection; the field has its name from Crossplane."""
    gateway: GatewayStatus | None = None
    """The cluster's gateway."""
    cache: CacheStatus | None = None
    """Storage for model caches."""
    gpu_pools: Annotated[tuple[GpuPool, ...], Field(max_length=8), list_map("name")] = ()
    """Capacity for models: all that the scheduler uses of the cluster."""
    namespace: str | None = None
    """Namespace of the objects that make up the cluster."""
    pools: int | None = None
    """Node pools of the spec."""
    nodes: Annotated[str, Field(max_length=32)] | None = None
    """Nodes of all pools, as `usable/all`."""
    taints: Annotated[str, Field(max_length=128)] | None = None
    """Taints of the spec, as `key:effect`, separated by commas."""
    replicas: int | None = None
    """ModelReplicas placed on the cluster. While it is above 0 the cluster is not deleted."""
    orphans: int | None = None
    """Objects of the operator there whose owner is not on this hub; ObjectsOwned names some of them."""
    observed: ObservedCluster | None = None
    """State of the cluster when it last answered."""
    deletion: DeletionStatus | None = None
    """Progress of its deletion."""


class ClusterReady(ConditionType):
    """Whether the cluster itself runs."""

    WAITING_FOR_CLASSES = "WaitingForClasses", "False", "The InferenceClasses of all its pools are missing.", WARNING
    INVALID_NODE_POOL = (
        "InvalidNodePool",
        "False",
        "A pool's class does not say which machines its cloud is to create.",
        WARNING,
    )
    PROVISIONING = "Provisioning", "False", "The cloud is creating it.", STEP
    PROVISIONING_FAILED = (
        "ProvisioningFailed",
        "False",
        "The cloud cannot create it without help; the message says why, and Ready has the reason.",
        WARNING,
    )
    UNSUPPORTED_SOURCE = "UnsupportedSource", "False", "This operator does not create clusters on that cloud.", WARNING
    NOT_PERMITTED = "NotPermitted", "False", "The kubeconfig's user lacks a permission; the message names it.", WARNING
    INVALID_KUBECONFIG = "InvalidKubeconfig", "False", "The kubeconfig is missing or invalid.", WARNING
    UNREACHABLE = "Unreachable", "False", "The cluster does not answer; the message says why and since when.", WARNING
    MISBEHAVING = (
        "Misbehaving",
        "False",
        "Its API server sends invalid or too large responses; the operator tries again after some minutes.",
        WARNING,
    )
    IDENTIFYING = (
        "Identifying",
        "False",
        "The operator is checking whether the InferenceCluster in the message has the same cluster.",
        STEP,
    )
    REGISTERED_TWICE = (
        "RegisteredTwice",
        "False",
        "The InferenceCluster in the message has the same cluster: nothing is created there for this one.",
        WARNING,
    )
    ABANDONED = (
        "Abandoned",
        "False",
        "The abandon annotation is set: the operator's objects stay on the cluster.",
        WARNING,
    )
    CLUSTER_RUNNING = "ClusterRunning", "True", "The cluster runs."


class CredentialsRenewed(ConditionType):
    """Whether a token that ends will be followed by another; nothing is said of one that does not end."""

    TOKEN_RENEWED = (
        "TokenRenewed",
        "True",
        "The operator renews the token before it expires; the message says when it expires.",
    )
    NOT_RENEWED = (
        "NotRenewed",
        "False",
        "As far as the operator knows, nothing renews the token; the message says when it expires.",
        WARNING,
    )


class BackendReady(ConditionType):
    """Whether the serving stack on the cluster works."""

    WAITING_FOR_CLUSTER = "WaitingForCluster", "False", "There is no cluster yet to install the software on.", STEP
    INSTALLING = "Installing", "False", "The software is being installed.", STEP
    INSTALL_FAILED = "InstallFailed", "False", "A chart cannot be installed; the message has Helm's error.", WARNING
    NOT_INSTALLED = "NotInstalled", "False", "The gateway needs software; the message names it.", WARNING
    ADDRESS_IN_USE = "AddressInUse", "False", "The gateway's address is that of the hub gateway.", WARNING
    CERTIFICATE_REPLACED = (
        "CertificateReplaced",
        "False",
        "Another client has changed the Secret of the gateway's certificate; the operator issues it again.",
        WARNING,
    )
    GATEWAY_SILENT = (
        "GatewaySilent",
        "False",
        "The cluster's gateway gives no answer, although it did; the message has its address.",
        WARNING,
    )
    UNREACHABLE = "Unreachable", "Unknown", "The cluster does not answer.", WARNING
    BACKEND_HEALTHY = "BackendHealthy", "True", "All software is installed and the gateway has an address."
    DEGRADED = "Degraded", "True", "A component that models can do without fails; the message names it.", WARNING


class GatewaySecured(ConditionType):
    """Whether requests travel to the cluster encrypted, and its gateway answers nobody but this hub's."""

    MUTUAL_TLS = "MutualTLS", "True", "Both gateways verify each other's certificates, and nothing else is accepted."
    SWITCHING = (
        "Switching",
        "Unknown",
        "Requests travel encrypted; plain http is closed as soon as nothing uses it.",
        STEP,
    )
    NOT_KNOWN = (
        "NotKnown",
        "Unknown",
        "The desired setting is unknown, so the gateway stays closed; the message says why.",
        STEP,
    )
    CONFIGURING = "Configuring", "False", "One of the gateways is not set up for it yet; the message says which.", STEP
    OPEN = "Open", "False", "The gateway accepts unencrypted requests from anybody; the message says why.", STEP


class NodePoolsValid(ConditionType):
    """Whether the classes of all pools are there and can be read. A pool keeps what its class last said."""

    WAITING_FOR_CLASSES = "WaitingForClasses", "False", "An InferenceClass that a pool names does not exist.", WARNING
    INVALID_CLASS = "InvalidClass", "False", "A pool's class cannot be read; see its condition Accepted.", WARNING
    NOT_MADE = "NotMade", "False", "A cloud cannot create the pools as specified.", WARNING
    ALL_VALID = "AllValid", "True", "Every pool's class exists and can be read."


class GPUReady(ConditionType):
    """Whether the nodes of the pools are there and have the devices that their classes declare."""

    NODES_MISSING = (
        "NodesMissing",
        "False",
        "A pool has fewer nodes that are ready and not cordoned than its spec says; the message counts them.",
        WARNING,
    )
    DEVICES_MISSING = (
        "DevicesMissing",
        "False",
        "A node lacks devices that its class declares; the message says why.",
        WARNING,
    )
    NOT_SEEN = "NotSeen", "Unknown", "The nodes or their devices cannot be listed; the message says why.", STEP
    ALL_PRESENT = "AllPresent", "True", "All nodes have their devices; of autoscaled pools, the present nodes."


class ObjectsOwned(ConditionType):
    """Whether all that the operator has made on the cluster belongs to something on this hub."""

    ORPHANS_FOUND = (
        "OrphansFound",
        "False",
        "Some objects have no owner on this hub: they were left behind, or are another hub's. "
        "The message names them, and the operator leaves them alone.",
        WARNING,
    )
    ALL_OWNED = "AllOwned", "True", "Every object has its owner on this hub."


class InferenceCluster(Resource[InferenceClusterSpec, InferenceClusterStatus]):
    """A GPU cluster of the fleet: an existing one, or one that the operator creates on a cloud."""

    definition: ClassVar = Definition(
        kind="InferenceCluster",
        group=MODELPLANE,
        short="ic",
        scope="Cluster",
        columns=(
            Column("SOURCE", ".spec.cluster.source"),
            Column("GATEWAY", ".status.gateway.address"),
            Column("POOLS", ".status.pools", "integer"),
            Column("NODES", ".status.nodes"),
            Column("REPLICAS", ".status.replicas", "integer"),
            Column("VERSION", ".status.observed.version"),
            Column("TAINTS", ".status.taints"),
        ),
        conditions=(
            ClusterReady,
            ServerVerified,
            CredentialsRenewed,
            BackendReady,
            GatewaySecured,
            NodePoolsValid,
            GPUReady,
            ObjectsOwned,
            Synced,
            Ready,
        ),
    )
