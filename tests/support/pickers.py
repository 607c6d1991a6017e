"""Engines with an endpoint picker, and a route to them, as plain manifests."""

from __future__ import annotations

import json
from typing import Any

from modelplane_operator.routing.gateway.envoy_policies import backend_policy

Manifest = dict[str, Any]

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


def engines(name: str) -> list[Manifest]:
    """Return two model servers, and their Service."""
    container = {
        "name": "engine",
        "image": "vllm/vllm-openai:v0.11.0",
        "args": ["--model", "org/model"],
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
    }
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"{name}-engines"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"engines": name}},
                "template": {"metadata": {"labels": {"engines": name}}, "spec": {"containers": [container]}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": {"engines": name}, "ports": [{"port": 8000}]},
        },
    ]


def picker(name: str, namespace: str, config: Manifest = JUDGES) -> list[Manifest]:
    """Return the picker of the engines of that name, with its permissions, and what has a gateway ask it."""
    own = f"{name}-picker"
    read = {"verbs": ["get", "list", "watch"]}
    probe = {"grpc": {"port": 9003}, "periodSeconds": 5}
    container = {
        "name": "epp",
        "image": PICKER_IMAGE,
        "args": [
            f"--endpoint-selector=engines={name}",
            "--endpoint-target-ports=8000",
            f"--pool-namespace={namespace}",
            "--config-file=/config/picker.yaml",
            "--secure-serving=false",
        ],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [{"name": "grpc", "containerPort": 9002}, {"name": "grpc-health", "containerPort": 9003}],
        "readinessProbe": probe,
        "livenessProbe": probe,
        "volumeMounts": [{"name": "config", "mountPath": "/config", "readOnly": True}],
    }
    pod = {
        "serviceAccountName": own,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": own}}],
    }
    target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name}
    asked = {
        "backendRefs": [{"name": own, "port": 9002}],
        "processingMode": {"request": {"body": "FullDuplexStreamed"}},
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": own}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": own},
            "rules": [{"apiGroups": [""], "resources": ["pods"], **read}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": own},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": own},
            "subjects": [{"kind": "ServiceAccount", "name": own, "namespace": namespace}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": own},
            "data": {"picker.yaml": json.dumps(config)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": own},
            "spec": {
                "selector": {"matchLabels": {"picker": name}},
                "template": {"metadata": {"labels": {"picker": name}}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": own},
            "spec": {"selector": {"picker": name}, "ports": [{"port": 9002, "appProtocol": "kubernetes.io/h2c"}]},
        },
        {
            "apiVersion": "gateway.envoyproxy.io/v1alpha1",
            "kind": "EnvoyExtensionPolicy",
            "metadata": {"name": name},
            "spec": {"targetRefs": [target], "extProc": [asked]},
        },
        backend_policy({"name": name}, target, idle="4s", chosen_by="x-gateway-destination-endpoint"),
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
    """Return the route to the engines of that name, under a path of that name."""
    rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": f"/{name}/"}}],
        "filters": [{"type": "URLRewrite", "urlRewrite": rewrite}],
        "backendRefs": [{"name": name, "port": 8000}],
        "timeouts": {"request": "0s"},
    }
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name},
        "spec": {"parentRefs": [{"name": parent}], "rules": [rule]},
    }
