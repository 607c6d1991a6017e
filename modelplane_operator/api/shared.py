"""Fragments that several kinds share."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelplane_operator.api.bounds import (
    ARGUMENTS,
    COMMAND,
    COMPOSED,
    LABELS,
    POD_TEXT,
    PULL_SECRETS,
    SELECTOR_TEXT,
    SELECTORS,
    VARIABLES,
    Argument,
    DataKey,
    Image,
    LabelsToMatch,
    ObjectName,
    OurName,
    String63,
    VariableName,
)
from modelplane_operator.api.model import AT_LEAST_ONE_PROPERTY, ATOMIC, Model, Rule, list_map, must

Bytes = Annotated[str, Field(max_length=9, pattern="^[1-9][0-9]{0,6}(Mi|Gi|Ti)$")]
"""An amount of memory or storage, such as 16Gi."""

_UNITS = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def in_bytes(amount: str) -> int:
    """An amount of memory or storage as a number."""
    return int(amount[:-2]) * _UNITS[amount[-2:]]


def in_millis(amount: str) -> int:
    """So many processors as a number of thousandths."""
    return int(amount[:-1]) if amount.endswith("m") else int(Decimal(amount) * 1000)


Cpu = Annotated[str, Field(max_length=8, pattern=r"^([1-9][0-9]{0,6}m?|[0-9]{1,4}\.[0-9]{1,3})$")]
"""So many processors, such as 2 or 500m."""

Capability = Literal[
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "IPC_LOCK", "KILL", "MKNOD", "NET_BIND_SERVICE",
    "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE", "SYS_RESOURCE",
]  # fmt: skip
"""What a container may be given of root's power. The rest is power over the node, and nobody's to ask for."""

QUALIFIED_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
PROFILE = "^[A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)*$"
QualifiedName = Annotated[str, Field(min_length=1, max_length=317, pattern=QUALIFIED_NAME)]
Profile = Annotated[str, Field(min_length=1, max_length=253, pattern=PROFILE)]
"""A file below the kubelet's folder of seccomp profiles: a path that does not lead out of it."""

Role = Literal["Standalone", "Leader", "Worker"]
Phase = Literal["Prefill", "Decode"]
ServingMode = Literal["Unified", "PrefillDecode"]
Claim = Literal["DRA", "Synthetic"]
Effect = Literal["NoSchedule", "NoExecute"]


# Every kind: what Crossplane put on it --------------------------------------------------------------------------------


_Ignored = Annotated[str, Field(max_length=253)]


class _NameRef(Model):
    name: _Ignored
    """Name of the referenced object."""


class _Labels(Model):
    match_labels: LabelsToMatch
    """Labels that the selected object carries."""


class ResourceRef(Model):
    """An object that Crossplane composed."""

    api_version: _Ignored
    """API version of the composed object."""
    kind: _Ignored
    """Kind of the composed object."""
    name: _Ignored | None = None
    """Name of the composed object."""


class ClusterResourceRef(ResourceRef):
    namespace: _Ignored | None = None
    """Namespace of the composed object."""


class _Composition(Model):
    """Settings for Crossplane, read by nothing here: manifests written for it apply unchanged."""

    composition_ref: _NameRef | None = None
    """Accepted and ignored."""
    composition_selector: _Labels | None = None
    """Accepted and ignored."""
    composition_revision_ref: _NameRef | None = None
    """Accepted and ignored."""
    composition_revision_selector: _Labels | None = None
    """Accepted and ignored."""
    composition_update_policy: Literal["Automatic", "Manual"] | None = None
    """Accepted and ignored."""


class Crossplane(_Composition):
    resource_refs: Annotated[tuple[ResourceRef, ...], Field(max_length=COMPOSED), ATOMIC] = ()
    """Accepted and ignored."""


class ClusterCrossplane(_Composition):
    resource_refs: Annotated[tuple[ClusterResourceRef, ...], Field(max_length=COMPOSED), ATOMIC] = ()
    """Accepted and ignored."""


class Spec(Model):
    """The part of a namespaced object that its author writes."""

    crossplane: Crossplane | None = None
    """Accepted for manifests written for Crossplane, and ignored: nothing here runs on it."""


class ClusterSpec(Model):
    """The part of a cluster-scoped object that its author writes."""

    crossplane: ClusterCrossplane | None = None
    """Accepted for manifests written for Crossplane, and ignored: nothing here runs on it."""


# References and selectors ---------------------------------------------------------------------------------------------


