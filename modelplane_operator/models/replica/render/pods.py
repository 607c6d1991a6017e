"""Render the pods of an engine: the user's container, and what the placement and the operator add.

The user's fields have been limited to what the cluster allows (`allowed`) when the replica was written. Additions
depend on the pod revision, since a changed pod template restarts a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kubeloop.objects import Manifest
from kubeloop.ownership import owner_labels
from modelplane_operator.api import labels, names
from modelplane_operator.api.engines import EngineHealth
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine, PlacedMember
from modelplane_operator.api.pods import Container, Env, EphemeralVolume, KeyRef, PodSpec
from modelplane_operator.models.replica.render.arguments import has_flag, is_sglang
from modelplane_operator.models.replica.render.claims import pod_claims
from modelplane_operator.models.replica.render.draining import drain_by_load
from modelplane_operator.models.replica.render.kubelets import PROBE_GRACE, apart, spread
from modelplane_operator.models.replica.render.part import SERVING_PORT, Part

CACHE_PATH = "/mnt/models"
"""Path where the volume of a ModelCache is mounted."""
PORT_NAME = "http"
"""Name of the serving port."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Times that an engine has to start, drain and end, in seconds."""

    startup_seconds: int = 3600
    """Seconds from the container's start until it answers: some engines load a terabyte, some compile for half an
    hour."""
    drain_seconds: int = 300
    """Seconds from a pod's deletion until its engine gets the signal to end. Meanwhile gateways take it out of
    rotation and its responses finish: an engine that gets the signal breaks them off."""
    grace_seconds: int = 360
    """Seconds from a pod's deletion until its engine is killed; includes the drain."""

    def at(self, revision: int) -> Lifecycle:
        """Return the times for pods of a revision. Default times are replaced by those that the revision had."""
        if revision >= 2 or (self.drain_seconds, self.grace_seconds) != _DEFAULT_TIMES:
            return self
        return replace(self, drain_seconds=20, grace_seconds=90)

    def of(self, replica: ModelReplica, engine: PlacedEngine) -> Lifecycle:
        """Return the times for one engine, which may set its own start time, and gets more for a large ModelCache."""
        cache = replica.spec.model_cache_ref if replica.spec.pod_revision >= 3 else None
        size = cache.size_gib if cache else None
        loading_seconds = size * LOADING_SECONDS_PER_GIB + COMPILING_SECONDS if size else 0
        return replace(self, startup_seconds=engine.startup_seconds or max(self.startup_seconds, loading_seconds))


LOADING_SECONDS_PER_GIB: Final = 5  # 200 MiB per second, from a shared file system
"""Seconds that an engine gets to load one GiB of weights."""
COMPILING_SECONDS: Final = 1800
"""Seconds that an engine gets to compile, in addition."""
DEFAULT_LIFECYCLE = Lifecycle()
"""Times without settings of the user."""
_DEFAULT_TIMES = (DEFAULT_LIFECYCLE.drain_seconds, DEFAULT_LIFECYCLE.grace_seconds)
"""Default times to drain and end, which older revisions replace by their own."""


