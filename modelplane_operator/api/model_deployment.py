"""ModelDeployment: which engines to run, on what hardware, and how many replicas of the whole."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import NORMAL, STEP, WARNING, ConditionType, Ready, Synced
from kubeloop.model import ATOMIC, Model, Rule, list_map, must
from kubeloop.resource import Column, Definition, Resource, Scale, SummarizedStatus
from modelplane_operator.api.bounds import TAINTS, AnyTaintKey, DnsLabel, TaintValue
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
from modelplane_operator.api.maintenance import MaintenanceWindows
from modelplane_operator.api.metadata import LABEL_RULES, Labels
from modelplane_operator.api.pods import PodTemplate
from modelplane_operator.api.shared import ClusterSelector, Effect, ModelCacheRef


class DeviceRequest(Model):
    """Devices that every pod of a member needs."""

    name: DnsLabel
    """Name of the request, unique in its member."""
    count: DeviceCount = 1
    """Devices for each pod; all of them from one device entry of the node's class."""
    selectors: Annotated[tuple[NonEmptySelector, ...], Field(min_length=1, max_length=8), ATOMIC]
    """Conditions that a device must meet, all of them."""


class NodeSelector(Model):
    """What the node of a pod must have."""

    devices: Annotated[tuple[DeviceRequest, ...], Field(min_length=1, max_length=16), list_map("name")]
    """Device requests; one node must meet all of them."""


class Member(Model):
    """One kind of pod of an engine."""

    rules: ClassVar = (WORKER_ONLY_ON_WORKER,)

    role: Role = "Standalone"
    """`Standalone` is a pod by itself. A gang has a `Leader`, which answers requests, and `Worker` pods behind it."""
    node_selector: NodeSelector | None = None
    """What the node must have. Without it the pod claims no device and runs where the rest of its engine does."""
    worker: Worker | None = None
    """How many pods follow the leader; only for role Worker. Without it, one."""
    template: PodTemplate
    """The pod."""


class DeployedEngine(Engine):
    """One serving unit of a replica: a pod, or a gang of pods over several nodes."""

    rules: ClassVar = (
        MEMBER_SHAPE,
        Rule(
            "self.members.exists(m, has(m.nodeSelector))",
            "An engine needs devices: give at least one of its members a nodeSelector.",
        ),
    )

    members: Annotated[tuple[Member, ...], Field(min_length=1, max_length=2), ATOMIC]
    """One member with role Standalone, or a Leader and a Worker."""


Engines = Annotated[
    tuple[DeployedEngine, ...],
    Field(min_length=1, max_length=8),
    list_map("name"),
    must(*engine_rules("nodeSelector.devices")),
]


class Toleration(Model):
    """Lets replicas onto clusters with a taint."""

    rules: ClassVar = (
        Rule(
            "self.operator != 'Equal' || (has(self.key) && self.key != '')",
            "A toleration with operator Equal, which is the default, needs a key. To tolerate every taint, write "
            "`operator: Exists` and no key.",
        ),
        Rule(
            "self.operator != 'Exists' || !has(self.value)",
            "A toleration with operator Exists ignores the value: remove the value, or use operator Equal.",
        ),
    )

    key: AnyTaintKey | None = None
    """Key of the taint. Without a key, and with operator Exists, every taint is tolerated."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """`Equal` compares key and value, `Exists` only the key."""
    value: TaintValue | None = None
    """Value of the taint, for operator Equal; absent means empty."""
    effect: Effect | None = None
    """Effect of the taint. Without one, both."""


GRACE = Rule(
    "self != '' && self.matches('^([0-9]{1,3}h)?([0-9]{1,4}m)?([0-9]{1,5}s)?$')",
    "Write the time as hours, minutes and seconds, for example 5m, 90s or 1h30m.",
)
GRACE_BOUNDS = Rule(
    "self == '' || !self.matches('^([0-9]{1,3}h)?([0-9]{1,4}m)?([0-9]{1,5}s)?$') || "
    "(duration(self) >= duration('30s') && duration(self) <= duration('168h'))",
    "Wait at least 30s, so that a restart of an API server moves nothing, and at most 168h.",
)
SHARE = Rule(
    "self.matches('^([1-9][0-9]?|100)%$')",
    "Write the share as a whole percentage from 1% to 100%, for example 50%.",
)


class Failover(Model):
    """When to give up on a cluster."""

    after: Annotated[str, Field(max_length=16), must(GRACE, GRACE_BOUNDS)]
    """How long a cluster must have been unreachable or not Ready before its replicas are placed elsewhere, for example
    `5m`. A replaced replica is deleted, on its cluster once that answers again."""
    max_share: Annotated[str, Field(max_length=4), must(SHARE)] = "50%"
    """Maximum of replicas to replace at a time, as a share of `replicas`, rounded up. If the operator loses many
    clusters at once, the fault is probably its own."""


class Rollout(Model):
    """How replicas are moved, changed and removed while others serve."""

    rules: ClassVar = (
        Rule(
            "self.maxSurge > 0 || self.maxUnavailable > 0",
            "With maxSurge 0 and maxUnavailable 0 no replica could ever be changed: raise one of them.",
        ),
    )

    max_surge: Annotated[int, Field(ge=0, le=1000)] = 1
    """Extra replicas while others are moved or changed. If the fleet has no room for one, one replica at a time is
    taken out of service instead."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = 0
    """Replicas that may be out of service meanwhile."""