class ClusterSelector(Model):
    """Which InferenceClusters are meant."""

    match_labels: LabelsToMatch = {}
    """Labels that an InferenceCluster must all carry, with exactly these values. Empty means every cluster."""


class ModelCacheRef(Model):
    """A ModelCache in the same namespace."""

    name: OurName
    """Name of the ModelCache."""


class Credentials(Model):
    """The cloud account to work with."""

    type: Literal["ProviderConfig", "ClusterProviderConfig"] = "ClusterProviderConfig"
    """Accepted for manifests written for Crossplane; both values mean the Secret that `name` names."""
    name: ObjectName = "default"
    """Name of the Secret in `modelplane-system` that holds the account's credentials. `default` without such a Secret
    means the operator's own cloud identity."""


# Serving: what ModelDeployment and ModelReplica have in common --------------------------------------------------------

_QUALIFIED_NAME = (
    r"'^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'"
)


def _each(field: str, holds: str, message: str) -> Rule:
    """What must hold of each key `k` of a map; the refusal begins with the key that is meant."""
    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, {holds})",
        message,
        field=field,
        telling=f'self.{field}.filter(k, !({holds}))[0] + ": {message}"',
    )


NO_RESERVED_LABELS = _each(
    "labels",
    "!k.startsWith('modelplane.ai/')",
    "Label keys under modelplane.ai/ are set by the operator: choose a prefix of your own, such as example.com/team.",
)
LABEL_KEYS = _each(
    "labels",
    f"k.matches({_QUALIFIED_NAME})",
    "A label key must be a name of at most 63 letters, digits, '-', '_' or '.', that begins and ends with a letter or "
    "digit, optionally after a DNS prefix and '/': for example team or example.com/team.",
)
LABEL_KEY_PREFIXES = _each(
    "labels",
    "k.split('/')[0].size() <= 253",
    "The prefix of a label key, before '/', may have at most 253 characters: shorten it.",
)
LABEL_VALUES = _each(
    "labels",
    "self.labels[k].matches('^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$')",
    "A label value must be empty, or letters, digits, '-', '_' and '.', beginning and ending with a letter or digit.",
)
ANNOTATION_KEYS = _each(
    "annotations",
    f"k.matches({_QUALIFIED_NAME})",
    "An annotation key must be a name of at most 63 letters, digits, '-', '_' or '.', that begins and ends with a "
    "letter or digit, optionally after a DNS prefix and '/': for example note or example.com/note.",
)
ANNOTATION_KEY_PREFIXES = _each(
    "annotations",
    "k.split('/')[0].size() <= 253",
    "The prefix of an annotation key, before '/', may have at most 253 characters: shorten it.",
)
LABEL_RULES = (NO_RESERVED_LABELS, LABEL_KEYS, LABEL_KEY_PREFIXES, LABEL_VALUES)

# Bounded on every side: without the limits the API server's cost estimate for the rules above is over its budget.
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=LABELS)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=8192)]], Field(max_length=LABELS)]


class KeyRef(Model):
    """One key of a Secret or ConfigMap in the deployment's namespace; it is copied to the clusters that run it."""

    name: ObjectName
    """Name of the Secret or ConfigMap."""
    key: DataKey
    """Key within it."""
    optional: bool | None = None
    """Whether the engine may start without it."""


class FieldRef(Model):
    """A field of the pod."""

    field_path: Annotated[str, Field(max_length=512)]
    """Path of the field, for example `status.podIP`."""
    api_version: Annotated[str, Field(max_length=63)] | None = None
    """API version that the path is written for."""


class EnvSource(Model):
    """Where the value of an environment variable comes from."""

    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""
    field_ref: FieldRef | None = None
    """A field of the pod, such as its address."""


class Env(Model):
    """An environment variable."""

    name: VariableName
    """Name of the variable."""
    value: Argument | None = None
    """Its value, as it stands."""
    value_from: EnvSource | None = None
    """Where to take its value from."""


class Amounts(Model):
    """How much of a node's resources."""

    cpu: Cpu | None = None
    """Processors, for example `"2"` or `500m`."""
    memory: Bytes | None = None
    """Memory, for example `4Gi`."""
    ephemeral_storage: Annotated[Bytes | None, Field(alias="ephemeral-storage")] = None
    """Disk of the node, for example `50Gi`."""


class Limits(Amounts):
    """The most that a container may take."""

    hugepages_2mi: Annotated[Bytes | None, Field(alias="hugepages-2Mi")] = None
    """Memory in pages of 2Mi, for example `2Gi`. The node must have set them aside; they are requested, too."""
    hugepages_1gi: Annotated[Bytes | None, Field(alias="hugepages-1Gi")] = None
    """Memory in pages of 1Gi."""


