"""Names and backends of a ModelEndpoint's objects on the hub, whose kind depends on the data plane.

A replica's endpoint leads to the gateway of a cluster, which answers the hub's gateway only. Only its content decides
if it may use the hub's certificate, not its author: it must lead to the replica of its own namespace and name.
"""

from __future__ import annotations

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.models.replica.render.routing import replica_prefix
from modelplane_operator.routing.endpoint.backend_url import Backend, InvalidUrl, UrlFault, read_url
from modelplane_operator.routing.gateway.data_plane import DataPlane


def provable(endpoint: ModelEndpoint, backend: Backend, plane: DataPlane) -> Backend | InvalidUrl:
    """Return the backend, or why its identity cannot be proven."""
    name = (requested_name(endpoint.spec.hostname, backend) or "").lower()
    if name.endswith(f".{names.INTERNAL_DOMAIN}") and not (
        of_cluster(endpoint)
        and backend.scheme == "https"
        and endpoint.spec.rewrite_path == replica_prefix(endpoint.key)
    ):
        message = f"{name} is reserved: a ModelDeployment creates the endpoints of its replicas itself"
        return InvalidUrl(UrlFault.FORBIDDEN, message)
    message = plane.unprovable(name, backend)
    return InvalidUrl(UrlFault.HOST, message) if message else backend


def of_cluster(endpoint: ModelEndpoint) -> bool:
    """True if the endpoint's hostname is that of a cluster's gateway."""
    return (endpoint.spec.hostname or "").lower().endswith(f".{names.GATEWAYS_DOMAIN}")


def requested_name(hostname: str | None, backend: Backend) -> str | None:
    """Return the name in requests to the backend, which its certificate must prove; None if it is an IP address."""
    return hostname or (None if backend.address else backend.host)


def rendered_backend(manifest: Manifest) -> Backend | None:
    """Return the backend in the annotation of an endpoint's Service or Backend, used while the URL is invalid."""
    backend = read_url(manifest["metadata"].get("annotations", {}).get(labels.BACKEND, ""))
    return backend if isinstance(backend, Backend) else None
