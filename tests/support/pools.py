"""An InferencePool with its picker, and a route to it, as plain manifests."""

from __future__ import annotations

import json
from typing import Any

Manifest = dict[str, Any]

POOL_GROUP = "inference.networking.k8s.io"
PICKER_IMAGE = "ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.9.0"
JUDGES: Manifest = {
    "apiVersion": "llm-d.ai/v1alpha1",
    "kind": "EndpointPickerConfig",
    "plugins": [
        {"type": "approx-prefix-cache-producer", "parameters": {"autoTune": False, "blockSizeTokens": 64}},
        {"type": "prefix-cache-scorer"},
        {"type": "queue-scorer"},
        {"type": "max-score-picker"},
    ],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "max-score-picker"},
                {"pluginRef": "prefix-cache-scorer", "weight": 2},
                {"pluginRef": "queue-scorer", "weight": 1},
            ],
        }
    ],
}


def engines(name: str, replicas: int = 2) -> Manifest:
    """Model servers that a pool of that name selects."""
    container = {
        "name": "engine",
        "image": "vllm/vllm-openai:v0.11.0",
        "args": ["--model", "org/model"],
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{name}-engines"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"pool": name}},
            "template": {"metadata": {"labels": {"pool": name}}, "spec": {"containers": [container]}},
        },
    }


def pool(name: str, namespace: str, config: Manifest = JUDGES, arguments: tuple[str, ...] = ()) -> list[Manifest]:
    """The pool, its picker with its permissions, and the picker's Service."""
    picker = f"{name}-picker"
    read = {"verbs": ["get", "list", "watch"]}
    container = {
        "name": "epp",
        "image": PICKER_IMAGE,
        "args": [
            f"--pool-name={name}",
            f"--pool-namespace={namespace}",
            "--config-file=/config/picker.yaml",
            "--metrics-endpoint-auth=false",
            *arguments,
        ],
        "ports": [{"name": "grpc", "containerPort": 9002}, {"name": "health", "containerPort": 9003}],
        "readinessProbe": {"grpc": {"port": 9003}, "periodSeconds": 5},
        "livenessProbe": {"grpc": {"port": 9003}, "periodSeconds": 15, "failureThreshold": 6},
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
    }
    pod = {
        "serviceAccountName": picker,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": picker}}],
    }
    return [
        {
            "apiVersion": f"{POOL_GROUP}/v1",
            "kind": "InferencePool",
            "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": {"pool": name}},
                "targetPorts": [{"number": 8000}],
                "endpointPickerRef": {"name": picker, "port": {"number": 9002}},
            },
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": picker}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": picker},
            "rules": [
                {"apiGroups": [""], "resources": ["pods"], **read},
                {"apiGroups": [POOL_GROUP], "resources": ["inferencepools"], **read},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": picker},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": picker},
            "subjects": [{"kind": "ServiceAccount", "name": picker, "namespace": namespace}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": picker},
            "data": {"picker.yaml": json.dumps(config)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": picker},
            "spec": {
                "selector": {"matchLabels": {"picker": name}},
                "template": {"metadata": {"labels": {"picker": name}}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": picker},
            "spec": {"selector": {"picker": name}, "ports": [{"port": 9002, "appProtocol": "http2"}]},
        },
    ]


def gateway(name: str) -> list[Manifest]:
    """A gateway on port 80, which Envoy Gateway makes."""
    controller = "gateway.envoyproxy.io/gatewayclass-controller"
    listener = {"name": "http", "port": 80, "protocol": "HTTP"}
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": name},
            "spec": {"controllerName": controller},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": name},
            "spec": {"gatewayClassName": name, "listeners": [listener]},
        },
    ]


def route(name: str, parent: str) -> Manifest:
    """The route of a pool of that name, under a path of that name."""
    rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": f"/{name}/"}}],
        "filters": [{"type": "URLRewrite", "urlRewrite": rewrite}],
        "backendRefs": [{"group": POOL_GROUP, "kind": "InferencePool", "name": name}],
        "timeouts": {"request": "0s"},
    }
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name},
        "spec": {"parentRefs": [{"name": parent}], "rules": [rule]},
    }
