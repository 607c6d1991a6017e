"""Render how Traefik presents the hub's certificate to the gateway of a cluster, which routes cannot express.

A BackendTLSPolicy of the Gateway API has trusted authorities but no client certificate, and a route that rewrites paths
cannot refer to Traefik's own kinds. So Traefik calls itself on a loopback port: the route of a service selects the
cluster by the host name, and at that port each cluster has an IngressRoute with the certificates of both sides. All
these objects are in the operator's namespace. A tenant's route can lead to the loopback port only with a host name from
the operator: tenants' endpoints cannot have clusters' names (endpoint/render.py), and connections from elsewhere do not
reach the port.
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
    """Return the objects that lead to the gateway of a cluster, each after those that it needs."""
    name, server = names.gateway_relay(cluster.metadata.name), names.server_name(cluster.metadata.name)
    metadata = on_hub(cluster, name, namespace=names.SYSTEM_NAMESPACE)
    backend, https_port = Backend("https", address.rstrip("."), HTTPS_PORT), port("https", HTTPS_PORT)
    namespace = names.SYSTEM_NAMESPACE
    return (
        render_service(metadata, [https_port]),
        render_slice(cluster, name, backend.address_type, https_port, backend.dialled, namespace=namespace),
        {
            "apiVersion": _TRAEFIK,
            "kind": "ServersTransport",
            "metadata": metadata,
            "spec": {
                "serverName": server,
                "rootCAs": [{"secret": names.GATEWAY_CERTIFICATE}],
                "certificatesSecrets": [names.GATEWAY_CERTIFICATE],
                # Detects a dead node by its silence, since many requests share a connection.
                "forwardingTimeouts": {**TO_BACKENDS, "readIdleTimeout": "5s", "pingTimeout": "5s"},
                "maxIdleConnsPerHost": 200,  # the default is none, which means a TLS handshake for each request
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
