"""Render the endpoint picker, which tells the gateway the best pod of a replica for each request.

The cached part of the prompt and the length of the queue have equal weights, so that no prefix attracts requests to
one pod while others are idle (docs/internals/decisions/0124).
"""

from __future__ import annotations

import hashlib
import json

from kubeloop.objects import Manifest
from kubeloop.ownership import owner_labels
from kubeloop.types import ENVOY_EXTENSION_POLICY
from modelplane_operator.api import labels, names
from modelplane_operator.api.engines import Serving
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.images import TESTED, Images
from modelplane_operator.models.replica.render.kubelets import LOST, PROBE_GRACE, apart
from modelplane_operator.models.replica.render.part import metrics_path, ports, runs_sglang
from modelplane_operator.owned import on_cluster
from modelplane_operator.routing.gateway.envoy_policies import PICKER_TRAFFIC

GRPC_PORT = 9002
"""Port that the gateway queries."""
HEALTH_PORT = 9003
"""Port of the picker's gRPC health service."""
METRICS_PORT = 9090
"""Port of the picker's metrics."""
METRICS_PORT_NAME = "metrics"
CONFIG_FILE = "epp-config.yaml"
"""Key of the picker's ConfigMap."""
PICKERS = 2  # each serves, and each tracks only the requests that it has routed
"""Number of picker pods."""
PICKED_RULE = "picked"  # the policy targets this rule
"""Name of the route's rule whose requests the picker reads."""


def render_picker(replica: ModelReplica, images: Images = TESTED) -> tuple[Manifest, ...]:
    """Render the picker of a replica with its permissions and its configuration."""
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
        _render_deployment(replica, config, images.of_picker()),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(replica),
            "spec": {
                # The gateway asks any of these pods to choose an endpoint.
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
    """Render the policy that makes the gateway ask the picker about each request of the route's rule PICKED_RULE."""
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
                    # Requests only: responses bypass the picker, so that they continue when it ends.
                    "processingMode": {"request": {"body": "FullDuplexStreamed"}},
                    "backendSettings": PICKER_TRAFFIC,
                }
            ],
        },
    }


def picker_pods(replica: ModelReplica) -> dict[str, str]:
    """Return the labels of the picker's pods. Pickers of earlier versions, which used TLS, have another value."""
    return {labels.PICKER: replica.metadata.name}


def _metadata(replica: ModelReplica) -> Manifest:
    return on_cluster(replica, names.picker(replica.metadata.name))


def _render_deployment(replica: ModelReplica, config: str, image: str) -> Manifest:
    """Render the Deployment of the picker."""
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
                    # The picker reads its file once, so a changed file needs new pods.
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
                            "args": _render_arguments(replica),
                            # The picker derives its Deployment's name, a label of its metrics, from this.
                            "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                            "ports": [
                                {"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"},
                                {"name": "grpc-health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
                                {"name": METRICS_PORT_NAME, "containerPort": METRICS_PORT, "protocol": "TCP"},
                            ],
                            **_PROBES,
                            "lifecycle": {"preStop": {"sleep": {"seconds": 10}}},  # until no gateway asks this pod
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


def _render_arguments(replica: ModelReplica) -> list[str]:
    """Return the picker's arguments."""
    return [
        # A selector needs no CRDs, unlike an InferencePool, and the picker watches only pods.
        f"--endpoint-selector={labels.SERVING}={replica.metadata.name}",
        f"--endpoint-target-ports={','.join(map(str, ports(replica)))}",
        f"--pool-namespace={names.remote_namespace(replica.key.namespace)}",
        f"--config-file=/config/{CONFIG_FILE}",
        f"--grpc-port={GRPC_PORT}",
        # Plain text, as from the gateway to engines. For TLS it would first generate a key, for up to eight seconds.
        "--secure-serving=false",
        # A NetworkPolicy protects its metrics. It has no permission to review tokens.
        "--metrics-endpoint-auth=false",
        "--tracing=false",  # a client's header could make it log requests
        "--enable-pprof=false",
    ]