def render_pod(
    replica: ModelReplica, engine: PlacedEngine, member: PlacedMember, part: Part, lifecycle: Lifecycle
) -> Manifest:
    """Render the pod template of a member. Raise ValueError if the member has no pod."""
    pod = member.template.spec
    if pod is None:
        raise ValueError(f"the {member.role} of engine {engine.name} has no pod")
    user = member.template.metadata
    claims = pod_claims(replica, engine, member)
    serves = member.role != "Worker" or engine.workers_serve
    revision = replica.spec.pod_revision
    name = names.workload(replica.metadata.name, engine.name)
    is_spread = revision >= 2 and engine.copies > 1 and member.role == "Standalone"
    env = _render_environment(replica, member, pod.containers[0], part, serves=serves)
    pull_secrets = dict.fromkeys(secret.name for secret in pod.image_pull_secrets)
    return {
        "metadata": {
            "labels": {
                **(_filter_labels(user.labels) if user else {}),
                **owner_labels(replica),
                **_render_deployment_label(replica),
                labels.WORKLOAD: name,
                **({labels.SERVING: replica.metadata.name, **part.labels} if serves else {}),
                **({labels.GANG_ROLE: "leader"} if member.role == "Leader" else {}),
            },
            **({"annotations": user.annotations} if user and user.annotations else {}),
        },
        "spec": {
            "nodeSelector": {labels.POOL: member.node_pool_name},
            **({"topologySpreadConstraints": spread({labels.WORKLOAD: name})} if is_spread and revision < 4 else {}),
            **_render_affinity(name, member, is_apart=is_spread and revision >= 4),
            "tolerations": [GPU_TOLERATION, *(toleration.to_manifest() for toleration in pod.tolerations)],
            **({"serviceAccountName": pod.service_account_name} if pod.service_account_name else {}),
            **({"priorityClassName": pod.priority_class_name} if pod.priority_class_name else {}),
            # Without these, a Service named `vllm` would set VLLM_PORT in every engine, and every engine could
            # call the API server.
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": {"seccompProfile": _render_seccomp_profile(pod)},
            "terminationGracePeriodSeconds": lifecycle.grace_seconds,
            **(
                {
                    "imagePullSecrets": [
                        {"name": names.name_of_copy(replica.metadata.name, "PullSecret", name)} for name in pull_secrets
                    ]
                }
                if pull_secrets
                else {}
            ),
            **(
                {
                    "resourceClaims": [
                        {"name": name, "resourceClaimTemplateName": template} for name, template in claims.items()
                    ]
                }
                if claims
                else {}
            ),
            "volumes": [
                {
                    "name": "dshm",
                    "emptyDir": {
                        "medium": "Memory",
                        **({"sizeLimit": pod.shared_memory_size} if pod.shared_memory_size else {}),
                    },
                },
                *_render_cache_volume(replica),
                *(_render_ephemeral_volume(number, volume) for number, volume in enumerate(pod.ephemeral_volumes)),
            ],
            "containers": [
                {
                    "name": "engine",
                    **_render_command(replica, engine, pod.containers[0], serves=serves),
                    **({"env": env} if env else {}),
                    **(_render_ports(part.port, engine, lifecycle, revision) if serves else {}),
                    "lifecycle": _render_hook(engine, member, part.port, lifecycle, revision),
                    **_render_resources(pod.containers[0], member, claims),
                    "volumeMounts": [
                        {"name": "dshm", "mountPath": "/dev/shm"},  # noqa: S108
                        *_render_cache_mount(replica),
                        *(
                            {"name": _ephemeral_name(number), "mountPath": volume.mount_path}
                            for number, volume in enumerate(pod.ephemeral_volumes)
                        ),
                    ],
                    "securityContext": _render_security(pod.containers[0]) if revision >= 1 else UNPRIVILEGED,
                },
                *(
                    [_render_sidecar(part, part.sidecar_image, engine, lifecycle, revision)]
                    if serves and part.sidecar_image
                    else []
                ),
            ],
        },
    }


GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
"""Toleration of the usual taint of GPU nodes."""
UNPRIVILEGED = {"allowPrivilegeEscalation": False}
"""Security context of all containers."""


def _filter_labels(user_labels: Mapping[str, str]) -> dict[str, str]:
    """Return a user's labels without those that the operator's Services select by, whatever the cluster allows.

    Services of earlier pickers select by a picker's `app`: a pod with that label would get the gateway's queries.
    """
    return {
        key: text
        for key, text in user_labels.items()
        if not key.startswith(labels.PREFIX) and not (key == labels.PICKER_APP and names.is_picker(text))
    }


def _render_deployment_label(replica: ModelReplica) -> dict[str, str]:
    """Return the label with the deployment's name, for people and for metrics."""
    deployment = replica.metadata.labels.get(labels.DEPLOYMENT)
    return {labels.DEPLOYMENT: deployment} if deployment else {}


