"""The gateway of a workload cluster, through which the models there are reached: Envoy Gateway's.

It belongs to whoever installs it: the InferenceCluster where Envoy Gateway is there already, a ServingStack elsewhere.
"""

from __future__ import annotations

from typing import Final

from modelplane_operator.api import names
from modelplane_operator.api.model import Manifest
from modelplane_operator.api.serving_stack import Listener, StackGateway
from modelplane_operator.rendering.owned import Owner, owner_labels

CONTROLLER: Final = "gateway.envoyproxy.io/gatewayclass-controller"
ENVOY_NAMESPACE: Final = "envoy-gateway-system"
ENVOY_CHART: Final = "gateway-helm"
ENVOY_REPOSITORY: Final = "oci://docker.io/envoyproxy"
HTTP: Final = (Listener(name="http", port=80, protocol="HTTP"),)
HTTPS_PORT: Final = 443
_HTTPS: Final[Manifest] = {
    "name": "mutual-tls",
    "port": HTTPS_PORT,
    "protocol": "HTTPS",
    "tls": {
        "mode": "Terminate",
        "certificateRefs": [{"group": "", "kind": "Secret", "name": names.GATEWAY_CERTIFICATE}],
    },
    "allowedRoutes": {"namespaces": {"from": "All"}},
}


def secured(gateway: Manifest) -> bool:
    """Whether a Gateway, as it was observed, has the listener for the hub, and it works."""
    listeners: list[Manifest] = gateway.get("status", {}).get("listeners") or []
    return any(one["name"] == _HTTPS["name"] and works(one) for one in listeners)


def works(listener: Manifest) -> bool:
    """Whether a listener does its work, by what a Gateway's status says of it."""
    said: list[Manifest] = listener.get("conditions") or []
    return any(one["type"] == "Programmed" and one["status"] == "True" for one in said)


def is_open(gateway: Manifest) -> bool:
    """Whether a Gateway answers more than the hub."""
    return any(one["name"] != _HTTPS["name"] for one in gateway["spec"].get("listeners") or ())


def render_system_namespace(owner: Owner) -> Manifest:
    """Where what is ours and no model's lives on a workload cluster; for clusters that have none of that name yet."""
    metadata = {"name": names.SYSTEM_NAMESPACE, "labels": owner_labels(owner)}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def render_cluster_gateway(
    owner: Owner, gateway: StackGateway | None = None, *, https: bool = False, http: bool = True
) -> tuple[Manifest, ...]:
    """What makes up the gateway, in the order in which each needs the ones before.

    `https`: by its certificate, to whoever proves to be this hub's gateway. `http`: to anybody.
    """
    wanted = gateway or StackGateway()
    namespaced = {
        "name": names.CLUSTER_GATEWAY,
        "namespace": names.SYSTEM_NAMESPACE,
        "labels": owner_labels(owner),
    }
    return (
        {
            "apiVersion": "gateway.envoyproxy.io/v1alpha1",
            "kind": "EnvoyProxy",
            "metadata": namespaced,
            "spec": {
                "provider": {
                    "type": "Kubernetes",
                    # The default, Local, drops what a load balancer sends to a node without an Envoy: Nebius's does.
                    "kubernetes": {"envoyService": {"externalTrafficPolicy": "Cluster"}},
                },
            },
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": wanted.class_name, "labels": owner_labels(owner)},
            "spec": {
                "controllerName": CONTROLLER,
                "parametersRef": {
                    "group": "gateway.envoyproxy.io",
                    "kind": "EnvoyProxy",
                    "name": names.CLUSTER_GATEWAY,
                    "namespace": names.SYSTEM_NAMESPACE,
                },
            },
        },
        *([_hub_only(namespaced)] if https else ()),  # first, so that nobody else is ever answered
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": namespaced,
            "spec": {
                "gatewayClassName": wanted.class_name,
                "listeners": [
                    {
                        "name": listener.name,
                        "port": listener.port,
                        "protocol": listener.protocol,
                        "allowedRoutes": {"namespaces": {"from": "All"}},
                    }
                    for listener in (wanted.listeners or HTTP if http else ())
                ]
                + ([_HTTPS] if https else []),
            },
        },
    )


def certificate(owner: Owner) -> Manifest:
    """The metadata of the Secret with the gateway's certificate, and whom it trusts."""
    return {
        "name": names.GATEWAY_CERTIFICATE,
        "namespace": names.SYSTEM_NAMESPACE,
        "labels": owner_labels(owner),
    }


def _hub_only(metadata: Manifest) -> Manifest:
    """Turns away, before any request is read, who does not prove to be this hub's gateway."""
    clients = {
        "caCertificateRefs": [{"group": "", "kind": "Secret", "name": names.GATEWAY_CERTIFICATE}],
        # Clusters have certificates of the same authority, and are not the hub.
        "subjectAltNames": {"dnsNames": [{"type": "Exact", "value": names.HUB_NAME}]},
    }
    listener = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": names.CLUSTER_GATEWAY}
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "ClientTrafficPolicy",
        "metadata": metadata,
        "spec": {
            "targetRefs": [{**listener, "sectionName": _HTTPS["name"]}],
            "tls": {"minVersion": "1.2", "clientValidation": clients},
        },
    }
