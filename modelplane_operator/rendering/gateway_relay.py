"""How Traefik presents the hub's certificate to the gateway of a cluster: what a route cannot ask for.

A BackendTLSPolicy of the Gateway API says whom to trust and names no certificate of one's own, and of Traefik's own
kinds a route takes none whose path it rewrites. So Traefik calls itself, on a port of its own loopback: the route of a
service says by the host name which cluster is meant, and here each cluster has a route of Traefik's kind, with the
certificates that both sides know each other by. All of this is in our namespace. A tenant's route leads to the
loopback port only with the operator's words: the name of no endpoint of a tenant's can be a cluster's
(model_endpoint.py), and connections from elsewhere do not reach it.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from modelplane_operator.api import names
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.kube.objects import Manifest
from modelplane_operator.rendering.cluster_gateway import HTTPS_PORT
from modelplane_operator.rendering.model_endpoint import RELAY, slice_labels
from modelplane_operator.rendering.owned import on_hub

_TRAEFIK: Final = "traefik.io/v1alpha1"


def render_relay(cluster: InferenceCluster, address: str) -> tuple[Manifest, ...]:
    """What leads to the gateway of a cluster, in the order in which each needs the ones before."""
    name, server = names.gateway_relay(cluster.metadata.name), names.server_name(cluster.metadata.name)
    metadata = on_hub(cluster, name, namespace=names.SYSTEM_NAMESPACE)
    kind, reached = _place(address)
    port = {"name": "https", "port": HTTPS_PORT, "protocol": "TCP", "appProtocol": "https"}
    return (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"clusterIP": "None", "ports": [{**port, "targetPort": HTTPS_PORT}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": on_hub(
                cluster, names.endpoint_slice(name, kind), namespace=names.SYSTEM_NAMESPACE, extra=slice_labels(name)
            ),
            "addressType": kind,
            "ports": [port],
            "endpoints": [{"addresses": [reached], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": _TRAEFIK,
            "kind": "ServersTransport",
            "metadata": metadata,
            "spec": {
                "serverName": server,
                "rootCAs": [{"secret": names.GATEWAY_CERTIFICATE}],
                "certificatesSecrets": [names.GATEWAY_CERTIFICATE],
                "disableHTTP2": True,  # else it is not the fast proxy that answers (docs/decisions/0024)
                "maxIdleConnsPerHost": 200,  # by default none: each request would shake hands anew
            },
        },
        {
            "apiVersion": _TRAEFIK,
            "kind": "IngressRoute",
            "metadata": metadata,
            "spec": {
                "entryPoints": [RELAY],
                "routes": [
                    {
                        "kind": "Rule",
                        "match": f"Host(`{server}`)",
                        "services": [{"name": name, "port": HTTPS_PORT, "scheme": "https", "serversTransport": name}],
                    }
                ],
            },
        },
    )


def _place(address: str) -> tuple[str, str]:
    try:
        return f"IPv{ip_address(address).version}", address
    except ValueError:
        return "FQDN", f"{address.rstrip('.')}."  # whole: no search domain makes a Service of the hub of it
