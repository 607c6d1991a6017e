"""Pods as users write them: the part of Kubernetes' own that models need, bounded."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.model import ATOMIC, Model, Rule, list_map, must
from modelplane_operator.api.bounds import (
    ARGUMENTS,
    COMMAND,
    PULL_SECRETS,
    VARIABLES,
    Argument,
    DataKey,
    Image,
    ObjectName,
    String63,
    VariableName,
)
from modelplane_operator.api.metadata import ANNOTATION_KEY_PREFIXES, ANNOTATION_KEYS, LABEL_RULES, Annotations, Labels
from modelplane_operator.api.shared import Amounts, Bytes, QualifiedName

Capability = Literal[
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "IPC_LOCK", "KILL", "MKNOD", "NET_BIND_SERVICE",
    "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE", "SYS_RESOURCE",
]  # fmt: skip
"""What a container may be given of root's power. The rest is power over the node, and nobody's to ask for."""
PROFILE = "^[A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)*$"
Profile = Annotated[str, Field(min_length=1, max_length=253, pattern=PROFILE)]
"""A file below the kubelet's folder of seccomp profiles: a path that does not lead out of it."""


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
    """Its value."""
    value_from: EnvSource | None = None
    """Where to take its value from."""


class Limits(Amounts):
    """The most that a container may take."""

    hugepages_2mi: Annotated[Bytes | None, Field(alias="hugepages-2Mi")] = None
    """Memory in pages of 2Mi, for example `2Gi`. The node must have reserved them; they are also requested."""
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
    """What the node must have free. Without cpu or memory: half of the node's share of the claimed devices."""
    limits: Limits | None = None
    """Maximum that it may use: a container that uses more memory is killed. Without one, all that the node has."""


class Capabilities(Model):
    """Linux capabilities."""

    add: Annotated[tuple[Capability, ...], Field(max_length=18), ATOMIC] = ()
    """Capabilities of the container, which otherwise has none. CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL,
    NET_BIND_SERVICE, SETGID and SETUID are always allowed; others, such as IPC_LOCK for RDMA, if the cluster's
    `spec.isolation.pods.allowedCapabilities` lists them."""


class ContainerSecurity(Model):
    """Security settings of the container."""

    capabilities: Capabilities | None = None
    """Linux capabilities."""


class Container(Model):
    """The engine's container."""

    name: String63
    """Always `engine`."""
    image: Image
    """Image of the engine, for example `vllm/vllm-openai:v0.32.0`."""
    command: Annotated[tuple[Argument, ...], Field(max_length=COMMAND)] = ()
    """Replaces the image's entry point. With a command, nothing is added to the arguments."""
    args: Annotated[tuple[Argument, ...], Field(max_length=ARGUMENTS)] = ()
    """Arguments of the engine. With a cache and no command, `--model=/mnt/models` is added unless there is a
    `--model`."""
    env: Annotated[tuple[Env, ...], Field(max_length=VARIABLES)] = ()
    """Environment variables. Members of a gang also get MODELPLANE_LEADER_ADDRESS and MODELPLANE_RANK. Of several with
    one name, the last counts. Those by which container runtimes grant devices, such as NVIDIA_VISIBLE_DEVICES, reach
    the pod only if the cluster's `spec.isolation.pods.allowedVariables` lists them."""
    resources: Resources | None = None
    """What the engine needs of its node in addition to the devices in `nodeSelector`."""
    security_context: ContainerSecurity | None = None
    """Security settings of the container."""


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
    """Security settings of the pod."""

    seccomp_profile: Annotated[SeccompProfile | None, must(LOCALHOST_HAS_PROFILE)] = None
    """System calls that the pod may make. Without one, the runtime's default profile."""


OWN_PATHS = Rule(
    "!self.startsWith('/dev') && !self.startsWith('/proc') && !self.startsWith('/sys') && "
    "!(self + '/').startsWith('/mnt/models/') && !self.contains('..')",
    "This path is taken: /dev, /proc and /sys are the system's, /mnt/models is the cache's. Choose another, such as "
    "/scratch.",
)


class EphemeralVolume(Model):
    """A volume that comes and goes with its pod."""

    mount_path: Annotated[str, Field(max_length=255, pattern="^(/[^/:]+)+$"), must(OWN_PATHS)]
    """Its path in the container, for example `/scratch`."""
    size: Bytes
    """Its size."""
    storage_class_name: ObjectName | None = None
    """StorageClass of the volume, such as one for the node's NVMe disks; the cluster's
    `spec.isolation.pods.allowedStorageClasses` must list it. Without one, a folder on the node's own disk."""


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
    """Maximum size of /dev/shm, for example `64Gi`. It uses memory of the node only as it fills. Default: 32Gi. Never
    more than the cluster's `spec.isolation.pods.maxSharedMemory`."""
    service_account_name: ObjectName | None = None
    """ServiceAccount in the namespace of the models on the cluster, for a cloud identity of the pods. The platform team
    creates and allows it there. No token of the API server is mounted."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods, if the cluster allows it."""
    tolerations: Annotated[tuple[PodToleration, ...], Field(max_length=16), ATOMIC] = ()
    """Taints of nodes that the pods tolerate, if the cluster allows it. Taints of accelerators are always allowed, and
    `nvidia.com/gpu` is always tolerated."""
    security_context: PodSecurity | None = None
    """Security settings of the pod."""
    ephemeral_volumes: Annotated[tuple[EphemeralVolume, ...], Field(max_length=8), list_map("mountPath")] = ()
    """Volumes for scratch space, which are deleted with their pod."""


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
