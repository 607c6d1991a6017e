"""ModelReplica: one replica of a deployment, placed: which cluster, which pools, which devices."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import STEP, WARNING, ConditionType, Ready, Synced
from kubeloop.model import ATOMIC, Model, Rule, list_map, must
from kubeloop.resource import Column, Definition, Resource, SummarizedStatus
from modelplane_operator.api.bounds import DnsLabel, LabelText, ObjectName, OurName
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.engines import (
    MEMBER_SHAPE,
    WORKER_ONLY_ON_WORKER,
    DeviceCount,
    Engine,
    NonEmptySelector,
    Role,
    Serving,
    Worker,
    engine_rules,
    serving_rules,
)
from modelplane_operator.api.groups import MODELPLANE
from modelplane_operator.api.pods import PodTemplate
from modelplane_operator.api.shared import Amounts, PlacedCacheRef, QualifiedName, Sharing


class ResolvedRequest(Model):
    """Devices that every pod of a member claims."""

    name: DnsLabel
    """Name of the request, as the deployment has it."""
    device_class_name: ObjectName
    """DeviceClass to claim them through, from the InferenceClass of the pool."""
    count: DeviceCount = 1
    """Devices for each pod."""
    selectors: Annotated[tuple[NonEmptySelector, ...], Field(max_length=8), ATOMIC] = ()
    """Conditions that a device must meet, as the deployment has them."""


class PlacedMember(Model):
    """One kind of pod of an engine, placed."""

    rules: ClassVar = (WORKER_ONLY_ON_WORKER,)

    role: Role = "Standalone"
    """`Standalone`, or `Leader` and `Worker` of a gang."""
    node_pool_name: LabelText
    """Pool whose nodes run the pods."""
    device_requests: Annotated[tuple[ResolvedRequest, ...], Field(min_length=1, max_length=16), list_map("name")] = ()
    """Devices that every pod claims. Without it the pod claims none."""
    worker: Worker | None = None
    """How many pods follow the leader; only for role Worker. Without it, one."""
    default_requests: Amounts | None = None
    """Default requests of the engine: half of the CPU and memory that belong to the claimed devices, by the node at the
    time when the replica was made or last changed."""
    sharing: Sharing | None = None
    """`Device` if the pool was shared by device when the replica was made or last changed: its pods then prefer nodes
    where others already run."""
    topology_key: QualifiedName | None = None
    """Label of nodes, from the pool's fabric: the pods of a gang run on nodes with one value of it."""
    template: PodTemplate
    """The pod."""


class PlacedEngine(Engine):
    """One serving unit of the replica, placed."""

    rules: ClassVar = (
        MEMBER_SHAPE,
        Rule(
            "self.members.exists(m, has(m.deviceRequests))",
            "An engine needs devices: give at least one of its members deviceRequests.",
        ),
    )

    members: Annotated[tuple[PlacedMember, ...], Field(min_length=1, max_length=2), ATOMIC]
    """One member with role Standalone, or a Leader and a Worker."""


class OperatorSettings(Model):
    """The version of the operator and those of its settings that pods depend on."""

    version: Annotated[str, Field(max_length=64)] = ""
    """Version of the operator."""
    picker_image: Annotated[str, Field(max_length=512)]
    """Image of the endpoint picker."""
    sidecar_image: Annotated[str, Field(max_length=512)]
    """Image of the sidecar in front of decode engines."""
    startup_seconds: Annotated[int, Field(ge=0, le=2147483647)]
    """Seconds that an engine has to start."""
    drain_seconds: Annotated[int, Field(ge=0, le=2147483647)]
    """Seconds that an engine has to finish its responses."""
    grace_seconds: Annotated[int, Field(ge=0, le=2147483647)]
    """Seconds from a pod's deletion until its engine is killed."""


STAYS = Rule(
    "self == oldSelf",
    "A replica stays on its cluster, which has all that was made for it: delete the replica, and its deployment makes "
    "another one.",
)


