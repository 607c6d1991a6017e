"""The endpoint picker: it tells the gateway which pod of a replica is best for a request.

How much of the prompt a pod has read before and how short its queue is count the same, so that no prefix draws requests
to a pod while others idle (docs/decisions/0124).
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta

from modelplane_operator.api import labels, names
from modelplane_operator.api.certificate import Certificate
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.pods import Container
from modelplane_operator.kube.objects import Manifest
from modelplane_operator.rendering.images import TESTED, Images
from modelplane_operator.rendering.kubelets import LOST, PROBE_GRACE
from modelplane_operator.rendering.model_replica.arguments import flag_value
from modelplane_operator.rendering.model_replica.part import ports, runs_sglang, serving_container
from modelplane_operator.rendering.model_replica.pods import DEFAULT_LIFECYCLE, Lifecycle, drain
from modelplane_operator.rendering.owned import on_cluster, owner_labels

POOL_GROUP = "inference.networking.k8s.io"
LLM_D = "llm-d.ai"
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
            "targetPorts": [{"number": port} for port in ports(replica)],
            "endpointPickerRef": {
                "name": names.picker(replica.metadata.name),
                "port": {"number": GRPC_PORT},
                "failureMode": "FailOpen",  # Envoy AI Gateway ignores it: the route leads past a silent picker instead
            },
        },
    }


def pickers(replica: ModelReplica) -> int:
    """Return how many pods the picker of a replica has: each answers, and knows what it has sent where."""
    return 2 if replica.spec.pod_revision >= 3 else 1


def render_picker(
    replica: ModelReplica, images: Images = TESTED, lifecycle: Lifecycle = DEFAULT_LIFECYCLE, *, full: bool = True
) -> tuple[Manifest, ...]:
    """The picker of a replica, with what it may read and how it judges.

    `full`: the operator may give it all that it can use; an account of before may not.
    """
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
                # Where these are served it ends unless it may read them; its own project's group comes first.
                *(
                    {
                        "apiGroups": [group],
                        "resources": ["inferenceobjectives", "inferencemodelrewrites"],
                        "verbs": READ,
                    }
                    for group in (*([LLM_D] if full else []), "inference.networking.x-k8s.io")
                ),
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
    in_the_path, certified = replica.spec.pod_revision >= 2, replica.spec.pod_revision >= 3
    certificate = {"name": "certificate", "secret": {"secretName": name}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(replica),
        "spec": {
            "replicas": pickers(replica),
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
                    **({"topologySpreadConstraints": [_apart(name)]} if certified else {}),
                    "volumes": [{"name": "config", "configMap": {"name": name}}, *([certificate] if certified else [])],
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
                                *(_HARDENED if certified else []),
                            ],
                            "ports": [
                                {"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"},
                                {"name": "grpc-health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
                                *([_METRICS] if in_the_path else []),
                            ],
                            **(_probes(lifecycle, certified=certified) if in_the_path else _ANY_CONNECTION),
                            "resources": _RESOURCES if certified else {"requests": {"cpu": "100m", "memory": "256Mi"}},
                            "volumeMounts": [
                                {"name": "config", "mountPath": "/config", "readOnly": True},
                                *(
                                    [{"name": "certificate", "mountPath": CERTIFICATE_PATH, "readOnly": True}]
                                    if certified
                                    else []
                                ),
                            ],
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


# Measured with v0.9.0: 1.7 ms of CPU for a request of 2 kB and 5 ms for one of 40 kB; 250 MiB at 40 kB, and nine times
# its size for each body that is under way. Beyond the limit it ends, and its other pod answers.
_RESOURCES: Manifest = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}}
CERTIFICATE_PATH = "/certificate"
_HARDENED = [
    # Without a certificate it makes an RSA key first, for up to eight seconds in which it says that it serves.
    f"--cert-path={CERTIFICATE_PATH}",
    "--tracing=false",  # a client's header would have it print a request to its log
    "--enable-pprof=false",
]


def _apart(name: str) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": labels.HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {labels.PICKER_APP: name}},
    }


def _probes(lifecycle: Lifecycle, *, certified: bool) -> Manifest:
    """Ready while it knows its pool; restarted after a minute and a half in which it does not say so.

    It says so on one port, and answers the gateway on another, which opens later. With a certificate a picker that has
    ended is not ready within seconds. One that hangs keeps the gateway's connections until it is restarted.
    """
    ask = {"grpc": {"port": HEALTH_PORT}, "timeoutSeconds": 5}
    connect = {"tcpSocket": {"port": GRPC_PORT}}
    started = {"startupProbe": {**connect, "periodSeconds": 1, "failureThreshold": 120, **PROBE_GRACE}}
    ready = {"timeoutSeconds": 1, "periodSeconds": 1, "failureThreshold": 2} if certified else {"periodSeconds": 5}
    return {
        **(started if certified else {}),
        "readinessProbe": {**ask, **ready},
        "livenessProbe": {**ask, "periodSeconds": 15, "failureThreshold": 6, **PROBE_GRACE},
        "lifecycle": drain(lifecycle),
    }


def picker_certificate(replica: ModelReplica, now: datetime) -> tuple[Manifest, Certificate]:
    """Return the metadata of the Secret with the picker's certificate, and what it says.

    Envoy AI Gateway verifies no picker, so that the certificate signs itself and is not renewed.
    """
    name = f"{names.picker(replica.metadata.name)}.{names.remote_namespace(replica.key.namespace)}.svc"
    return _metadata(replica), Certificate(name, "server", now - timedelta(hours=1), now + timedelta(days=3650))


def picker_config(replica: ModelReplica) -> str:
    """The picker's configuration: JSON, which is YAML too, and reads the same whatever wrote it."""
    config = _split(replica) if replica.spec.is_split else _unified(replica)
    return json.dumps(config, indent=2) + "\n"