def _within(resource: str) -> Rule:
    field = resource.replace("-", "__dash__")
    return Rule(
        f"!has(self.requests) || !has(self.limits) || !has(self.requests.{field}) || !has(self.limits.{field}) || "
        f"quantity(self.requests.{field}).compareTo(quantity(self.limits.{field})) <= 0",
        f"A container cannot request more {resource} than its limit: lower the request, or raise the limit.",
    )


LIMITS_HOLD_REQUESTS = tuple(map(_within, ("cpu", "memory", "ephemeral-storage")))
HUGE_PAGES_NEED_MORE = Rule(
    "!has(self.limits) || !(has(self.limits.hugepages__dash__2Mi) || has(self.limits.hugepages__dash__1Gi)) || "
    "has(self.limits.cpu) || has(self.limits.memory) || (has(self.requests) && (has(self.requests.cpu) || "
    "has(self.requests.memory)))",
    "Kubernetes gives huge pages only to containers that also request cpu or memory: add one of them to `requests`.",
)


class Resources(Model):
    """What the engine needs of its node beside devices."""

    rules: ClassVar = (*LIMITS_HOLD_REQUESTS, HUGE_PAGES_NEED_MORE)

    requests: Amounts | None = None
    """What the node must have free. Without a word on cpu or memory, a share of the node's by the share of its devices
    that the pod claims."""
    limits: Limits | None = None
    """The most that it may take: a container that takes more memory is killed. Without one, what the node has."""


class Capabilities(Model):
    """Root's power, in pieces."""

    add: Annotated[tuple[Capability, ...], Field(max_length=18), ATOMIC] = ()
    """Capabilities beside none: everything is dropped first. CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL,
    NET_BIND_SERVICE, SETGID and SETUID are for everybody; others, such as IPC_LOCK for RDMA, where the cluster's
    `spec.isolation.pods.allowedCapabilities` has them."""


class ContainerSecurity(Model):
    """What the container may do."""

    capabilities: Capabilities | None = None
    """Root's power, in pieces."""


class Container(Model):
    """The engine's container."""

    name: String63
    """Always `engine`."""
    image: Image
    """Image of the engine, for example `vllm/vllm-openai:v0.11.0`."""
    command: Annotated[tuple[Argument, ...], Field(max_length=COMMAND)] = ()
    """Replaces the image's entry point. With a command, nothing is added to the arguments."""
    args: Annotated[tuple[Argument, ...], Field(max_length=ARGUMENTS)] = ()
    """Arguments of the engine. With a cache and no command, `--model=/mnt/models` is added unless there is a
    `--model`."""
    env: Annotated[tuple[Env, ...], Field(max_length=VARIABLES)] = ()
    """Environment variables. Members of a gang also get MODELPLANE_LEADER_ADDRESS and MODELPLANE_RANK. Of several of
    one name the last counts, where it stands."""
    resources: Resources | None = None
    """What the engine needs of its node beside devices, which `nodeSelector` asks for."""
    security_context: ContainerSecurity | None = None
    """What the container may do."""


class PodToleration(Model):
    """Lets the pod onto nodes of its pool with a taint."""

    key: QualifiedName
    """Key of the taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """`Equal` compares key and value, `Exists` only the key."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Value of the taint, for operator Equal; absent means empty."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Without one, all."""


class SeccompProfile(Model):
    """Which system calls the pod may make."""

    type: Literal["RuntimeDefault", "Localhost"]
    """`RuntimeDefault`, or `Localhost` for a file on the nodes."""
    localhost_profile: Profile | None = None
    """For type Localhost: the file, below the kubelet's folder of profiles, for example `profiles/engine.json`."""


LOCALHOST_HAS_PROFILE = Rule(
    "(self.type == 'Localhost') == has(self.localhostProfile)",
    "A localhostProfile goes with `type: Localhost`, and that type needs one.",
)


class PodSecurity(Model):
    """What all of the pod may do."""

    seccomp_profile: Annotated[SeccompProfile | None, must(LOCALHOST_HAS_PROFILE)] = None
    """Which system calls the pod may make. Without one, those that the runtime lets everybody make."""


OWN_PATHS = Rule(
    "!self.startsWith('/dev') && !self.startsWith('/proc') && !self.startsWith('/sys') && "
    "!(self + '/').startsWith('/mnt/models/') && !self.contains('..')",
    "This path is taken: /dev, /proc and /sys are the system's, /mnt/models is the cache's. Choose another, such as "
    "/scratch.",
)


