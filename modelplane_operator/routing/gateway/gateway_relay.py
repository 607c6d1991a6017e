"""How Traefik presents the hub's certificate to the gateway of a cluster: what a route cannot ask for.

A BackendTLSPolicy of the Gateway API says whom to trust and names no certificate of one's own, and of Traefik's own
kinds a route takes none whose path it rewrites. So Traefik calls itself, on a port of its own loopback: the route of a
service says by the host name which cluster is meant, and here each cluster has a route of Traefik's kind, with the
certificates that both sides know each other by. All of this is in our namespace. A tenant's route leads to the
loopback port only with the operator's words: the name of no endpoint of a tenant's can be a cluster's
(model_endpoint.py), and connections from elsewhere do not reach it.
"""

from __future__ import annotations

from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api import names
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.clusters.cluster.cluster_gateway import HTTPS_PORT
from modelplane_operator.owned import on_hub
from modelplane_operator.routing.endpoint.backend_url import Backend
from modelplane_operator.routing.endpoint.headless import port, render_service, render_slice
from modelplane_operator.routing.gateway.traefik import RELAY, TO_BACKENDS

_TRAEFIK: Final = "traefik.io/v1alpha1"


def render_relay(cluster: InferenceCluster, address: str) -> tuple[Manifest, ...]:
    """What leads to the gateway of a cluster, in the order in which each needs the ones before."""
    name, server = names.gateway_relay(cluster.metadata.name), names.server_name(cluster.metadata.name)
    metadata = on_hub(cluster, name, namespace=names.SYSTEM_NAMESPACE)
    place, way = Backend("https", address.rstrip("."), HTTPS_PORT), port("https", HTTPS_PORT)
    home = names.SYSTEM_NAMESPACE
    return (
        render_service(metadata, [way]),
        render_slice(cluster, name, place.address_type, way, place.dialled, namespace=home),
        {
            "apiVersion": _TRAEFIK,
            "kind": "ServersTransport",
            "metadata": metadata,
            "spec": {
                "serverName": server,
                "rootCAs": [{"secret": names.GATEWAY_CERTIFICATE}],
                "certificatesSecrets": [names.GATEWAY_CERTIFICATE],
                # A gateway whose node has died is noticed by its silence: many requests share a connection to it.
                "forwardingTimeouts": {**TO_BACKENDS, "readIdleTimeout": "5s", "pingTimeout": "5s"},
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
