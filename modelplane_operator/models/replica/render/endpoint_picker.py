"""The endpoint picker: it tells the gateway which pod of a replica is best for a request.

How much of the prompt a pod has read before and how short its queue is count the same, so that no prefix draws requests
to a pod while others idle (docs/decisions/0124).
"""

from __future__ import annotations

import hashlib
import json

from kubeloop.objects import Manifest
from kubeloop.types import ENVOY_EXTENSION_POLICY
from modelplane_operator.api import labels, names
from modelplane_operator.api.engines import Serving
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.images import TESTED, Images
from modelplane_operator.models.replica.render.kubelets import LOST, PROBE_GRACE, apart
from modelplane_operator.models.replica.render.part import metrics_path, ports, runs_sglang
from modelplane_operator.owned import on_cluster, owner_labels
from modelplane_operator.routing.gateway.envoy_policies import ASKED

GRPC_PORT = 9002
HEALTH_PORT = 9003
METRICS_PORT = 9090
METRICS_PORT_NAME = "metrics"
CONFIG_FILE = "epp-config.yaml"
PICKERS = 2  # both answer, and each knows what it has sent where
PICKED_RULE = "picked"  # of the route: requests that the picker reads


def render_picker(replica: ModelReplica, images: Images = TESTED) -> tuple[Manifest, ...]:
    """Return the picker of a replica, with what it may read and how it judges."""
    config, name = picker_config(replica), names.picker(replica.metadata.name)
    namespace = names.remote_namespace(replica.key.namespace)
    access = "rbac.authorization.k8s.io"
    return (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": _metadata(replica),
        },
        {
            "apiVersion": f"{access}/v1",
            "kind": "Role",
            "metadata": _metadata(replica),
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": f"{access}/v1",
            "kind": "RoleBinding",
            "metadata": _metadata(replica),
            "roleRef": {"apiGroup": access, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(replica),
            "data": {CONFIG_FILE: config},
        },
        _deployment(replica, config, images.of_picker()),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(replica),
            "spec": {
                # The gateway asks each of these pods where requests go.
                "selector": picker_pods(replica),
                "ports": [
                    {
                        "name": "grpc-ext-proc",
                        "port": GRPC_PORT,
                        "targetPort": GRPC_PORT,
                        "protocol": "TCP",
                        "appProtocol": "kubernetes.io/h2c",
                    }
                ],
            },
        },
    )


def render_picker_policy(replica: ModelReplica) -> Manifest:
    """Return what has the gateway ask the picker about each request of the route's rule for picked ones."""
    return {
        "apiVersion": ENVOY_EXTENSION_POLICY.api_version,
        "kind": ENVOY_EXTENSION_POLICY.kind,
        "metadata": on_cluster(replica, replica.metadata.name),
        "spec": {
            "targetRefs": [
                {
                    "group": "gateway.networking.k8s.io",
                    "kind": "HTTPRoute",
                    "name": replica.metadata.name,
                    "sectionName": PICKED_RULE,
                }
            ],
            "extProc": [
                {
                    "backendRefs": [
                        {
                            "group": "",
                            "kind": "Service",
                            "name": names.picker(replica.metadata.name),
                            "port": GRPC_PORT,
                        }
                    ],
                    # Requests only: answers do not pass it, so that they go on when it ends.
                    "processingMode": {"request": {"body": "FullDuplexStreamed"}},
                    "backendSettings": ASKED,
                }
            ],
        },
    }


def picker_pods(replica: ModelReplica) -> dict[str, str]:
    """Return the labels of the picker's pods. Pickers of earlier versions, which spoke TLS, have another value."""
    return {labels.PICKER: replica.metadata.name}


def _metadata(replica: ModelReplica) -> Manifest:
    return on_cluster(replica, names.picker(replica.metadata.name))