class ModelReplicaSpec(Spec):
    """One replica, placed."""

    rules: ClassVar = serving_rules()

    cluster_name: Annotated[OurName, must(STAYS)]
    """InferenceCluster that runs the replica, for as long as the replica exists."""
    model_cache_ref: PlacedCacheRef | None = None
    """Weights to start from."""
    serving: Serving | None = None
    """How the engines share the work. Without it, Unified."""
    pod_revision: Annotated[int, Field(ge=0, le=2147483647)] = 0
    """Revision of what the operator adds to the pods, such as security context and volumes. The replica keeps it until
    its deployment changes or is rolled."""
    operator: OperatorSettings | None = None
    """Operator that rendered the pods. The replica keeps these settings until its deployment changes or is rolled.
    Without it, the pods follow the settings of the operator that runs."""
    engines: Annotated[
        tuple[PlacedEngine, ...],
        Field(min_length=1, max_length=8),
        list_map("name"),
        must(*engine_rules("deviceRequests")),
    ]
    """The engines of the replica."""

    @property
    def is_split(self) -> bool:
        """Whether some engines read prompts and others write answers."""
        return self.serving is not None and self.serving.mode == "PrefillDecode"


class HeldNodes(Model):
    """Nodes of one pool."""

    pool: str
    """Name of the pool."""
    nodes: int
    """Number of the pool's nodes that have pods of the replica."""


class PodsOnNode(Model):
    """Pods of one member on one node."""

    engine: str
    """Name of the engine."""
    role: Role = "Standalone"
    """Role of the member."""
    node: Annotated[str, Field(max_length=253)]
    """Name of the node."""
    pods: int
    """Number of pods that claim devices there."""


class OutdatedPods(Model):
    """Changes that the operator that runs would make in the pods of a replica."""

    version: Annotated[str, Field(max_length=64)] = ""
    """Version of the operator that rendered the pods; empty if it was not recorded."""
    rendering: Annotated[str, Field(max_length=64)]
    """Name of the current rendering. The annotation `modelplane.ai/roll` of a deployment with this value rolls it."""
    security: bool = False
    """True if the pods lack a security fix."""
    changes: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=16), ATOMIC] = ()
    """Fields of the pods that would change, with the old and the new value."""


class ModelReplicaStatus(SummarizedStatus):
    """Observed state of the replica on its cluster."""

    nodes: int | None = None
    """Nodes that its spec asks for, over all of its pools."""
    pool: Annotated[str, Field(max_length=128)] | None = None
    """Pool of those nodes; several are separated by commas."""
    paths: Literal["ModelAPIs", "All"] | None = None
    """`ModelAPIs`: clients reach the paths of model APIs and those in `serving.paths`. `All`: clients reach all paths
    of the engines, as the operator may not write HTTPRouteFilters on the cluster."""
    held_nodes: Annotated[tuple[HeldNodes, ...], list_map("pool")] = ()
    """Pools where the replica still uses more nodes than its spec requests, as old pods are ending. Nothing else is
    placed on those nodes."""
    pod_nodes: Annotated[tuple[PodsOnNode, ...], Field(max_length=1024), ATOMIC] = ()
    """Nodes on which its pods run, in pools that are shared by device. The scheduler charges each node accordingly."""
    outdated: OutdatedPods | None = None
    """Changes that the operator that runs would make in the pods; absent while it would render them as they are."""
    unschedulable_since: datetime | None = None
    """Time since which a pod that claims devices has found no node. If its pool has lost nodes and the replica does not
    serve, it moves after five minutes, if another cluster has room."""


class ModelAccepted(ConditionType):
    """Whether the engines' workloads are on the cluster."""

    WAITING_FOR_CLUSTER = "WaitingForCluster", "False", "The cluster does not exist or cannot be reached yet.", STEP
    DEPLOYING = "Deploying", "False", "The workloads are being created.", STEP
    MODEL_CACHE_HYDRATING = (
        "ModelCacheHydrating",
        "False",
        "The weights are being copied to the cluster; the workloads are created afterwards.",
        STEP,
    )
    MODEL_CACHE_FAILED = (
        "ModelCacheFailed",
        "False",
        "The weights cannot be staged on the cluster; the message says why.",
        WARNING,
    )
    INVALID_ENGINE = "InvalidEngine", "False", "An engine cannot run as specified; the message says why.", WARNING
    NOT_SERVED = (
        "NotServed",
        "False",
        "The cluster does not serve the operator a kind that the replica needs; the message names it.",
        WARNING,
    )
    SOURCE_NOT_FOUND = "SourceNotFound", "False", "The namespace lacks a Secret or ConfigMap of an engine.", WARNING
    ACCEPTED = "Accepted", "True", "Every engine has its workload."


