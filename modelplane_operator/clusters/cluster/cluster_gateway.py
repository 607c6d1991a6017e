"""Render the gateway of a workload cluster, an Envoy Gateway through which its models are reached.

Its owner is the InferenceCluster where Envoy Gateway was already installed, and a ServingStack elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from kubeloop.conditions import condition
from kubeloop.objects import Key, Manifest, entries
from kubeloop.ownership import owner_labels
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.serving_stack import Listener, StackGateway
from modelplane_operator.owned import Owner
from modelplane_operator.routing.gateway.envoy_policies import backend_policy, client_policy
from modelplane_operator.routing.gateway.gateway_pods import envoy_proxy
from modelplane_operator.routing.service.hops import NO_REQUEST

CONTROLLER: Final = "gateway.envoyproxy.io/gatewayclass-controller"
ENVOY_NAMESPACE: Final = "envoy-gateway-system"
ENVOY_CHART: Final = "gateway-helm"
ENVOY_REPOSITORY: Final = "oci://docker.io/envoyproxy"
_CHOSEN: Final = "x-gateway-destination-endpoint"
# Request headers that clients must not send. With the first ones a replica's endpoint picker tells Envoy and the pods'
# sidecars which pod a request goes to, and sidecars accept any address. The picker obeys the others from any client:
# they rename the model and change priorities. It answers a request that has `Prefer` with 412.
STEERING: Final = (
    *("x-prefiller-host-port", "x-prefiller-url", "x-encoder-hosts-ports", "x-data-parallel-host-port"),
    *(_CHOSEN, "x-gateway-destination-endpoint-subset"),
    *("x-llm-d-inference-objective", "x-llm-d-inference-fairness-id", "x-llm-d-model-name-rewrite"),
    *("x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-ttft-ms", "x-slo-tpot-ms"),
    *("x-gateway-inference-objective", "x-gateway-inference-fairness-id", "x-gateway-model-name-rewrite"),
    # Headers that engines obey: SGLang the first ones, some only if configured; vLLM and SGLang the last one.
    *("x-override-bootstrap-host", "x-override-bootstrap-port", "x-override-bootstrap-room", "x-override-priority"),
    *("x-override-rid", "x-override-conversation-id", "x-override-routed-dp-rank"),
    *("x-override-disagg-prefill-dp-rank", "x-data-parallel-rank"),
    # Headers of later versions of the picker and the sidecar.
    *("x-llm-d-inference-ttl", "x-kv-cache-source-host-port", "x-llm-d-kv-cache-source-host-port"),
    *("x-llm-d-disagg-revision", "x-llm-d-revision-decision-id", "x-speculative-prefill"),
    *("prefer", NO_REQUEST),
)
# Removed before routing and the picker. A filter of the route would run after the picker, and remove the headers that
# the picker has set.
_UNSTEERED: Final[Manifest] = {"earlyRequestHeaders": {"remove": [*STEERING]}}
# The hub multiplexes a cluster's requests on a few connections. With Envoy's defaults, 16 request bodies that are not
# read block all others, and each body gets 64 KiB per round trip. A body can be retried if it fits into a stream's
# window.
_HTTP2: Final[Manifest] = {
    "initialStreamWindowSize": "512Ki",
    "initialConnectionWindowSize": "64Mi",  # more than the windows of all 100 streams of a connection
    "onInvalidMessage": "TerminateStream",
}
# By default Envoy closes a connection with all its requests when half of them were cancelled early.
_RUNTIME: Final[Manifest] = {
    "op": "add",
    "path": "/layered_runtime/layers/0/static_layer/overload.premature_reset_total_stream_count",
    "value": 2**31 - 1,
}
_TARGET: Final[Manifest] = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": names.CLUSTER_GATEWAY}
# Most engines use uvicorn, which closes idle connections after five seconds.
_IDLE: Final = "4s"
HTTP: Final = (Listener(name="http", port=80, protocol="HTTP"),)


def own_port(listeners: Sequence[Listener]) -> int | None:
    """Return the http port of a gateway with these listeners; None if it is the default port."""
    ports = [listener.port for listener in listeners if listener.protocol == "HTTP"]
    return ports[0] if ports and HTTP[0].port not in ports else None


HTTPS_PORT: Final = 443
CERTIFICATE: Final = Key(names.SYSTEM_NAMESPACE, names.GATEWAY_CERTIFICATE)
"""The Secret with the gateway's certificate."""
ISSUED: Final[Manifest] = {"data": {"tls.crt": "", "tls.key": "", "ca.crt": ""}}
"""The fields of that Secret that only the operator writes."""
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


def is_secured(gateway: Manifest) -> bool:
    """True if the observed Gateway has the mutual TLS listener and the listener works."""
    return _HTTPS["name"] in programmed_listeners(gateway)