def _render_command(replica: ModelReplica, engine: PlacedEngine, container: Container, *, serves: bool) -> Manifest:
    """Render image, command and arguments. An engine without a model of its own serves the ModelCache."""
    reads_cache = (
        serves
        and replica.spec.model_cache_ref is not None
        and not container.command
        and not has_flag(container, "--model")
        # SGLang's name for it; replicas of before revision 4 keep the arguments that they have
        and not (replica.spec.pod_revision >= 4 and has_flag(container, "--model-path"))
        and engine.type in {None, "vllm", "sglang"}
    )
    added = [f"--model={CACHE_PATH}", *_find_served_name_flags(replica, engine, container)] if reads_cache else []
    args = [*container.args, *added]
    return {
        "image": container.image,
        **({"command": list(container.command)} if container.command else {}),
        **({"args": args} if args else {}),
    }


def _find_served_name_flags(replica: ModelReplica, engine: PlacedEngine, container: Container) -> Sequence[str]:
    """Return flags for the model name that clients use, if the user gives none: not the path of a folder.

    Only vLLM and SGLang get them. Other programs may reject the flag and exit.
    """
    cache = replica.spec.model_cache_ref
    knows_flag = engine.type is not None or is_sglang(container) or "vllm" in container.image
    if not cache or replica.spec.pod_revision < 3 or not knows_flag or has_flag(container, "--served-model-name"):
        return []
    name = cache.repo or replica.metadata.labels.get(labels.DEPLOYMENT) or cache.name
    # Clients of vLLM may still use the path as the name. SGLang accepts any name, and takes only one.
    sglang = engine.type == "sglang" if engine.type else is_sglang(container)
    return ["--served-model-name", name, *([] if sglang else [CACHE_PATH])]


def _render_environment(
    replica: ModelReplica, member: PlacedMember, container: Container, part: Part, *, serves: bool
) -> Sequence[Manifest]:
    """Render the variables: those for gangs, the user's, which may refer to them, and those of the role.

    The API server rejects a repeated name. As in Kubernetes, the last value counts and keeps its position, because
    a variable may refer to earlier ones.
    """
    last_positions = {variable.name: position for position, variable in enumerate(container.env)}
    user_variables = {
        variable.name: _render_variable(replica, variable)
        for position, variable in enumerate(container.env)
        if last_positions[variable.name] == position
    }
    gang_variables = GANG_ENV if member.role != "Standalone" else ()
    keep_alive = KEEP_ALIVE if replica.spec.pod_revision >= 2 else ()
    own_variables = (*keep_alive, *part.env) if serves else ()
    no_devices = NO_DEVICES if replica.spec.pod_revision >= 4 else ()
    return [
        *(variable for variable in gang_variables if variable["name"] not in user_variables),
        *user_variables.values(),
        *(variable for variable in (*own_variables, *no_devices) if variable["name"] not in user_variables),
    ]


# vLLM and SGLang close a connection after five idle seconds, when a gateway or a sidecar may just be sending a
# request on it.
KEEP_ALIVE: tuple[Manifest, ...] = (
    {"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": "120"},
    {"name": "SGLANG_TIMEOUT_KEEP_ALIVE", "value": "120"},
)
"""Variables that make engines keep idle connections."""

# An image's variables, as CUDA's have them, make a node's runtime add all devices to a container. Claimed devices come
# by CDI, where drivers override these values. The value for "none" differs: Habana's runtime takes `void` for all.
_NO_DEVICE_VALUES = {"NVIDIA_VISIBLE_DEVICES": "void", "AMD_VISIBLE_DEVICES": "none", "HABANA_VISIBLE_DEVICES": "none"}
"""Values by which the runtimes' variables select no device."""
NO_DEVICES: tuple[Manifest, ...] = tuple({"name": name, "value": value} for name, value in _NO_DEVICE_VALUES.items())
"""Variables that prevent a node's runtime from adding devices."""

# LeaderWorkerSet sets the variables on the right in every pod.
GANG_ENV: tuple[Manifest, ...] = (
    {"name": "MODELPLANE_LEADER_ADDRESS", "value": "$(LWS_LEADER_ADDRESS)"},
    {"name": "MODELPLANE_RANK", "value": "$(LWS_WORKER_INDEX)"},
)
"""Variables for the members of a gang."""


