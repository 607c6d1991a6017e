"""The endpoint picker: it tells the gateway which pod of a replica is best for a request.

It prefers the pod that has seen the request's beginning before, and then the one with the shorter queue.
"""

from __future__ import annotations

import hashlib
import json

from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.pods import Container
from modelplane_operator.kube.objects import Manifest
from modelplane_operator.rendering.images import TESTED, Images
from modelplane_operator.rendering.kubelets import LOST, PROBE_GRACE
from modelplane_operator.rendering.model_replica.arguments import flag_value, is_sglang
from modelplane_operator.rendering.model_replica.part import SERVING_PORT, serving_container
from modelplane_operator.rendering.model_replica.pods import DEFAULT_LIFECYCLE, Lifecycle, drain
from modelplane_operator.rendering.owned import on_cluster, owner_labels

POOL_GROUP = "inference.networking.k8s.io"
GRPC_PORT = 9002
HEALTH_PORT = 9003
METRICS_PORT = 9090
METRICS_PORT_NAME = "metrics"
CONFIG_FILE = "epp-config.yaml"
KV_BLOCK_SIZE = 16  # what engines use when they are not told


def render_pool(replica: ModelReplica) -> Manifest:
    """The pods of the replica that answer requests, and who picks among them."""
    return {
        "apiVersion": f"{POOL_GROUP}/v1",
        "kind": "InferencePool",
        "metadata": on_cluster(replica, names.inference_pool(replica.metadata.name)),
        "spec": {
            "selector": {"matchLabels": {labels.SERVING: replica.metadata.name}},
            "targetPorts": [{"number": SERVING_PORT + rank} for rank in range(replica.spec.engines[0].ranks)],
            "endpointPickerRef": {
                "name": names.picker(replica.metadata.name),
                "port": {"number": GRPC_PORT},
                "failureMode": "FailOpen",  # any pod is better than none
            },
        },
    }


def render_picker(
    replica: ModelReplica, images: Images = TESTED, lifecycle: Lifecycle = DEFAULT_LIFECYCLE
) -> tuple[Manifest, ...]:
    """The picker of a replica, with what it may read and how it judges."""
    config = picker_config(replica)
    return (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": _metadata(replica),
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": _metadata(replica),
            "rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": READ},
                {"apiGroups": [POOL_GROUP], "resources": ["inferencepools"], "verbs": READ},
                {
                    "apiGroups": ["inference.networking.x-k8s.io"],
                    "resources": ["inferenceobjectives", "inferencemodelrewrites"],
                    "verbs": READ,
                },
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": _metadata(replica),
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": names.picker(replica.metadata.name),
            },
            "subjects": [
                {
                    "kind": "ServiceAccount",
                    "name": names.picker(replica.metadata.name),
                    "namespace": names.remote_namespace(replica.key.namespace),
                }
            ],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(replica),
            "data": {CONFIG_FILE: config},
        },
        _deployment(replica, config, images.of_picker(replica.spec.pod_revision), lifecycle),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(replica),
            "spec": {
                # Whatever this selects is asked by the gateway where requests go, and may answer any address.
                "selector": _ours(replica)
                if replica.spec.pod_revision >= 2
                else {labels.PICKER_APP: names.picker(replica.metadata.name)},
                "ports": [
                    {
                        "name": "grpc-ext-proc",
                        "port": GRPC_PORT,
                        "targetPort": GRPC_PORT,
                        "protocol": "TCP",
                        "appProtocol": "http2",
                    }
                ],
            },
        },
    )


READ = ["get", "list", "watch"]


def _metadata(replica: ModelReplica) -> Manifest:
    return on_cluster(replica, names.picker(replica.metadata.name))


def _ours(replica: ModelReplica) -> dict[str, str]:
    return {labels.PICKER: names.picker(replica.metadata.name)}


