"""The pods of an engine: the user's container, and all that the placement adds to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.engines import EngineHealth
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine, PlacedMember
from modelplane_operator.api.pods import Container, Env, EphemeralVolume, KeyRef, PodSpec
from modelplane_operator.models.replica.render.arguments import has_flag, is_sglang
from modelplane_operator.models.replica.render.claims import pod_claims
from modelplane_operator.models.replica.render.draining import drain_by_load
from modelplane_operator.models.replica.render.kubelets import PROBE_GRACE, apart, spread
from modelplane_operator.models.replica.render.part import SERVING_PORT, Part
from modelplane_operator.owned import owner_labels

CACHE_PATH = "/mnt/models"
PORT_NAME = "http"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """How long an engine may take."""

    startup_seconds: int = 3600
    """From the container's start until it answers: some engines load a terabyte, some compile for half an hour."""
    drain_seconds: int = 300
    """From the decision to end a pod, whoever takes it, until its engine is told. The gateways take it out of rotation
    meanwhile, and its answers end: an engine that is told stops at once, and breaks them off."""
    grace_seconds: int = 360
    """From that decision until the engine is killed: longer than the drain, which it includes."""

    def at(self, revision: int) -> Lifecycle:
        """The same for pods of that revision: what nobody has chosen is what it was then."""
        if revision >= 2 or (self.drain_seconds, self.grace_seconds) != _CHOSEN_BY_NOBODY:
            return self
        return replace(self, drain_seconds=20, grace_seconds=90)

    def of(self, replica: ModelReplica, engine: PlacedEngine) -> Lifecycle:
        """The same for one engine, which may take its own time to start, and longer for more weights."""
        cache = replica.spec.model_cache_ref if replica.spec.pod_revision >= 3 else None
        size = cache.size_gib if cache else None
        loads = size * LOADING_SECONDS_PER_GIB + COMPILING_SECONDS if size else 0
        return replace(self, startup_seconds=engine.startup_seconds or max(self.startup_seconds, loads))


LOADING_SECONDS_PER_GIB: Final = 5  # from a file system that many share: 200 MiB in a second
COMPILING_SECONDS: Final = 1800
DEFAULT_LIFECYCLE = Lifecycle()
_CHOSEN_BY_NOBODY = (DEFAULT_LIFECYCLE.drain_seconds, DEFAULT_LIFECYCLE.grace_seconds)