def _render_variable(replica: ModelReplica, variable: Env) -> Manifest:
    """Render a user's variable. References point to the replica's copies."""
    origin = variable.value_from
    if origin and origin.secret_key_ref:
        return {
            "name": variable.name,
            "valueFrom": {"secretKeyRef": _refer_to_copy(replica, "Secret", origin.secret_key_ref)},
        }
    if origin and origin.config_map_key_ref:
        reference = _refer_to_copy(replica, "ConfigMap", origin.config_map_key_ref)
        return {"name": variable.name, "valueFrom": {"configMapKeyRef": reference}}
    return variable.to_manifest()


def _refer_to_copy(replica: ModelReplica, use: str, reference: KeyRef) -> Manifest:
    """Return a reference to a key of the replica's copy."""
    return {**reference.to_manifest(), "name": names.name_of_copy(replica.metadata.name, use, reference.name)}


def _render_affinity(workload: str, member: PlacedMember, *, is_apart: bool) -> Manifest:
    """Return the affinity of the pods of a member; nothing if any node of its pool will do."""
    colocation: Manifest = {}
    if member.topology_key:
        colocation |= _keep_gang_together(workload, member.topology_key)
    if member.sharing == "Device":
        colocation |= FILL_NODES
    affinity = apart({labels.WORKLOAD: workload}) if is_apart else {}
    if colocation:
        affinity = {**affinity, "podAffinity": colocation}
    return {"affinity": affinity} if affinity else {}


FILL_NODES: Final[Manifest] = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {
            "weight": 60,
            "podAffinityTerm": {
                "labelSelector": {"matchExpressions": [{"key": labels.WORKLOAD, "operator": "Exists"}]},
                "namespaceSelector": {},
                "topologyKey": labels.HOSTNAME,
            },
        }
    ]
}
"""Prefers nodes where engines already run, so that whole nodes stay free for models that need them. The copies of one
engine still prefer different nodes."""


