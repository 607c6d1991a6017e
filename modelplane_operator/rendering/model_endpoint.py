"""What a ModelEndpoint is on the hub: a Service that stands for its backend.

The Service selects no pods; an EndpointSlice of ours says where it leads. Names stand there too (gateways take no
ExternalName Services), with a dot at the end, so that no search domain turns `redis.prod` into a Service of the hub.

TLS: a BackendTLSPolicy is the Gateway API's own word for "this is its name: send it, and verify it with the system's
authorities". The port also says `appProtocol: https`, which suffices for an address: a policy needs a name.

All of this is what Traefik understands. Envoy Gateway 1.9 reads no https from a port, and because of one name with a
dot at its end it passes over all changes of its Gateway: there an endpoint is a `Backend`, a kind of its own, and its
names are kept from being completed in another way (rendering/inference_gateway).

The endpoint of a replica leads to the gateway of a cluster, which answers nobody but the hub's. Whose endpoint may go
there with the hub's certificate is told by what it asks for, not by who says to have written it: its own namespace's
replica, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Final, assert_never

from modelplane_operator.api import labels, names
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.kube.objects import Manifest
from modelplane_operator.kube.ownership import FIELD_MANAGER
from modelplane_operator.rendering.backend_url import DEFAULT_PORTS, Backend, Fault, InvalidUrl, read_url
from modelplane_operator.rendering.credentials import Header
from modelplane_operator.rendering.inference_gateway import TRAEFIK, DataPlane
from modelplane_operator.rendering.model_replica.routing import replica_prefix
from modelplane_operator.rendering.owned import on_hub

# Where Traefik calls itself, to present the hub's certificate (gateway_relay.py).
RELAY: Final = "modelplane"
RELAY_HOST: Final = f"relay.{names.INTERNAL_DOMAIN}"
RELAY_PORT: Final = 8444


def render_model_endpoint(
    endpoint: ModelEndpoint, backend: Backend, plane: DataPlane = TRAEFIK, header: Header | None = None
) -> tuple[Manifest, ...]:
    """The objects of an endpoint whose URL leads to this backend, with the credentials that it has."""
    match plane.dialect:
        case "GatewayAPI":
            return _service(endpoint, backend)
        case "EnvoyGateway":
            return (_backend(endpoint, backend), *_injection(endpoint, header))
        case _:
            assert_never(plane.dialect)


def _service(endpoint: ModelEndpoint, backend: Backend) -> tuple[Manifest, ...]:
    name = names.endpoint_backend(endpoint.key.namespace, endpoint.key.name)
    if of_cluster(endpoint):
        return tuple(_by_relay(endpoint, backend, name))
    address_type = _address_type(backend)
    return (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**on_hub(endpoint, name), "annotations": {labels.BACKEND: str(backend)}},
            "spec": {
                "clusterIP": "None",  # nobody dials it, and a hub's addresses for Services are some thousands
                "ports": [
                    {
                        "name": backend.scheme,
                        "port": backend.port,
                        "targetPort": backend.port,
                        "protocol": "TCP",
                        "appProtocol": backend.scheme,
                    }
                ],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": on_hub(endpoint, names.endpoint_slice(name, address_type), extra=slice_labels(name)),
            "addressType": address_type,
            "ports": [
                {
                    "name": backend.scheme,
                    "port": backend.port,
                    "protocol": "TCP",
                    "appProtocol": backend.scheme,
                }
            ],
            # Traefik passes over an endpoint that does not say that it is ready.
            "endpoints": [
                {
                    "addresses": [_dialled(backend)],
                    "conditions": {"ready": True},
                }
            ],
        },
        *_tls_policy(endpoint, backend, name),
    )


def _by_relay(endpoint: ModelEndpoint, backend: Backend, name: str) -> Iterator[Manifest]:
    """A Service with two ports: by the one the gateway presents the hub's certificate, the other is as it was before.

    So a route that has not followed yet leads where it did.
    """
    plain = replace(backend, scheme="http", port=DEFAULT_PORTS["http"])
    ports = [
        {"name": name, "port": port, "targetPort": port, "protocol": "TCP", "appProtocol": "http"}
        for name, port in ((backend.scheme, backend.port), (plain.scheme, plain.port))
    ]
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**on_hub(endpoint, name), "annotations": {labels.BACKEND: str(backend)}},
        "spec": {"clusterIP": "None", "ports": ports},
    }
    for kind, address_type, place, scheme, port in (
        (RELAY, "FQDN", f"{RELAY_HOST}.", backend.scheme, RELAY_PORT),
        (_address_type(plain), _address_type(plain), _dialled(plain), plain.scheme, plain.port),
    ):
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": on_hub(endpoint, names.endpoint_slice(name, kind), extra=slice_labels(name)),
            "addressType": address_type,
            "ports": [{"name": scheme, "port": port, "protocol": "TCP", "appProtocol": "http"}],
            "endpoints": [{"addresses": [place], "conditions": {"ready": True}}],
        }


def _dialled(backend: Backend) -> str:
    return backend.host if backend.address else f"{backend.host}."


def _backend(endpoint: ModelEndpoint, backend: Backend) -> Manifest:
    name = names.endpoint_backend(endpoint.key.namespace, endpoint.key.name)
    place = {"ip": {"address": backend.host}} if backend.address else {"fqdn": {"hostname": backend.host}}
    trust = {"wellKnownCACertificates": "System", "sni": asked_name(endpoint.spec.hostname, backend)}
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "Backend",
        "metadata": {**on_hub(endpoint, name), "annotations": {labels.BACKEND: str(backend)}},
        "spec": {
            "endpoints": [{kind: {**where, "port": backend.port} for kind, where in place.items()}],
            **({"tls": trust} if backend.scheme == "https" else {}),
        },
    }


def _injection(endpoint: ModelEndpoint, header: Header | None) -> Sequence[Manifest]:
    if header is None or header.secret is None:
        return ()
    injected = {"header": header.name, "overwrite": True, "credential": {"valueRef": {"name": header.secret}}}
    return [
        {
            "apiVersion": "gateway.envoyproxy.io/v1alpha1",
            "kind": "HTTPRouteFilter",
            "metadata": on_hub(endpoint, names.endpoint_backend(*endpoint.key)),
            "spec": {"credentialInjection": injected},
        }
    ]


def slice_labels(service: str) -> dict[str, str]:
    """What ties an EndpointSlice of ours to its Service."""
    return {labels.SERVICE_NAME: service, labels.SLICE_MANAGER: FIELD_MANAGER}


def provable(endpoint: ModelEndpoint, backend: Backend, plane: DataPlane) -> Backend | InvalidUrl:
    """The backend, unless this gateway could not tell whether it is the one: Envoy Gateway verifies names alone."""
    name = (asked_name(endpoint.spec.hostname, backend) or "").lower()
    if name.endswith(f".{names.INTERNAL_DOMAIN}") and not (
        of_cluster(endpoint)
        and backend.scheme == "https"
        and endpoint.spec.rewrite_path == replica_prefix(endpoint.key)
    ):
        words = f"{name} is a name of the operator's: a ModelDeployment makes the endpoints of its replicas itself"
        return InvalidUrl(Fault.FORBIDDEN, words)
    if plane.dialect == "GatewayAPI" or backend.scheme == "http" or name:
        return backend
    return InvalidUrl(Fault.HOST, "Envoy Gateway cannot verify an address: set hostname to the name in its certificate")


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


def _address_type(backend: Backend) -> str:
    if backend.address is None:
        return "FQDN"
    return "IPv4" if isinstance(backend.address, IPv4Address) else "IPv6"


def _tls_policy(endpoint: ModelEndpoint, backend: Backend, name: str) -> Sequence[Manifest]:
    name_to_prove = asked_name(endpoint.spec.hostname, backend)
    if backend.scheme == "http" or name_to_prove is None:
        return ()
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "BackendTLSPolicy",
            "metadata": on_hub(endpoint, name),
            "spec": {
                "targetRefs": [{"group": "", "kind": "Service", "name": name}],
                "validation": {"hostname": name_to_prove, "wellKnownCACertificates": "System"},
            },
        }
    ]