class EphemeralVolume(Model):
    """A volume that comes and goes with its pod."""

    mount_path: Annotated[str, Field(max_length=255, pattern="^(/[^/:]+)+$"), must(OWN_PATHS)]
    """Where the engine finds it, for example `/scratch`."""
    size: Bytes
    """The most it holds."""
    storage_class_name: ObjectName | None = None
    """StorageClass of the volume, such as one for the node's NVMe disks; the cluster's
    `spec.isolation.pods.allowedStorageClasses` must have it. Without one it is a folder on the node's own disk."""


class PullSecret(Model):
    """A Secret with a registry's credentials."""

    name: ObjectName
    """Name of the Secret."""


class PodSpec(Model):
    """The part of a pod that is yours; ports, probes and devices are set by the operator. What steers more than the pod
    itself is for the cluster's `spec.isolation.pods` to allow; the condition PodTemplateAllowed says what was left out.
    """

    containers: Annotated[
        tuple[Container, ...],
        Field(min_length=1, max_length=1),
        must(
            Rule(
                "self.exists_one(c, c.name == 'engine')",
                "The container must be called engine: write `name: engine`. There is exactly one.",
            )
        ),
    ]
    """Exactly one container, called `engine`."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=PULL_SECRETS)] = ()
    """Registry Secrets in the deployment's namespace; they are copied to the clusters that run it."""
    shared_memory_size: Bytes | None = None
    """Most that the pod can put into /dev/shm, for example `64Gi`. It is memory of the node, and counts only when it is
    used. Without one 32Gi; no more than the cluster's `spec.isolation.pods.maxSharedMemory`."""
    service_account_name: ObjectName | None = None
    """ServiceAccount in the namespace of the models on the cluster, for clouds that give pods their identity by it. The
    platform team makes it there and allows it. No token of the API server is mounted."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods, where the cluster allows it."""
    tolerations: Annotated[tuple[PodToleration, ...], Field(max_length=16), ATOMIC] = ()
    """Taints of nodes that the pods put up with, where the cluster allows it. Those of accelerators may be tolerated
    anywhere; `nvidia.com/gpu` is without a word."""
    security_context: PodSecurity | None = None
    """What all of the pod may do."""
    ephemeral_volumes: Annotated[tuple[EphemeralVolume, ...], Field(max_length=8), list_map("mountPath")] = ()
    """Volumes that come and go with their pod: scratch space."""


class PodMetadata(Model):
    """Labels and annotations for the pods of one member."""

    rules: ClassVar = (*LABEL_RULES, ANNOTATION_KEYS, ANNOTATION_KEY_PREFIXES)

    labels: Labels = {}
    """Extra labels for the pods. Keys under modelplane.ai/ are refused."""
    annotations: Annotations = {}
    """Extra annotations for the pods. Those with a prefix, and labels with one, reach the pods only where the cluster's
    `spec.isolation.pods` allows them; the condition PodTemplateAllowed says what was left out."""


class PodTemplate(Model):
    """The pod that a member runs."""

    metadata: PodMetadata | None = None
    """Extra labels and annotations for the pods."""
    spec: PodSpec | None = None
    """The engine's container. A member without it cannot run."""


class Worker(Model):
    """How many pods follow the leader."""

    nodes: Annotated[int, Field(ge=1, le=63)]
    """Follower pods per copy, each on a node of its own. Leave the whole block out for one."""


class CelSelector(Model):
    """A condition that a device must meet."""

    cel: Annotated[str, Field(min_length=1, max_length=10240)] | None = None
    """An expression over `device` that gives true or false, in the language of Kubernetes DRA selectors, for example
    `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0`."""


# An empty selector would match every device.
NonEmptySelector = Annotated[CelSelector, AT_LEAST_ONE_PROPERTY]
DeviceCount = Annotated[int, Field(ge=1, le=64)]

WORKER_ONLY_ON_WORKER = Rule(
    "!has(self.worker) || self.role == 'Worker'",
    "The worker block sizes the followers of a gang: set it only on the member with role Worker.",
)
MEMBER_SHAPE = Rule(
    "(self.members.size() == 1 && self.members[0].role == 'Standalone') || (self.members.exists_one(m, m.role == "
    "'Leader') && self.members.exists(m, m.role == 'Worker') && !self.members.exists(m, m.role == 'Standalone'))",
    "An engine is either one member with role Standalone, or one Leader and one Worker.",
)


