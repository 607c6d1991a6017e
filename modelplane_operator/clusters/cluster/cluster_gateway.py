"""The gateway of a workload cluster, through which the models there are reached: Envoy Gateway's.

It belongs to whoever installs it: the InferenceCluster where Envoy Gateway is there already, a ServingStack elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, entries
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.serving_stack import Listener, StackGateway
from modelplane_operator.owned import Owner, owner_labels
from modelplane_operator.routing.gateway.envoy_policies import backend_policy, client_policy
from modelplane_operator.routing.gateway.gateway_pods import envoy_proxy
from modelplane_operator.routing.service.hops import NO_REQUEST

CONTROLLER: Final = "gateway.envoyproxy.io/gatewayclass-controller"
ENVOY_NAMESPACE: Final = "envoy-gateway-system"
ENVOY_CHART: Final = "gateway-helm"
ENVOY_REPOSITORY: Final = "oci://docker.io/envoyproxy"
_CHOSEN: Final = "x-gateway-destination-endpoint"
# By these the picker of a replica tells Envoy, and the sidecars of its pods, which pod a request goes to: sidecars take
# any address. It obeys the others itself, whoever sent them: they rename the model and choose whose requests go first.
# One with `Prefer` is answered 412 by it.
STEERING: Final = (
    *("x-prefiller-host-port", "x-prefiller-url", "x-encoder-hosts-ports", "x-data-parallel-host-port"),
    *(_CHOSEN, "x-gateway-destination-endpoint-subset"),
    *("x-llm-d-inference-objective", "x-llm-d-inference-fairness-id", "x-llm-d-model-name-rewrite"),
    *("x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-ttft-ms", "x-slo-tpot-ms"),
    *("x-gateway-inference-objective", "x-gateway-inference-fairness-id", "x-gateway-model-name-rewrite"),
    # Engines obey these: SGLang the first, by default or when it is asked to, and both vLLM and it the last.
    *("x-override-bootstrap-host", "x-override-bootstrap-port", "x-override-bootstrap-room", "x-override-priority"),
    *("x-override-rid", "x-override-conversation-id", "x-override-routed-dp-rank"),
    *("x-override-disagg-prefill-dp-rank", "x-data-parallel-rank"),
    # And later pickers and sidecars these.
    *("x-llm-d-inference-ttl", "x-kv-cache-source-host-port", "x-llm-d-kv-cache-source-host-port"),
    *("x-llm-d-disagg-revision", "x-llm-d-revision-decision-id", "x-speculative-prefill"),
    *("prefer", NO_REQUEST),
)
# Before the request meets its route and the picker. A filter of the route would come after both, and take away what the
# picker has set.
_UNSTEERED: Final[Manifest] = {"earlyRequestHeaders": {"remove": [*STEERING]}}
# The hub sends all that it has for a cluster on a few connections. By default 16 bodies that nobody reads would hold up
# the others, and each would have 64 KiB a round trip; what fits into a stream's window is also what can be tried again.
_HTTP2: Final[Manifest] = {
    "initialStreamWindowSize": "512Ki",
    "initialConnectionWindowSize": "64Mi",  # more than all streams of a connection may have, 100 as it is
    "onInvalidMessage": "TerminateStream",
}
# By default Envoy ends a connection, and all that others have on it, when half of its requests were cancelled early.
_RUNTIME: Final[Manifest] = {
    "op": "add",
    "path": "/layered_runtime/layers/0/static_layer/overload.premature_reset_total_stream_count",
    "value": 2**31 - 1,
}
_TARGET: Final[Manifest] = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": names.CLUSTER_GATEWAY}
# The web server of most engines, uvicorn, ends idle connections after five seconds.
_IDLE: Final = "4s"
HTTP: Final = (Listener(name="http", port=80, protocol="HTTP"),)


def own_port(listeners: Sequence[Listener]) -> int | None:
    """The port by which a gateway with these listeners is reached by http; None for the usual one."""
    ports = [listener.port for listener in listeners if listener.protocol == "HTTP"]
    return ports[0] if ports and HTTP[0].port not in ports else None


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
    return _HTTPS["name"] in working(gateway)


def working(gateway: Manifest) -> Set[str]:
    """The listeners of a Gateway that do their work, by what its status says of them."""
    listeners = entries(gateway, "status", "listeners")
    return {one["name"] for one in listeners if condition(gateway, "Programmed", one).is_true}


def is_guarded(gateway: Manifest) -> bool:
    """Whether a Gateway has the listener for the hub, be it that it works or not."""
    return any(one["name"] == _HTTPS["name"] for one in gateway["spec"].get("listeners") or ())


def is_open(gateway: Manifest) -> bool:
    """Whether a Gateway answers more than the hub."""
    return any(one["name"] != _HTTPS["name"] for one in gateway["spec"].get("listeners") or ())


def render_system_namespace(owner: Owner) -> Manifest:
    """Where what is ours and no model's lives on a workload cluster; for clusters that have none of that name yet."""
    marks = {labels.POD_SECURITY: "restricted", **owner_labels(owner)}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.SYSTEM_NAMESPACE, "labels": marks}}


def gateway_among(children: Iterable[Manifest]) -> Manifest | None:
    """The gateway, as it was observed, by its full name: another Gateway's address is another's."""
    wanted = ("Gateway", names.SYSTEM_NAMESPACE, names.CLUSTER_GATEWAY)
    told = ((one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"], one) for one in children)
    return next((one for *identity, one in told if tuple(identity) == wanted), None)


def gateway_of(cluster: InferenceCluster) -> StackGateway:
    """What an InferenceCluster that has its gateway itself makes of it."""
    asked = cluster.spec.gateway
    return StackGateway.model_validate(asked.to_manifest()) if asked else StackGateway()


def render_cluster_gateway(
    owner: Owner, gateway: StackGateway | None = None, *, https: bool = False, http: bool = True
) -> tuple[Manifest, ...]:
    """What makes up the gateway, in the order in which each needs the ones before.

    `https`: by its certificate, to whoever proves to be this hub's gateway. `http`: to anybody. A Gateway has at least
    one listener: where it is to have neither, there is none yet.
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
                **envoy_proxy(wanted, names.CLUSTER_GATEWAY),
                "bootstrap": {"type": "JSONPatch", "jsonPatches": [_RUNTIME]},
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
        *([_gateway(namespaced, wanted, https=https, http=http)] if https or http else ()),
        # Last: the gateway does not wait for a cluster whose access was given before these were asked for.
        client_policy(namespaced, _TARGET, headers=_UNSTEERED, http2=_HTTP2),
        backend_policy(namespaced, _TARGET, idle=_IDLE, chosen_by=_CHOSEN),
    )


def _gateway(metadata: Manifest, wanted: StackGateway, *, https: bool, http: bool) -> Manifest:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": metadata,
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
    }


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
    return client_policy(
        {**metadata, "name": f"{metadata['name']}-{_HTTPS['name']}"},
        {**_TARGET, "sectionName": _HTTPS["name"]},
        http2=_HTTP2,
        headers=_UNSTEERED,  # this policy takes the place of the other one's at its listener
        tls={"minVersion": "1.2", "clientValidation": clients},
    )