def _keep_gang_together(workload: str, topology_key: str) -> Manifest:
    """Return a pod affinity that keeps the pods of one gang on nodes with the same value of a label."""
    term = {
        "labelSelector": {"matchLabels": {labels.WORKLOAD: workload}},
        "matchLabelKeys": [labels.GANG],
        "topologyKey": topology_key,
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _render_seccomp_profile(pod: PodSpec) -> Manifest:
    """Return the seccomp profile of a pod; the runtime's default, as under Docker, if the user names none."""
    profile = pod.security_context.seccomp_profile if pod.security_context else None
    return profile.to_manifest() if profile else {"type": "RuntimeDefault"}


def _render_security(container: Container) -> Manifest:
    """Render the security context of an engine: all capabilities dropped but those that the user adds."""
    capabilities = container.security_context.capabilities if container.security_context else None
    added = list(capabilities.add) if capabilities else []
    return {**UNPRIVILEGED, "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})}}


def _render_resources(container: Container, member: PlacedMember, claims: Iterable[str]) -> Manifest:
    """Render the resources: the user's values, and default requests for resources that the user does not mention.

    A limit counts as mentioned, because Kubernetes requests as much.
    """
    specified = container.resources.to_manifest() if container.resources else {}
    mentioned = {*specified.get("requests", ()), *specified.get("limits", ())}
    default = member.default_requests.to_manifest() if member.default_requests else {}
    requests = {
        **{name: amount for name, amount in default.items() if name not in mentioned},
        **specified.get("requests", {}),
    }
    claimed = [{"name": name} for name in claims]
    resources = {
        **({"claims": claimed} if claimed else {}),
        **({"requests": requests} if requests else {}),
        **({"limits": specified["limits"]} if "limits" in specified else {}),
    }
    return {"resources": resources} if resources else {}


def _ephemeral_name(number: int) -> str:
    return f"ephemeral-{number}"


def _render_ephemeral_volume(number: int, volume: EphemeralVolume) -> Manifest:
    """Render a volume that is deleted with the pod: on the node's disk, or of a StorageClass."""
    if volume.storage_class_name is None:
        return {"name": _ephemeral_name(number), "emptyDir": {"sizeLimit": volume.size}}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": volume.storage_class_name,
        "resources": {"requests": {"storage": volume.size}},
    }
    return {"name": _ephemeral_name(number), "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}


def _render_cache_volume(replica: ModelReplica) -> list[Manifest]:
    """Render the volume of the ModelCache, if the replica has one."""
    if not (cache := replica.spec.model_cache_ref):
        return []
    claim = cache.volume or names.cache_volume(replica.key.namespace, cache.name)
    return [{"name": "model-cache", "persistentVolumeClaim": {"claimName": claim}}]


def _render_cache_mount(replica: ModelReplica) -> list[Manifest]:
    """Render the mount of the ModelCache. It is read-only: the volume is shared with other engines."""
    read_only = {"readOnly": True} if replica.spec.pod_revision >= 4 else {}
    return [{"name": "model-cache", "mountPath": CACHE_PATH, **read_only}] if replica.spec.model_cache_ref else []


def _render_ports(port: int, engine: PlacedEngine, lifecycle: Lifecycle, revision: int) -> Manifest:
    """Render the ports of an engine and its probes."""
    health = engine.health or EngineHealth()
    health_port = health.port or port
    names_by_port = {port + rank: f"{PORT_NAME}-{rank}" if rank else PORT_NAME for rank in range(engine.ranks)}
    ports = [
        {"name": name, "containerPort": number, "protocol": "TCP"}
        for number, name in (
            names_by_port if health_port in names_by_port else {**names_by_port, health_port: "health"}
        ).items()
    ]
    return {"ports": ports, **probes(health_port, lifecycle, revision, path=health.path)}


def probes(port: int, lifecycle: Lifecycle, revision: int, *, path: str = "/health") -> Manifest:
    """Render the probes: started at the first answer, ready while it answers, restarted after five silent minutes.

    No probe has an initial delay: only the startup probe runs until the engine has started.
    """
    http_get = {"httpGet": {"path": path, "port": port}}
    grace = PROBE_GRACE if revision >= 2 else {}
    return {
        "startupProbe": {
            **http_get,
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": max(1, lifecycle.startup_seconds // 5),
            **grace,
        },
        "readinessProbe": {**http_get, **_readiness_timing(revision)},
        # An engine that reads long prompts may answer slowly, and a restart loses all of its work.
        "livenessProbe": {**http_get, "periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 10, **grace},
    }


def _readiness_timing(revision: int) -> Manifest:
    """Return the timing of the readiness probe: a failed engine gets no requests after ten seconds.

    The timeout is five seconds, because SGLang answers in about one: with the default of one, readiness would flap.
    """
    if revision >= 3:
        return {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 2}
    return {"periodSeconds": 10, "timeoutSeconds": 5}


def _render_hook(
    engine: PlacedEngine, member: PlacedMember, port: int, lifecycle: Lifecycle, revision: int
) -> Manifest:
    """Return the preStop hook of an engine: by its load since revision 3, else a sleep."""
    by_load = drain_by_load(engine, member, port, lifecycle.drain_seconds) if revision >= 3 else None
    return by_load or drain(lifecycle)


def drain(lifecycle: Lifecycle) -> Manifest:
    """Return a preStop hook that sleeps for the drain time."""
    return {"preStop": {"sleep": {"seconds": lifecycle.drain_seconds}}}


def _render_sidecar(part: Part, image: str, engine: PlacedEngine, lifecycle: Lifecycle, revision: int) -> Manifest:
    """Render the sidecar of a decode engine."""
    health = engine.health or EngineHealth()
    return {
        "name": "pd-sidecar",
        "image": image,
        "args": ["--secure-proxy=false", f"--kv-connector={part.connector}", f"--vllm-port={part.port}"],
        **({"env": [{"name": "SGLANG_BOOTSTRAP_PORT", "value": part.bootstrap_port}]} if part.bootstrap_port else {}),
        "ports": [{"name": "sidecar", "containerPort": SERVING_PORT, "protocol": "TCP"}],
        # The sidecar forwards this probe to the engine.
        "readinessProbe": {"httpGet": {"path": health.path, "port": SERVING_PORT}, **_readiness_timing(revision)},
        "lifecycle": drain(lifecycle),
        "securityContext": {**UNPRIVILEGED, "capabilities": {"drop": ["ALL"]}},
    }