# Measured with v0.9.0: 1.7 ms of CPU for a request of 2 kB and 5 ms for one of 40 kB; 250 MiB at 40 kB, plus nine times
# the size of each body in progress. Beyond the limit the pod is killed, and the other pod answers.
_RESOURCES: Manifest = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}}
"""Resources of the picker's container."""
_GRPC_CHECK: Manifest = {"grpc": {"port": HEALTH_PORT}}
# The health port opens before the port that the gateway uses, so the startup probe checks the latter.
_PROBES: Manifest = {
    "startupProbe": {"tcpSocket": {"port": GRPC_PORT}, "periodSeconds": 1, "failureThreshold": 120, **PROBE_GRACE},
    "readinessProbe": {**_GRPC_CHECK, "timeoutSeconds": 1, "periodSeconds": 1, "failureThreshold": 2},
    # Envoy has no timeout for streamed bodies: requests that a hanging picker blocks end only with it.
    "livenessProbe": {**_GRPC_CHECK, "timeoutSeconds": 5, "periodSeconds": 5, "failureThreshold": 4, **PROBE_GRACE},
}
"""Probes of the picker's container."""


def picker_config(replica: ModelReplica) -> str:
    """Return the picker's configuration as JSON, which is valid YAML and has a stable order."""
    config = _build_split_config(replica) if replica.spec.is_split else _build_unified_config()
    if (path := metrics_path(replica)) != "/metrics":
        # A plugin of this type replaces the default one of the picker.
        source = {"type": "metrics-data-source", "parameters": {"path": path}}
        config = {**config, "plugins": [*config["plugins"], source]}
    return json.dumps(config, indent=2) + "\n"


def _build_unified_config() -> Manifest:
    """Return the configuration for replicas whose engines read prompts and generate."""
    return {
        **_CONFIG_HEADER,
        "plugins": _SCORERS,
        "schedulingProfiles": [{"name": "default", "plugins": _WEIGHTS}],
    }


def _build_split_config(replica: ModelReplica) -> Manifest:
    """Return the configuration for replicas with separate prefill and decode engines."""
    # A decode engine of SGLang cannot read prompts itself.
    always = any(engine.phase == "Decode" and runs_sglang(engine) for engine in replica.spec.engines)
    serving = replica.spec.serving
    # The decode engine reads short prompts itself. Without a number, it would read all of them.
    tokens = {"nonCachedTokens": serving.min_prefill_tokens if serving else Serving().min_prefill_tokens}
    decider = (
        {"type": "always-disagg-pd-decider"} if always else {"type": "prefix-based-pd-decider", "parameters": tokens}
    )
    return {
        **_CONFIG_HEADER,
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


# The last accepts requests that no other parser knows. Without it, they get a 400.
_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
"""Parsers of request bodies, in the order in which they are tried."""
_CONFIG_HEADER: Manifest = {
    "apiVersion": "llm-d.ai/v1alpha1",
    "kind": "EndpointPickerConfig",
    "requestHandler": {"parsers": [{"pluginRef": parser} for parser in _PARSERS]},
}
_WEIGHTS: list[Manifest] = [
    {"pluginRef": "max-score-picker"},
    {"pluginRef": "prefix-cache-scorer", "weight": 1},
    {"pluginRef": "queue-scorer", "weight": 1},
]
"""Scorers of a scheduling profile with their weights."""
_SCORERS: list[Manifest] = [
    {
        # The decider and the scorer read data that only this plugin writes, and with autoTune it writes none.
        "type": "approx-prefix-cache-producer",
        "parameters": {"autoTune": False, "lruCapacityPerServer": 31250},
    },
    {"type": "prefix-cache-scorer"},
    {"type": "queue-scorer"},
    {"type": "max-score-picker"},
]
"""Plugins that the scheduling profiles use."""
