"""What a ModelEndpoint is on the hub: something that stands for its backend, of a kind that its data plane knows.

The endpoint of a replica leads to the gateway of a cluster, which answers nobody but the hub's. Whose endpoint may go
there with the hub's certificate is told by what it asks for, not by who says to have written it: its own namespace's
replica, and nothing else.
"""

from __future__ import annotations

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.models.replica.render.routing import replica_prefix
from modelplane_operator.routing.endpoint.backend_url import Backend, InvalidUrl, UrlFault, read_url
from modelplane_operator.routing.gateway.data_plane import DataPlane


def provable(endpoint: ModelEndpoint, backend: Backend, plane: DataPlane) -> Backend | InvalidUrl:
    """The backend, unless nobody could tell whether it is the one."""
    name = (asked_name(endpoint.spec.hostname, backend) or "").lower()
    if name.endswith(f".{names.INTERNAL_DOMAIN}") and not (
        of_cluster(endpoint)
        and backend.scheme == "https"
        and endpoint.spec.rewrite_path == replica_prefix(endpoint.key)
    ):
        words = f"{name} is a name of the operator's: a ModelDeployment makes the endpoints of its replicas itself"
        return InvalidUrl(UrlFault.FORBIDDEN, words)
    words = plane.unprovable(name, backend)
    return InvalidUrl(UrlFault.HOST, words) if words else backend


def of_cluster(endpoint: ModelEndpoint) -> bool:
    """Whether it is asked for by the name of a cluster's gateway."""
    return (endpoint.spec.hostname or "").lower().endswith(f".{names.GATEWAYS_DOMAIN}")


def asked_name(hostname: str | None, backend: Backend) -> str | None:
    """The name that the backend is asked by, and has to prove with https; None when it has no more than an address."""
    return hostname or (None if backend.address else backend.host)


def known_backend(manifest: Manifest) -> Backend | None:
    """Where a Service or Backend of an endpoint leads: what holds on while the endpoint's URL cannot be used."""
    backend = read_url(manifest["metadata"].get("annotations", {}).get(labels.BACKEND, ""))
    return backend if isinstance(backend, Backend) else None