class Engine(Model):
    """One serving unit of a replica; a kind adds the members."""

    name: String63
    """Name of the engine, unique in its replica. It becomes part of workload names: a DNS label is best."""
    copies: Annotated[int, Field(ge=1, le=64)] = 1
    """Identical copies of this engine in every replica."""
    phase: Phase | None = None
    """The engine's part when prefill and decode are split. Set it only with serving mode PrefillDecode."""


def _sum(items: str, each: str, *, item: str = "x") -> str:
    """A sum over a list, or over the keys of a map, of a member `m`, where any part of its path may be missing."""
    parts = items.split(".")
    there = " && ".join(f"has(m.{'.'.join(parts[: length + 1])})" for length in range(len(parts)))
    return f"({there} ? m.{items}.map({item}, {each}).sum() : 0)"


def engine_rules(requests: str) -> tuple[Rule, ...]:
    """What the engines of one replica may have all together; `requests` is where a member has its device requests."""

    def total(of_member: str) -> str:
        return f"self.map(e, e.members.map(m, {of_member}).sum()).sum()"

    def selectors(each: str) -> str:
        return total(_sum(requests, f"has(d.selectors) ? d.selectors.map(s, {each}).sum() : 0", item="d"))

    text = (
        _sum("template.spec.containers", "has(x.command) ? x.command.map(y, y.size()).sum() : 0"),
        _sum("template.spec.containers", "has(x.args) ? x.args.map(y, y.size()).sum() : 0"),
        _sum(
            "template.spec.containers",
            "has(x.env) ? x.env.map(y, y.name.size() + (has(y.value) ? y.value.size() : 0)).sum() : 0",
        ),
        _sum("template.metadata.annotations", "m.template.metadata.annotations[x].size()"),
    )
    return (
        Rule(
            f"{selectors('1')} <= {SELECTORS}",
            f"All engines together may have at most {SELECTORS} selectors of devices: join some of them with &&.",
        ),
        Rule(
            f"{selectors('has(s.cel) ? s.cel.size() : 0')} <= {SELECTOR_TEXT}",
            f"All selectors of devices together may have at most {SELECTOR_TEXT} characters: make them shorter.",
        ),
        Rule(
            f"{total(' + '.join(text))} <= {POD_TEXT}",
            f"Commands, arguments, variables and annotations of all engines together may have at most {POD_TEXT} "
            "characters: put long texts into a ConfigMap and name it in `env`.",
        ),
    )


def serving_rules(*, when: str = "") -> tuple[Rule, ...]:
    """The rules that tie `serving` and `engines` of one object together; `when` limits them to objects that hold it."""
    unless_split = f"{when}!has(self.serving) || self.serving.mode != 'PrefillDecode'"
    return (
        Rule(
            f"{unless_split} || size(self.engines) == 2",
            "Serving mode PrefillDecode needs exactly two engines: one with phase Prefill and one with phase Decode.",
            field="engines",
        ),
        Rule(
            f"{unless_split} || self.engines.exists_one(e, has(e.phase) && e.phase == 'Prefill')",
            "Serving mode PrefillDecode needs exactly one engine with `phase: Prefill`.",
            field="engines",
        ),
        Rule(
            f"{unless_split} || self.engines.exists_one(e, has(e.phase) && e.phase == 'Decode')",
            "Serving mode PrefillDecode needs exactly one engine with `phase: Decode`.",
            field="engines",
        ),
        Rule(
            f"{when}(has(self.serving) && self.serving.mode == 'PrefillDecode') || "
            "!self.engines.exists(e, has(e.phase))",
            "An engine's phase means something only with serving mode PrefillDecode: remove the phase, or set "
            "`serving: {mode: PrefillDecode}`.",
            field="engines",
        ),
    )


# Devices: what InferenceClass declares and InferenceCluster publishes -------------------------------------------------


class Attribute(Model):
    """A typed value: exactly one of the four."""

    string: Annotated[str, Field(max_length=253)] | None = None
    """A text."""
    version: Annotated[str, Field(max_length=32)] | None = None
    """A semantic version: three numbers, such as 9.0.0."""
    boolean: Annotated[bool | None, Field(alias="bool")] = None
    """True or false."""
    integer: Annotated[int | None, Field(alias="int", json_schema_extra={"format": "int64"})] = None
    """A whole number."""


# The kinds' status rows --------------------------------------------------------------------------------------------


class CacheStatus(Model):
    """Storage for model caches."""

    storage_class_name: Annotated[str, Field(max_length=253)] | None = None
    """StorageClass for volumes that many nodes can write to. Without one the cluster holds no ModelCache."""