def render_pod(
    replica: ModelReplica, engine: PlacedEngine, member: PlacedMember, part: Part, lifecycle: Lifecycle
) -> Manifest:
    """The pod template of a member that has a pod."""
    pod = member.template.spec
    if pod is None:
        raise ValueError(f"the {member.role} of engine {engine.name} has no pod")
    user = member.template.metadata
    claims = pod_claims(replica, engine, member)
    serves = member.role != "Worker" or engine.workers_serve
    revision = replica.spec.pod_revision
    name = names.workload(replica.metadata.name, engine.name)
    is_spread = revision >= 2 and engine.copies > 1 and member.role == "Standalone"
    env = _environment(replica, member, pod.containers[0], part, serves=serves)
    pull_secrets = dict.fromkeys(secret.name for secret in pod.image_pull_secrets)
    return {
        "metadata": {
            "labels": {
                **(_harmless(user.labels) if user else {}),
                **owner_labels(replica),
                **_deployment_label(replica),
                labels.WORKLOAD: name,
                **({labels.SERVING: replica.metadata.name, **part.labels} if serves else {}),
                **({labels.GANG_ROLE: "leader"} if member.role == "Leader" else {}),
            },
            **({"annotations": user.annotations} if user and user.annotations else {}),
        },
        "spec": {
            "nodeSelector": {labels.POOL: member.node_pool_name},
            **({"topologySpreadConstraints": spread({labels.WORKLOAD: name})} if is_spread and revision < 4 else {}),
            **({"affinity": apart({labels.WORKLOAD: name})} if is_spread and revision >= 4 else {}),
            **(_together(name, member.topology_key) if member.topology_key else {}),
            "tolerations": [GPU_TOLERATION, *(toleration.to_manifest() for toleration in pod.tolerations)],
            **({"serviceAccountName": pod.service_account_name} if pod.service_account_name else {}),
            **({"priorityClassName": pod.priority_class_name} if pod.priority_class_name else {}),
            # Without these two a Service called `vllm` would set VLLM_PORT in every engine, and every engine could
            # speak to the API server.
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": {"seccompProfile": _seccomp(pod)},
            "terminationGracePeriodSeconds": lifecycle.grace_seconds,
            **(
                {
                    "imagePullSecrets": [
                        {"name": names.copied(replica.metadata.name, "PullSecret", name)} for name in pull_secrets
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
                *_cache_volume(replica),
                *(_ephemeral(number, volume) for number, volume in enumerate(pod.ephemeral_volumes)),
            ],
            "containers": [
                {
                    "name": "engine",
                    **_command(replica, engine, pod.containers[0], serves=serves),
                    **({"env": env} if env else {}),
                    **(_asked(part.port, engine, lifecycle, revision) if serves else {}),
                    "lifecycle": _drain(engine, member, part.port, lifecycle, revision),
                    **_resources(pod.containers[0], member, claims),
                    "volumeMounts": [
                        {"name": "dshm", "mountPath": "/dev/shm"},  # noqa: S108
                        *_cache_mount(replica),
                        *(
                            {"name": _ephemeral_name(number), "mountPath": volume.mount_path}
                            for number, volume in enumerate(pod.ephemeral_volumes)
                        ),
                    ],
                    "securityContext": _security(pod.containers[0]) if revision >= 1 else UNPRIVILEGED,
                },
                *(
                    [_sidecar(part, part.sidecar_image, engine, lifecycle, revision)]
                    if serves and part.sidecar_image
                    else []
                ),
            ],
        },
    }


GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
UNPRIVILEGED = {"allowPrivilegeEscalation": False}


def _harmless(users: Mapping[str, str]) -> dict[str, str]:
    """A user's labels but for those that our Services select by, whatever the cluster allows, or did.

    `app` of a picker stands in the Services of pickers of before: a pod with it would be asked where requests go.
    """
    return {
        key: text
        for key, text in users.items()
        if not key.startswith(labels.PREFIX) and not (key == labels.PICKER_APP and names.is_picker(text))
    }


def _deployment_label(replica: ModelReplica) -> dict[str, str]:
    """So that people find the pods of a deployment, and metrics carry its name."""
    deployment = replica.metadata.labels.get(labels.DEPLOYMENT)
    return {labels.DEPLOYMENT: deployment} if deployment else {}


def _command(replica: ModelReplica, engine: PlacedEngine, container: Container, *, serves: bool) -> Manifest:
    reads_cache = (
        serves
        and replica.spec.model_cache_ref is not None
        and not container.command
        and not has_flag(container, "--model")
        and engine.type in {None, "vllm", "sglang"}
    )
    added = [f"--model={CACHE_PATH}", *_served_name(replica, engine, container)] if reads_cache else []
    args = [*container.args, *added]
    return {
        "image": container.image,
        **({"command": list(container.command)} if container.command else {}),
        **({"args": args} if args else {}),
    }


def _served_name(replica: ModelReplica, engine: PlacedEngine, container: Container) -> Sequence[str]:
    """The name that clients know what is in the cache by, where nobody has given one: not the path of a folder.

    Other programs than vLLM and SGLang may not know the flag, and end.
    """
    cache = replica.spec.model_cache_ref
    knows_flag = engine.type is not None or is_sglang(container) or "vllm" in container.image
    if not cache or replica.spec.pod_revision < 3 or not knows_flag or has_flag(container, "--served-model-name"):
        return []
    name = cache.repo or replica.metadata.labels.get(labels.DEPLOYMENT) or cache.name
    # Of vLLM, clients have asked for the path until now; SGLang takes any name, and is given one.
    sglang = engine.type == "sglang" if engine.type else is_sglang(container)
    return ["--served-model-name", name, *([] if sglang else [CACHE_PATH])]


def _environment(
    replica: ModelReplica, member: PlacedMember, container: Container, part: Part, *, serves: bool
) -> Sequence[Manifest]:
    """Ours for gangs, then the user's, which may refer to it, then what the part adds, and that no devices are given.

    A name that stands twice would be refused. As in Kubernetes, the last value counts, where it stands: a variable may
    refer to those before it.
    """
    last = {variable.name: position for position, variable in enumerate(container.env)}
    users = {
        variable.name: _variable(replica, variable)
        for position, variable in enumerate(container.env)
        if last[variable.name] == position
    }
    ours = GANG_ENV if member.role != "Standalone" else ()
    kept_alive = KEEP_ALIVE if replica.spec.pod_revision >= 2 else ()
    added = (*kept_alive, *part.env) if serves else ()
    no_devices = NO_DEVICES if replica.spec.pod_revision >= 4 else ()
    return [
        *(variable for variable in ours if variable["name"] not in users),
        *users.values(),
        *(variable for variable in (*added, *no_devices) if variable["name"] not in users),
    ]


# vLLM and SGLang end a connection that was idle for five seconds, just as a gateway or a sidecar may be sending a
# request on it.
KEEP_ALIVE: tuple[Manifest, ...] = (
    {"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": "120"},
    {"name": "SGLANG_TIMEOUT_KEEP_ALIVE", "value": "120"},
)

# By what an image says, as those with CUDA do, a node's runtime gives a container all devices there. Claims are met by
# CDI: drivers put their own values over these. What means nothing differs by runtime: Habana's takes `void` for all.
_NOTHING = {"NVIDIA_VISIBLE_DEVICES": "void", "AMD_VISIBLE_DEVICES": "none", "HABANA_VISIBLE_DEVICES": "none"}
NO_DEVICES: tuple[Manifest, ...] = tuple({"name": name, "value": value} for name, value in _NOTHING.items())

# The controller of gangs sets the variables on the right in every pod.
GANG_ENV: tuple[Manifest, ...] = (
    {"name": "MODELPLANE_LEADER_ADDRESS", "value": "$(LWS_LEADER_ADDRESS)"},
    {"name": "MODELPLANE_RANK", "value": "$(LWS_WORKER_INDEX)"},
)


def _variable(replica: ModelReplica, variable: Env) -> Manifest:
    """The user's variable, reading from the replica's copy of what it names."""
    origin = variable.value_from
    if origin and origin.secret_key_ref:
        return {"name": variable.name, "valueFrom": {"secretKeyRef": _copied(replica, "Secret", origin.secret_key_ref)}}
    if origin and origin.config_map_key_ref:
        reference = _copied(replica, "ConfigMap", origin.config_map_key_ref)
        return {"name": variable.name, "valueFrom": {"configMapKeyRef": reference}}
    return variable.to_manifest()


def _copied(replica: ModelReplica, use: str, reference: KeyRef) -> Manifest:
    return {**reference.to_manifest(), "name": names.copied(replica.metadata.name, use, reference.name)}


def _together(workload: str, topology_key: str) -> Manifest:
    """The pods of one gang on nodes with one value of a label."""
    term = {
        "labelSelector": {"matchLabels": {labels.WORKLOAD: workload}},
        "matchLabelKeys": [labels.GANG],
        "topologyKey": topology_key,
    }
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def _seccomp(pod: PodSpec) -> Manifest:
    """What engines have under Docker too, unless a profile is named."""
    profile = pod.security_context.seccomp_profile if pod.security_context else None
    return profile.to_manifest() if profile else {"type": "RuntimeDefault"}


def _security(container: Container) -> Manifest:
    given = container.security_context.capabilities if container.security_context else None
    more = list(given.add) if given else []
    return {**UNPRIVILEGED, "capabilities": {"drop": ["ALL"], **({"add": more} if more else {})}}


def _resources(container: Container, member: PlacedMember, claims: Iterable[str]) -> Manifest:
    """The user's word, and the default where there is none. A limit is a word too: Kubernetes requests as much."""
    given = container.resources.to_manifest() if container.resources else {}
    said = {*given.get("requests", ()), *given.get("limits", ())}
    default = member.default_requests.to_manifest() if member.default_requests else {}
    requests = {**{name: amount for name, amount in default.items() if name not in said}, **given.get("requests", {})}
    claimed = [{"name": name} for name in claims]
    resources = {
        **({"claims": claimed} if claimed else {}),
        **({"requests": requests} if requests else {}),
        **({"limits": given["limits"]} if "limits" in given else {}),
    }
    return {"resources": resources} if resources else {}


def _ephemeral_name(number: int) -> str:
    return f"ephemeral-{number}"


def _ephemeral(number: int, volume: EphemeralVolume) -> Manifest:
    """A folder on the node's disk, or a volume of a class that goes with the pod."""
    if volume.storage_class_name is None:
        return {"name": _ephemeral_name(number), "emptyDir": {"sizeLimit": volume.size}}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": volume.storage_class_name,
        "resources": {"requests": {"storage": volume.size}},
    }
    return {"name": _ephemeral_name(number), "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}


def _cache_volume(replica: ModelReplica) -> list[Manifest]:
    if not (cache := replica.spec.model_cache_ref):
        return []
    claim = cache.volume or names.cache_volume(replica.key.namespace, cache.name)
    return [{"name": "model-cache", "persistentVolumeClaim": {"claimName": claim}}]


def _cache_mount(replica: ModelReplica) -> list[Manifest]:
    """Weights are read: whoever could write them would write those of every engine that has the volume."""
    reads = {"readOnly": True} if replica.spec.pod_revision >= 4 else {}
    return [{"name": "model-cache", "mountPath": CACHE_PATH, **reads}] if replica.spec.model_cache_ref else []


def _asked(port: int, engine: PlacedEngine, lifecycle: Lifecycle, revision: int) -> Manifest:
    """The ports of an engine, and how a kubelet asks it."""
    health = engine.health or EngineHealth()
    asked = health.port or port
    names_of = {port + rank: f"{PORT_NAME}-{rank}" if rank else PORT_NAME for rank in range(engine.ranks)}
    ports = [
        {"name": name, "containerPort": number, "protocol": "TCP"}
        for number, name in (names_of if asked in names_of else {**names_of, asked: "health"}).items()
    ]
    return {"ports": ports, **probes(asked, lifecycle, revision, path=health.path)}


def probes(port: int, lifecycle: Lifecycle, revision: int, *, path: str = "/health") -> Manifest:
    """Started once it has answered; ready while it answers; restarted after five minutes of silence.

    Nothing waits before the first question: until an engine has started, only the startup probe asks.
    """
    ask = {"httpGet": {"path": path, "port": port}}
    grace = PROBE_GRACE if revision >= 2 else {}
    return {
        "startupProbe": {
            **ask,
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": max(1, lifecycle.startup_seconds // 5),
            **grace,
        },
        "readinessProbe": {**ask, **_readiness(revision)},
        # An engine deep in long prompts may be slow to answer, and a restart costs all of its work.
        "livenessProbe": {**ask, "periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 10, **grace},
    }


def _readiness(revision: int) -> Manifest:
    """How often it is asked: one that is dead refuses at once, and gets no more requests after ten seconds.

    One that is busy has ten seconds as well. SGLang answers in about one: with the default timeout of one, readiness
    would flap.
    """
    if revision >= 3:
        return {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 2}
    return {"periodSeconds": 10, "timeoutSeconds": 5}


def _drain(engine: PlacedEngine, member: PlacedMember, port: int, lifecycle: Lifecycle, revision: int) -> Manifest:
    by_load = drain_by_load(engine, member, port, lifecycle.drain_seconds) if revision >= 3 else None
    return by_load or drain(lifecycle)


def drain(lifecycle: Lifecycle) -> Manifest:
    return {"preStop": {"sleep": {"seconds": lifecycle.drain_seconds}}}


def _sidecar(part: Part, image: str, engine: PlacedEngine, lifecycle: Lifecycle, revision: int) -> Manifest:
    health = engine.health or EngineHealth()
    return {
        "name": "pd-sidecar",
        "image": image,
        "args": ["--secure-proxy=false", f"--kv-connector={part.connector}", f"--vllm-port={part.port}"],
        **({"env": [{"name": "SGLANG_BOOTSTRAP_PORT", "value": part.bootstrap_port}]} if part.bootstrap_port else {}),
        "ports": [{"name": "sidecar", "containerPort": SERVING_PORT, "protocol": "TCP"}],
        # What is asked here, the sidecar asks of the engine.
        "readinessProbe": {"httpGet": {"path": health.path, "port": SERVING_PORT}, **_readiness(revision)},
        "lifecycle": drain(lifecycle),
        "securityContext": {**UNPRIVILEGED, "capabilities": {"drop": ["ALL"]}},
    }