class ReplicaSpec(Model):
    """One replica: its engines, all on one cluster, and which clusters may run it."""

    rules: ClassVar = serving_rules()

    cluster_selector: ClusterSelector | None = None
    """Which clusters may run replicas. Without it, every cluster."""
    model_cache_ref: ModelCacheRef | None = None
    """Weights to start from: the cache is mounted at /mnt/models, and replicas go where it is staged."""
    serving: Serving | None = None
    """How the engines share the work. Without it, Unified."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=TAINTS), ATOMIC] = ()
    """Taints of InferenceClusters that replicas tolerate. For taints of nodes, the operator sets tolerations."""
    failover: Failover | None = None
    """When to replace a replica whose cluster is lost. Without it, only when a person taints the cluster."""
    rollout: Rollout | None = None
    """How replicas are moved, changed and removed. By default a new one is created before an old one stops."""
    engines: Engines
    """The engines of one replica."""


class ReplicaMetadata(Model):
    """Labels for replicas and their endpoints."""

    rules: ClassVar = LABEL_RULES

    labels: Labels = {}
    """Labels for every ModelReplica and ModelEndpoint, for ModelServices to select by. They do not reach pods."""


class ReplicaTemplate(Model):
    """What every replica is made from."""

    metadata: ReplicaMetadata | None = None
    """Labels for replicas and their endpoints."""
    spec: ReplicaSpec
    """The replica."""


class ModelDeploymentSpec(Spec):
    """What to run, and how many replicas. The fields from `clusterSelector` on are the older, flat shape of those in
    `template.spec`."""

    rules: ClassVar = (
        Rule(
            "has(self.template) != has(self.engines)",
            "Describe the replica once: under `template`, or in the older shape with `engines` directly under `spec`.",
            field="template",
        ),
        Rule(
            "!has(self.template) || !(has(self.clusterSelector) || has(self.modelCacheRef) || has(self.serving))",
            "With `template`, clusterSelector, modelCacheRef and serving belong in `template.spec`: move them there.",
            field="template",
        ),
        *serving_rules(when="!has(self.engines) || "),
    )

    replicas: Annotated[int, Field(ge=0, le=1000)]
    """Replicas over the whole fleet; `kubectl scale` sets it."""
    template: ReplicaTemplate | None = None
    """What every replica is made from."""
    maintenance: MaintenanceWindows = ()
    """Windows in which changes of the replicas may begin that the operator makes by itself, such as those of outdated
    pods; at any time that their clusters allow without windows. Edits, moves and failures do not wait."""
    cluster_selector: ClusterSelector | None = None
    """Older shape of `template.spec.clusterSelector`."""
    model_cache_ref: ModelCacheRef | None = None
    """Older shape of `template.spec.modelCacheRef`."""
    serving: Serving | None = None
    """Older shape of `template.spec.serving`."""
    engines: Engines = ()
    """Older shape of `template.spec.engines`."""


class ReplicaCount(Model):
    """Number of replicas."""

    total: int | None = None
    """Replicas that have a cluster."""
    ready: int | None = None
    """Replicas that answer."""


class ModelDeploymentStatus(SummarizedStatus):
    """Observed state of the deployment."""

    replicas: ReplicaCount | None = None
    """Number of replicas."""
    selector: str | None = None
    """Label selector of the deployment's replicas, for autoscalers."""
    model: Annotated[str, Field(max_length=128)] | None = None
    """The model that the first engine serves by its arguments, or the cache that it starts from."""


class ReplicasScheduled(ConditionType):
    """Whether every replica has a cluster."""

    REPLICAS_CREATED = "ReplicasCreated", "True", "Every replica has a cluster.", NORMAL
    SCHEDULING = "Scheduling", "False", "Clusters are chosen; the replicas are being created.", STEP
    NO_CLUSTERS = "NoClusters", "False", "No cluster matches; running replicas stay.", WARNING
    INVALID_NODE_SELECTOR = (
        "InvalidNodeSelector",
        "False",
        "A selector is invalid; running replicas stay.",
        WARNING,
    )
    NO_MATCHING_CLUSTERS = "NoMatchingClusters", "False", "No cluster has the labels of clusterSelector.", WARNING
    TAINTED = "Tainted", "False", "Clusters with the hardware have taints that are not tolerated.", WARNING
    CLUSTERS_NOT_READY = "ClustersNotReady", "False", "Clusters that may have the hardware are not ready.", WARNING
    NO_CACHE_STORAGE = (
        "NoCacheStorage",
        "False",
        "Clusters with the hardware have no storage for the ModelCache.",
        WARNING,
    )
    NO_MATCHING_DEVICES = "NoMatchingDevices", "False", "No pool has the requested devices.", WARNING
    INSUFFICIENT_CAPACITY = (
        "InsufficientCapacity",
        "False",
        "Too little of the hardware is free; the message says what is missing.",
        WARNING,
    )