def _deployment(replica: ModelReplica, config: str, image: str) -> Manifest:
    name = names.picker(replica.metadata.name)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(replica),
        "spec": {
            "replicas": PICKERS,
            "selector": {"matchLabels": {labels.PICKER_APP: name}},
            "template": {
                "metadata": {
                    "labels": {**owner_labels(replica), labels.PICKER_APP: name, **picker_pods(replica)},
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
                    "terminationGracePeriodSeconds": 60,
                    "tolerations": LOST,
                    "affinity": apart({labels.PICKER_APP: name}),
                    "volumes": [{"name": "config", "configMap": {"name": name}}],
                    "containers": [
                        {
                            "name": "epp",
                            "image": image,
                            "args": _arguments(replica),
                            # It takes the name of its Deployment, which its metrics bear, from that of its pod.
                            "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                            "ports": [
                                {"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"},
                                {"name": "grpc-health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
                                {"name": METRICS_PORT_NAME, "containerPort": METRICS_PORT, "protocol": "TCP"},
                            ],
                            **_PROBES,
                            "lifecycle": {"preStop": {"sleep": {"seconds": 10}}},  # until no gateway asks it any more
                            "resources": _RESOURCES,
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


def _arguments(replica: ModelReplica) -> list[str]:
    return [
        # By a selector, and not by an InferencePool: it needs no definitions of others, and watches pods alone.
        f"--endpoint-selector={labels.SERVING}={replica.metadata.name}",
        f"--endpoint-target-ports={','.join(map(str, ports(replica)))}",
        f"--pool-namespace={names.remote_namespace(replica.key.namespace)}",
        f"--config-file=/config/{CONFIG_FILE}",
        f"--grpc-port={GRPC_PORT}",
        # As requests go from the gateway to engines. For TLS it would make a key first, for up to eight seconds.
        "--secure-serving=false",
        # The fence says who may read its metrics; it has no permission to look up who asks.
        "--metrics-endpoint-auth=false",
        "--tracing=false",  # a client's header would have it print a request to its log
        "--enable-pprof=false",
    ]


# Measured with v0.9.0: 1.7 ms of CPU for a request of 2 kB and 5 ms for one of 40 kB; 250 MiB at 40 kB, and nine times
# its size for each body that is under way. Beyond the limit it ends, and its other pod answers.
_RESOURCES: Manifest = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}}
_ASK: Manifest = {"grpc": {"port": HEALTH_PORT}}
# It says that it serves on one port, and answers the gateway on another, which opens later.
_PROBES: Manifest = {
    "startupProbe": {"tcpSocket": {"port": GRPC_PORT}, "periodSeconds": 1, "failureThreshold": 120, **PROBE_GRACE},
    "readinessProbe": {**_ASK, "timeoutSeconds": 1, "periodSeconds": 1, "failureThreshold": 2},
    # Envoy sets no timer where bodies stream: what a picker that hangs leaves unanswered ends with it.
    "livenessProbe": {**_ASK, "timeoutSeconds": 5, "periodSeconds": 5, "failureThreshold": 4, **PROBE_GRACE},
}


def picker_config(replica: ModelReplica) -> str:
    """The picker's configuration: JSON, which is YAML too, and reads the same whatever wrote it."""
    config = _split(replica) if replica.spec.is_split else _unified()
    if (path := metrics_path(replica)) != "/metrics":
        # Declared by its type, it takes the place of the one that the picker makes by itself.
        source = {"type": "metrics-data-source", "parameters": {"path": path}}
        config = {**config, "plugins": [*config["plugins"], source]}
    return json.dumps(config, indent=2) + "\n"


def _unified() -> Manifest:
    return {
        **_HEAD,
        "plugins": _SCORERS,
        "schedulingProfiles": [{"name": "default", "plugins": _WEIGHTS}],
    }


def _split(replica: ModelReplica) -> Manifest:
    # An engine of SGLang that decodes cannot read a prompt itself.
    always = any(engine.phase == "Decode" and runs_sglang(engine) for engine in replica.spec.engines)
    serving = replica.spec.serving
    # Short prompts are left to the engine that decodes. Without a number, all of them would be.
    tokens = {"nonCachedTokens": serving.min_prefill_tokens if serving else Serving().min_prefill_tokens}
    decider = (
        {"type": "always-disagg-pd-decider"} if always else {"type": "prefix-based-pd-decider", "parameters": tokens}
    )
    return {
        **_HEAD,
        "plugins": [
            *_SCORERS,
            {"type": "disagg-headers-handler"},
            {"type": "prefill-filter"},
            {"type": "decode-filter"},
            decider,
            {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": decider["type"]}}},
        ],
        "schedulingProfiles": [
            {"name": "prefill", "plugins": [{"pluginRef": "prefill-filter"}, *_WEIGHTS]},
            {"name": "decode", "plugins": [{"pluginRef": "decode-filter"}, *_WEIGHTS]},
        ],
    }


# The last takes what none of the others knows: without it, every such API is answered 400.
_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
_HEAD: Manifest = {
    "apiVersion": "llm-d.ai/v1alpha1",
    "kind": "EndpointPickerConfig",
    "requestHandler": {"parsers": [{"pluginRef": parser} for parser in _PARSERS]},
}
_WEIGHTS: list[Manifest] = [
    {"pluginRef": "max-score-picker"},
    {"pluginRef": "prefix-cache-scorer", "weight": 1},
    {"pluginRef": "queue-scorer", "weight": 1},
]
_SCORERS: list[Manifest] = [
    {
        # The decider and the scorer read what only this one writes, and it writes nothing when left to tune itself.
        "type": "approx-prefix-cache-producer",
        "parameters": {"autoTune": False, "lruCapacityPerServer": 31250},
    },
    {"type": "prefix-cache-scorer"},
    {"type": "queue-scorer"},
    {"type": "max-score-picker"},
]
