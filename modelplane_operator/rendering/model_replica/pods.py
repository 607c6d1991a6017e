"""The pods of an engine: the user's container, and all that the placement adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from modelplane_operator.api import labels, names
from modelplane_operator.api.model import Manifest
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine, PlacedMember
from modelplane_operator.api.shared import Container, Env, KeyRef
from modelplane_operator.rendering.model_replica.arguments import has_flag
from modelplane_operator.rendering.model_replica.claims import claim_template_name
from modelplane_operator.rendering.model_replica.part import SERVING_PORT, Part
from modelplane_operator.rendering.owned import owner_labels

CACHE_PATH = "/mnt/models"
REVISION: Final = 1
"""Of what is ours in a pod. Whoever changes that raises it, and keeps what replicas of before have until they are
changed in their turn: an upgrade of the operator must not restart every engine of the fleet at once.

1: capabilities are dropped, and /dev/shm has a size.
"""
PORT_NAME = "http"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """How long an engine may take."""

    startup_seconds: int = 3600
    """From the container's start until it answers: some engines load a terabyte, some compile for half an hour."""
    drain_seconds: int = 20
    """From the decision to end a pod until its engine is told. The gateways take it out of rotation meanwhile: an
    engine that is told stops at once, and breaks off its answers."""
    grace_seconds: int = 90
    """From that decision until the engine is killed: longer than the drain, which it includes."""


DEFAULT_LIFECYCLE = Lifecycle()


def render_pod(
    replica: ModelReplica, engine: PlacedEngine, member: PlacedMember, part: Part, lifecycle: Lifecycle
) -> Manifest:
    """The pod template of a member that has a pod."""
    pod = member.template.spec
    if pod is None:
        raise ValueError(f"the {member.role} of engine {engine.name} has no pod")
    user = member.template.metadata
    claim = claim_template_name(replica, engine, member) if member.device_requests else None
    serves = member.role != "Worker"
    hardened = replica.spec.pod_revision >= 1
    env = _environment(replica, member, pod.containers[0], part)
    pull_secrets = dict.fromkeys(secret.name for secret in pod.image_pull_secrets)
    return {
        "metadata": {
            "labels": {
                **(user.labels if user else {}),
                **owner_labels(replica),
                **_deployment_label(replica),
                labels.WORKLOAD: names.workload(replica.metadata.name, engine.name),
                **({labels.SERVING: replica.metadata.name, **part.labels} if serves else {}),
                **({labels.GANG_ROLE: "leader"} if member.role == "Leader" else {}),
            },
            **({"annotations": user.annotations} if user and user.annotations else {}),
        },
        "spec": {
            "nodeSelector": {labels.POOL: member.node_pool_name},
            "tolerations": [GPU_TOLERATION],
            # Without these two a Service called `vllm` would set VLLM_PORT in every engine, and every engine could
            # speak to the API server.
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},  # what engines have under Docker too
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
            **({"resourceClaims": [{"name": CLAIM, "resourceClaimTemplateName": claim}]} if claim else {}),
            "volumes": [
                {
                    "name": "dshm",
                    "emptyDir": {
                        "medium": "Memory",
                        **({"sizeLimit": pod.shared_memory_size} if pod.shared_memory_size else {}),
                    },
                },
                *_cache_volume(replica),
            ],
            "containers": [
                {
                    "name": "engine",
                    **_command(replica, pod.containers[0], serves=serves),
                    **({"env": env} if env else {}),
                    **({"ports": [_port(part.port)], **_probes(part.port, lifecycle)} if serves else {}),
                    "lifecycle": _drain(lifecycle),
                    **({"resources": {"claims": [{"name": CLAIM}]}} if claim else {}),
                    "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}, *_cache_mount(replica)],  # noqa: S108
                    "securityContext": {**UNPRIVILEGED, **(NO_CAPABILITIES if hardened else {})},
                },
                *([_sidecar(part, part.sidecar_image, lifecycle)] if serves and part.sidecar_image else []),
            ],
        },
    }


CLAIM = "devices"
GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
UNPRIVILEGED = {"allowPrivilegeEscalation": False}
NO_CAPABILITIES = {"capabilities": {"drop": ["ALL"]}}


def _deployment_label(replica: ModelReplica) -> dict[str, str]:
    """So that people find the pods of a deployment, and metrics carry its name."""
    deployment = replica.metadata.labels.get(labels.DEPLOYMENT)
    return {labels.DEPLOYMENT: deployment} if deployment else {}


def _command(replica: ModelReplica, container: Container, *, serves: bool) -> Manifest:
    reads_cache = (
        serves and replica.spec.model_cache_ref and not container.command and not has_flag(container, "--model")
    )
    args = [*container.args, *([f"--model={CACHE_PATH}"] if reads_cache else [])]
    return {
        "image": container.image,
        **({"command": list(container.command)} if container.command else {}),
        **({"args": args} if args else {}),
    }


def _environment(replica: ModelReplica, member: PlacedMember, container: Container, part: Part) -> Sequence[Manifest]:
    """Ours for gangs, then the user's, which may refer to it, then what the part adds.

    A name that stands twice would be refused: the user's last word counts.
    """
    users = {variable.name: _variable(replica, variable) for variable in container.env}
    ours = GANG_ENV if member.role != "Standalone" else ()
    added = part.env if member.role != "Worker" else ()
    return [
        *(variable for variable in ours if variable["name"] not in users),
        *users.values(),
        *(variable for variable in added if variable["name"] not in users),
    ]


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


def _cache_volume(replica: ModelReplica) -> list[Manifest]:
    if not (cache := replica.spec.model_cache_ref):
        return []
    claim = names.cache_volume(replica.key.namespace, cache.name)
    return [{"name": "model-cache", "persistentVolumeClaim": {"claimName": claim}}]


def _cache_mount(replica: ModelReplica) -> list[Manifest]:
    """Writable: engines put tokenizers, compiled kernels and locks beside the weights."""
    return [{"name": "model-cache", "mountPath": CACHE_PATH}] if replica.spec.model_cache_ref else []


def _port(number: int) -> Manifest:
    return {"name": PORT_NAME, "containerPort": number, "protocol": "TCP"}


def _probes(port: int, lifecycle: Lifecycle) -> Manifest:
    """Started once it has answered; ready while it answers; restarted after five minutes of silence.

    Nothing waits before the first question: until an engine has started, only the startup probe asks.
    """
    ask = {"httpGet": {"path": "/health", "port": port}}
    return {
        "startupProbe": {
            **ask,
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": max(1, lifecycle.startup_seconds // 5),
        },
        # SGLang answers in about a second: with the default timeout of one, readiness would flap.
        "readinessProbe": {**ask, "periodSeconds": 10, "timeoutSeconds": 5},
        # An engine deep in long prompts may be slow to answer, and a restart costs all of its work.
        "livenessProbe": {**ask, "periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 10},
    }


def _drain(lifecycle: Lifecycle) -> Manifest:
    return {"preStop": {"sleep": {"seconds": lifecycle.drain_seconds}}}


def _sidecar(part: Part, image: str, lifecycle: Lifecycle) -> Manifest:
    return {
        "name": "pd-sidecar",
        "image": image,
        "args": ["--secure-proxy=false", "--kv-connector=nixlv2", f"--vllm-port={part.port}"],
        "ports": [{"name": "sidecar", "containerPort": SERVING_PORT, "protocol": "TCP"}],
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": SERVING_PORT},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        },
        "lifecycle": _drain(lifecycle),
        "securityContext": {**UNPRIVILEGED, **NO_CAPABILITIES},
    }