class ReplicasReady(ConditionType):
    """Whether every replica answers."""

    NO_REPLICAS_SCHEDULED = "NoReplicasScheduled", "False", "No replica has a cluster.", STEP
    MODEL_STARTING = "ModelStarting", "False", "Some replicas do not answer yet; the message counts them.", STEP
    REPLICAS_FAILING = (
        "ReplicasFailing",
        "False",
        "A replica does not start, or stopped answering, and needs help; the message says why, and Ready its reason.",
        STEP,
    )
    ALL_REPLICAS_READY = "AllReplicasReady", "True", "Every replica answers."


class Progressing(ConditionType):
    """Whether replicas are being started, moved, changed or removed."""

    SETTLED = "Settled", "False", "Every replica is where it belongs and up to date.", NORMAL
    NO_OTHER_PLACE = (
        "NoOtherPlace",
        "False",
        "Replicas have to leave their cluster, and no other cluster can take them.",
        WARNING,
    )
    SOURCE_MISSING = (
        "SourceNotFound",
        "False",
        "The template names a Secret or ConfigMap that does not exist; running replicas keep the previous one.",
        WARNING,
    )
    STALLED = "Stalled", "False", "The rollout stopped because a replica does not start; ReplicasReady says why.", STEP
    STARTING = "Starting", "True", "Replicas are being created, or do not answer yet.", STEP
    MOVING = (
        "Moving",
        "True",
        "Replicas are moved or changed in turn; the message says which ones wait, and for what.",
        NORMAL,
    )
    MOVING_WITHOUT_SURGE = (
        "MovingWithoutSurge",
        "True",
        "The fleet has no room for an extra replica, so one at a time is out of service.",
        NORMAL,
    )


class ModelCacheResolved(ConditionType):
    """Whether the cache that the deployment names is there; absent when it names none."""

    RESOLVED = "ModelCacheResolved", "True", "The cache exists."
    UNRESOLVED = "ModelCacheUnresolved", "False", "The cache has not been read yet; nothing new is placed.", STEP
    NOT_FOUND = "ModelCacheNotFound", "False", "The cache does not exist; nothing new is placed.", WARNING


class PodTemplateAllowed(ConditionType):
    """Whether the pods have all that their templates ask for; absent while nothing was ever left out."""

    ALLOWED = "Allowed", "True", "A cluster allows all of it."
    LEFT_OUT = (
        "LeftOut",
        "False",
        "A cluster does not allow some of it, so the pods run without; "
        "the message names it and the setting that would allow it.",
        WARNING,
    )


class UpToDate(ConditionType):
    """State of the pods' rendering: True if the operator that runs would render them as they are. Absent while that was
    never otherwise."""

    AS_RENDERED = "AsRendered", "True", "The operator would render all pods as they are."
    OUTDATED = (
        "Outdated",
        "False",
        "An older operator, or one with other settings, rendered some pods; they stay until the deployment changes or "
        "is rolled. The message says what would change.",
        STEP,
    )
    ROLLING = "Rolling", "False", "The outdated pods are changed in turn.", STEP
    WAITING_FOR_WINDOW = (
        "WaitingForWindow",
        "False",
        "The outdated pods are changed once the maintenance windows in the message are open.",
        STEP,
    )
    WAITING_FOR_ROOM = (
        "WaitingForRoom",
        "False",
        "The only replica that answers is not changed before the fleet has room for another.",
        STEP,
    )


class ModelDeployment(Resource[ModelDeploymentSpec, ModelDeploymentStatus]):
    """Engines that run as replicas over the fleet, on the hardware that they request."""

    definition: ClassVar = Definition(
        kind="ModelDeployment",
        group=MODELPLANE,
        short="md",
        scope="Namespaced",
        columns=(
            Column("REPLICAS", ".status.replicas.ready"),
            Column("DESIRED", ".spec.replicas", "integer"),
            Column("PLACED", ".status.replicas.total", "integer"),
            Column("MODEL", ".status.model", wide=True),
        ),
        conditions=(
            ReplicasScheduled,
            ReplicasReady,
            Progressing,
            ModelCacheResolved,
            PodTemplateAllowed,
            UpToDate,
            Synced,
            Ready,
        ),
        scale=Scale(replicas=".spec.replicas", observed=".status.replicas.total", selector=".status.selector"),
    )

    @property
    def replica(self) -> ReplicaSpec:
        """What every replica is made from, whichever shape it was written in."""
        spec = self.spec
        if spec.template:
            return spec.template.spec
        return ReplicaSpec(
            cluster_selector=spec.cluster_selector,
            model_cache_ref=spec.model_cache_ref,
            serving=spec.serving,
            engines=spec.engines,
        )