def _unified(replica: ModelReplica) -> Manifest:
    return {
        **_HEAD,
        **_parsers(replica),
        "plugins": _scorers(replica),
        "schedulingProfiles": [{"name": "default", "plugins": _weights(replica)}],
    }


def _split(replica: ModelReplica) -> Manifest:
    # An engine of SGLang that decodes cannot read a prompt itself.
    always = any(engine.phase == "Decode" and runs_sglang(engine) for engine in replica.spec.engines)
    decider = {"type": "always-disagg-pd-decider"} if always else _by_new_tokens(replica)
    weights = _weights(replica)
    return {
        **_HEAD,
        **_parsers(replica),
        "plugins": [
            *_scorers(replica),
            {"type": "disagg-headers-handler"},
            {"type": "prefill-filter"},
            {"type": "decode-filter"},
            decider,
            {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": decider["type"]}}},
        ],
        "schedulingProfiles": [
            {"name": "prefill", "plugins": [{"pluginRef": "prefill-filter"}, *weights]},
            {"name": "decode", "plugins": [{"pluginRef": "decode-filter"}, *weights]},
        ],
    }


_HEAD: Manifest = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}


def _parsers(replica: ModelReplica) -> Manifest:
    """Return who reads requests; without the last, every API that none of the others knows is answered 400."""
    if replica.spec.pod_revision < 3:
        return {}
    parsers = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
    return {"requestHandler": {"parsers": [{"pluginRef": parser} for parser in parsers]}}


def _by_new_tokens(replica: ModelReplica) -> Manifest:
    """Return the plugin that leaves short prompts to the decode engine. Its default of 0 would leave all of them."""
    serving = replica.spec.serving
    tokens = serving.min_prefill_tokens if serving and replica.spec.pod_revision >= 3 else 16
    return {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": tokens}}


def _weights(replica: ModelReplica) -> list[Manifest]:
    prefix, queue = (1, 1) if replica.spec.pod_revision >= 3 else (2, 1)
    return [
        {"pluginRef": "max-score-picker"},
        {"pluginRef": "prefix-cache-scorer", "weight": prefix},
        {"pluginRef": "queue-scorer", "weight": queue},
    ]


def _scorers(replica: ModelReplica) -> list[Manifest]:
    # Since v0.9.0 both are without effect: nobody configures the first below 64, and the second is derived.
    before = {"blockSizeTokens": _block_size(replica), "maxPrefixBlocksToMatch": 256}
    return [
        {
            # The decider and the scorer read what only this one writes, and it writes nothing when left to tune itself.
            "type": "approx-prefix-cache-producer",
            "parameters": {
                "autoTune": False,
                **(before if replica.spec.pod_revision < 3 else {}),
                "lruCapacityPerServer": 31250,
            },
        },
        {"type": "prefix-cache-scorer"},
        {"type": "queue-scorer"},
        {"type": "max-score-picker"},
    ]


def _block_size(replica: ModelReplica) -> int:
    """The block size of the engine's cache, from its command line."""
    container = _speaker(replica)
    text = flag_value(container, "--block-size", "--page-size") if container else None
    readable = text is not None and text.isascii() and text.isdecimal() and int(text) > 0
    return int(text) if text is not None and readable else KV_BLOCK_SIZE


def _speaker(replica: ModelReplica) -> Container | None:
    """The container whose arguments speak for all: of the decode engine, or of the first."""
    engines = replica.spec.engines
    return serving_container(next((engine for engine in engines if engine.phase == "Decode"), engines[0]))