def _deployment(replica: ModelReplica, config: str, image: str, lifecycle: Lifecycle) -> Manifest:
    name = names.picker(replica.metadata.name)
    in_the_path = replica.spec.pod_revision >= 2
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(replica),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {labels.PICKER_APP: name}},
            "template": {
                "metadata": {
                    "labels": {
                        **owner_labels(replica),
                        labels.PICKER_APP: name,
                        **(_ours(replica) if in_the_path else {}),
                    },
                    # The picker reads its file once: another file is another pod.
                    "annotations": {labels.PICKER_CONFIG_CHECKSUM: hashlib.sha256(config.encode()).hexdigest()},
                },
                "spec": {
                    "serviceAccountName": name,
                    "enableServiceLinks": False,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    # Without the picker a gateway refuses every request: it stays as long as engines answer theirs, and
                    # is had back as soon as a gateway where its node is silent.
                    **({"terminationGracePeriodSeconds": lifecycle.grace_seconds} if in_the_path else {}),
                    **({"tolerations": LOST} if in_the_path else {}),
                    "volumes": [{"name": "config", "configMap": {"name": name}}],
                    "containers": [
                        {
                            "name": "epp",
                            "image": image,
                            "args": [
                                f"--pool-name={names.inference_pool(replica.metadata.name)}",
                                f"--pool-namespace={names.remote_namespace(replica.key.namespace)}",
                                f"--pool-group={POOL_GROUP}",
                                f"--config-file=/config/{CONFIG_FILE}",
                                f"--grpc-port={GRPC_PORT}",
                                # Its metrics are for who may reach its pod; it has no permission to look up who asks.
                                *(["--metrics-endpoint-auth=false"] if in_the_path else []),
                            ],
                            "ports": [
                                {"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"},
                                {"name": "grpc-health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
                                *([_METRICS] if in_the_path else []),
                            ],
                            **(_probes(lifecycle) if in_the_path else _ANY_CONNECTION),
                            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
                            "volumeMounts": [{"name": "config", "mountPath": "/config", "readOnly": True}],
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        }
                    ],
                },
            },
        },
    }


_METRICS = {"name": METRICS_PORT_NAME, "containerPort": METRICS_PORT, "protocol": "TCP"}
_ANY_CONNECTION = {"readinessProbe": {"tcpSocket": {"port": GRPC_PORT}, "periodSeconds": 5}}


def _probes(lifecycle: Lifecycle) -> Manifest:
    """Ready while it knows its pool; restarted after a minute and a half in which it does not say so."""
    ask = {"grpc": {"port": HEALTH_PORT}, "timeoutSeconds": 5}
    return {
        "readinessProbe": {**ask, "periodSeconds": 5},
        "livenessProbe": {**ask, "periodSeconds": 15, "failureThreshold": 6, **PROBE_GRACE},
        "lifecycle": drain(lifecycle),
    }


def picker_config(replica: ModelReplica) -> str:
    """The picker's configuration: JSON, which is YAML too, and reads the same whatever wrote it."""
    config = _split(replica) if replica.spec.is_split else _unified(replica)
    return json.dumps(config, indent=2) + "\n"


def _unified(replica: ModelReplica) -> Manifest:
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": _judges(_block_size(replica)),
        "schedulingProfiles": [{"name": "default", "plugins": JUDGEMENT}],
    }


def _split(replica: ModelReplica) -> Manifest:
    decode = _told(replica)
    # An engine of SGLang that decodes cannot read a prompt itself.
    always = decode is not None and is_sglang(decode)
    decider = _ALWAYS if always else _BY_PREFIX
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            *_judges(_block_size(replica)),
            {"type": "disagg-headers-handler"},
            {"type": "prefill-filter"},
            {"type": "decode-filter"},
            decider,
            {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": decider["type"]}}},
        ],
        "schedulingProfiles": [
            {"name": "prefill", "plugins": [{"pluginRef": "prefill-filter"}, *JUDGEMENT]},
            {"name": "decode", "plugins": [{"pluginRef": "decode-filter"}, *JUDGEMENT]},
        ],
    }


_ALWAYS: Manifest = {"type": "always-disagg-pd-decider"}
# Below this many tokens that no pod has seen, the decode engine does the prompt itself. The default of 0 would never
# split.
_BY_PREFIX: Manifest = {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 16}}

JUDGEMENT = [
    {"pluginRef": "max-score-picker"},
    {"pluginRef": "prefix-cache-scorer", "weight": 2},
    {"pluginRef": "queue-scorer", "weight": 1},
]


def _judges(block_size: int) -> list[Manifest]:
    return [
        {
            # The decider and the scorer read what only this one writes, and it writes nothing when left to tune itself.
            "type": "approx-prefix-cache-producer",
            "parameters": {
                "autoTune": False,
                "blockSizeTokens": block_size,
                "maxPrefixBlocksToMatch": 256,
                "lruCapacityPerServer": 31250,
            },
        },
        {"type": "prefix-cache-scorer"},
        {"type": "queue-scorer"},
        {"type": "max-score-picker"},
    ]


def _block_size(replica: ModelReplica) -> int:
    """The block size of the engine's cache, from its command line."""
    container = _told(replica)
    text = flag_value(container, "--block-size", "--page-size") if container else None
    readable = text is not None and text.isascii() and text.isdecimal() and int(text) > 0
    return int(text) if text is not None and readable else KV_BLOCK_SIZE


def _told(replica: ModelReplica) -> Container | None:
    """The container whose arguments speak for all: of the decode engine, or of the first."""
    engines = replica.spec.engines
    return serving_container(next((engine for engine in engines if engine.phase == "Decode"), engines[0]))