class ModelReady(ConditionType):
    """Whether requests are answered."""

    WAITING_FOR_MODEL = "WaitingForModel", "False", "The workloads do not exist yet.", STEP
    MODEL_STARTING = "ModelStarting", "False", "The workloads exist, and some pods do not answer yet.", STEP
    CRASH_LOOP = "CrashLoop", "False", "An engine exits again and again; the message has its exit code.", WARNING
    IMAGE_PULL_FAILED = "ImagePullFailed", "False", "An image cannot be pulled; the message says why.", WARNING
    CANNOT_START = (
        "CannotStart",
        "False",
        "A container cannot be created, or its pod failed; the message says why.",
        WARNING,
    )
    PODS_REJECTED = (
        "PodsRejected",
        "False",
        "The cluster refuses new pods of a workload, mostly because of a quota; the message says why.",
        WARNING,
    )
    UNSCHEDULABLE = "Unschedulable", "False", "No node fits a pod; the message says why.", WARNING
    NOT_ANSWERING = (
        "NotAnswering",
        "False",
        "An engine runs and does not answer, although it was restarted for that or has answered before.",
        WARNING,
    )
    ROUTE_REFUSED = "RouteRefused", "False", "The cluster's gateway does not accept the route.", WARNING
    PICKER_NOT_READY = (
        "PickerNotReady",
        "False",
        "The engines answer, but the endpoint picker does not, and the gateway sends no requests without it.",
        STEP,
    )
    CLUSTER_UNREACHABLE = "ClusterUnreachable", "Unknown", "Neither the cluster nor its gateway answers.", WARNING
    SERVING = "Serving", "True", "Every engine answers, and so does the endpoint picker, where there is one."


class PickerReady(ConditionType):
    """Whether the endpoint picker says which pod each request goes to; absent where a replica has none."""

    STARTING = (
        "Starting",
        "False",
        "No endpoint picker answers yet. In mode Unified, requests are spread over the pods until one does.",
        STEP,
    )
    AWAY = (
        "Away",
        "False",
        "No endpoint picker answers. In mode Unified, requests are spread over the pods until one does.",
        WARNING,
    )
    NOT_ASKED = (
        "NotAsked",
        "False",
        "The cluster's gateway rejects the policy that connects it to the endpoint picker; the message says why.",
        WARNING,
    )
    PICKING = "Picking", "True", "An endpoint picker answers."
    NOT_NEEDED = "NotNeeded", "True", "Requests go to the pods without an endpoint picker, as the deployment asks."


class CacheTransfer(ConditionType):
    """Whether the engines of a split replica are told to hand over what they have read of a prompt; only in mode
    PrefillDecode. It says nothing of whether that succeeds."""

    NOT_CONFIGURED = (
        "NotConfigured",
        "False",
        "An engine lacks the arguments for handing over its cache: each prompt is read by a prefill engine and again "
        "by a decode engine.",
        WARNING,
    )
    CONFIGURED = (
        "Configured",
        "True",
        "All engines whose arguments can be read have those for the transfer of the cache.",
    )


class ModelReplica(Resource[ModelReplicaSpec, ModelReplicaStatus]):
    """One replica on one cluster, with its state. The operator writes it."""

    definition: ClassVar = Definition(
        kind="ModelReplica",
        group=MODELPLANE,
        short="mr",
        scope="Namespaced",
        columns=(
            Column("CLUSTER", ".spec.clusterName"),
            Column("NODES", ".status.nodes", "integer"),
            Column("POOL", ".status.pool"),
        ),
        conditions=(ModelAccepted, CacheTransfer, PickerReady, ModelReady, Synced, Ready),
    )