def programmed_listeners(gateway: Manifest) -> Set[str]:
    """Return the names of the Gateway's listeners that are programmed."""
    listeners = entries(gateway, "status", "listeners")
    return {listener["name"] for listener in listeners if condition(gateway, "Programmed", listener).is_true}


def is_guarded(gateway: Manifest) -> bool:
    """True if the Gateway has the mutual TLS listener, working or not."""
    return any(listener["name"] == _HTTPS["name"] for listener in gateway["spec"].get("listeners") or ())


def is_open(gateway: Manifest) -> bool:
    """True if the Gateway has a listener for clients other than the hub."""
    return any(listener["name"] != _HTTPS["name"] for listener in gateway["spec"].get("listeners") or ())


def render_system_namespace(owner: Owner) -> Manifest:
    """Return the operator's namespace on a workload cluster, for clusters that do not have it yet."""
    namespace_labels = {labels.POD_SECURITY: "restricted", **owner_labels(owner)}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": names.SYSTEM_NAMESPACE, "labels": namespace_labels},
    }


def gateway_among(children: Iterable[Manifest]) -> Manifest | None:
    """Return the cluster's Gateway among the children; it is identified by its full name."""
    desired = ("Gateway", names.SYSTEM_NAMESPACE, names.CLUSTER_GATEWAY)
    identified = (
        (child["kind"], child["metadata"].get("namespace"), child["metadata"]["name"], child) for child in children
    )
    return next((child for *identity, child in identified if tuple(identity) == desired), None)


def gateway_of(cluster: InferenceCluster) -> StackGateway:
    """Return the gateway settings of an InferenceCluster that creates its gateway directly."""
    spec = cluster.spec.gateway
    return StackGateway.model_validate(spec.to_manifest()) if spec else StackGateway()


def render_cluster_gateway(
    owner: Owner, gateway: StackGateway | None = None, *, https: bool = False, http: bool = True
) -> tuple[Manifest, ...]:
    """Return the objects of the gateway, each after those that it needs.

    `https`: True for the mutual TLS listener, which only this hub can use. `http`: True for listeners that anyone can
    use. With neither, there is no Gateway, as it needs at least one listener.
    """
    settings = gateway or StackGateway()
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
                **envoy_proxy(settings, names.CLUSTER_GATEWAY),
                "bootstrap": {"type": "JSONPatch", "jsonPatches": [_RUNTIME]},
            },
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": settings.class_name, "labels": owner_labels(owner)},
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
        # before the Gateway, so that no other client is ever served
        *([_render_hub_policy(namespaced)] if https else ()),
        *([_render_gateway(namespaced, settings, https=https, http=http)] if https or http else ()),
        # Last: a cluster with an older access manifest may forbid these, and its gateway must not wait for them.
        client_policy(namespaced, _TARGET, headers=_UNSTEERED, http2=_HTTP2),
        backend_policy(namespaced, _TARGET, idle=_IDLE, chosen_by=_CHOSEN),
    )


def _render_gateway(metadata: Manifest, settings: StackGateway, *, https: bool, http: bool) -> Manifest:
    """Return the Gateway with the listeners that it should have."""
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": metadata,
        "spec": {
            "gatewayClassName": settings.class_name,
            "listeners": [
                {
                    "name": listener.name,
                    "port": listener.port,
                    "protocol": listener.protocol,
                    "allowedRoutes": {"namespaces": {"from": "All"}},
                }
                for listener in (settings.listeners or HTTP if http else ())
            ]
            + ([_HTTPS] if https else []),
        },
    }


def certificate(owner: Owner) -> Manifest:
    """Return the metadata of the Secret with the gateway's certificate and the authority that it trusts."""
    return {
        "name": names.GATEWAY_CERTIFICATE,
        "namespace": names.SYSTEM_NAMESPACE,
        "labels": owner_labels(owner),
    }


def _render_hub_policy(metadata: Manifest) -> Manifest:
    """Return the policy that rejects clients without this hub's certificate during the TLS handshake."""
    clients = {
        "caCertificateRefs": [{"group": "", "kind": "Secret", "name": names.GATEWAY_CERTIFICATE}],
        # Clusters have certificates of the same authority; only the hub's name is accepted.
        "subjectAltNames": {"dnsNames": [{"type": "Exact", "value": names.HUB_NAME}]},
    }
    return client_policy(
        {**metadata, "name": f"{metadata['name']}-{_HTTPS['name']}"},
        {**_TARGET, "sectionName": _HTTPS["name"]},
        http2=_HTTP2,
        headers=_UNSTEERED,  # at this listener, this policy replaces the Gateway's
        tls={"minVersion": "1.2", "clientValidation": clients},
    )
