"""Render the Gateway of an InferenceGateway, to which all models' routes attach, and read its address."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubeloop.objects import Manifest
from kubeloop.types import ResourceType
from modelplane_operator.api import names
from modelplane_operator.api.auth import Auth
from modelplane_operator.api.inference_gateway import TLS, InferenceGateway
from modelplane_operator.owned import on_hub
from modelplane_operator.routing.endpoint.backend_url import Backend, read_url
from modelplane_operator.routing.gateway import envoy_gateway, traefik
from modelplane_operator.routing.gateway.data_plane import DataPlane

_ADDRESS = re.compile("[-.:_a-zA-Z0-9]{1,253}")  # it becomes part of URLs, and a hostile cluster may report any text

KEYS: Final = (f"modelplane-keys.{names.SYSTEM_NAMESPACE}.svc.cluster.local", 8081)
"""Host and port of the key service, as the chart has them."""

DATA_PLANES: Mapping[str, DataPlane] = {"Traefik": traefik, "EnvoyGateway": envoy_gateway}


def data_plane(gateway: InferenceGateway) -> DataPlane:
    """Return the data plane of an InferenceGateway."""
    return DATA_PLANES[gateway.spec.backend]


def rendered_data_plane(children: Iterable[ResourceType]) -> DataPlane | None:
    """Return the data plane for which an endpoint's objects were rendered, by their types; None if there are none."""
    types = {*children}
    return next((plane for plane in DATA_PLANES.values() if plane.ENDPOINT in types), None)


@dataclass(frozen=True, slots=True)
class HubGateway:
    """The settings of the hub gateway that the routes of a service depend on."""

    plane: DataPlane = traefik
    """Data plane that renders routes and policies."""
    tls_only: bool = field(default=False)
    """True if clients are served by https only."""
    auth: Auth | None = None
    """The default for services that do not set `auth`."""
    keys: tuple[str, int] = KEYS
    """Host and port of the key service."""
    signing: str = field(default="", repr=False)
    """The key that signs paths of the key service; empty while there is none."""
    mark: str = ""
    """The header on requests to users' endpoints (hops.py); empty while it is unknown."""


def hub_gateway(
    gateway: InferenceGateway | None, keys: tuple[str, int] = KEYS, mark: str = "", signing: str = ""
) -> HubGateway:
    """Return the settings of the hub gateway; the defaults if there is no InferenceGateway."""
    if gateway is None:
        return HubGateway(keys=keys, mark=mark, signing=signing)
    tls = gateway.spec.tls
    tls_only = tls is not None and tls.http == "Refused"
    plane, auth = data_plane(gateway), gateway.spec.auth
    return HubGateway(plane, tls_only=tls_only, auth=auth, keys=keys, mark=mark, signing=signing)


def render_inference_gateway(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    """Return the Gateway and the objects around it, each after those that it needs."""
    plane = data_plane(gateway)
    return (
        *plane.render_before(gateway),
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": on_hub(gateway, plane.GATEWAY_CLASS),
            "spec": {"controllerName": plane.CONTROLLER, **plane.CLASS},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": on_hub(gateway, names.HUB_GATEWAY, namespace=names.SYSTEM_NAMESPACE),
            "spec": {
                "gatewayClassName": plane.GATEWAY_CLASS,
                # Always has http, by which the gateway calls itself (weights.py), even if clients may not use it.
                "listeners": [_build_listener("web", "HTTP", plane.PORT), *_build_tls_listeners(gateway, plane)],
            },
        },
        *plane.render_after(gateway),
    )


def secure_listeners(tls: TLS) -> Mapping[str, str]:
    """Return the host name of each https listener, by its name."""
    return {f"https-{number}": hostname for number, hostname in enumerate(tls.hostnames)}


def _build_tls_listeners(gateway: InferenceGateway, plane: DataPlane) -> Iterator[Manifest]:
    """Yield the https listeners."""
    tls = gateway.spec.tls
    if tls is None:
        return
    certificate = {"group": "", "kind": "Secret", "name": tls.secret_ref.name}
    termination = {"mode": "Terminate", "certificateRefs": [certificate]}
    for name, hostname in secure_listeners(tls).items():
        yield {**_build_listener(name, "HTTPS", plane.TLS_PORT), "hostname": hostname, "tls": termination}


def _build_listener(name: str, protocol: str, port: int) -> Manifest:
    """Return a listener for HTTPRoutes of all namespaces."""
    return {
        "name": name,
        "protocol": protocol,
        "port": port,
        "allowedRoutes": {
            "namespaces": {"from": "All"},
            "kinds": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute"}],
        },
    }


def address_of(gateway: Manifest) -> str | None:
    """Return the address at which clients reach an observed Gateway; None until its load balancer has one."""
    addresses: list[Manifest] = gateway.get("status", {}).get("addresses") or []
    reported = (address.get("value") for address in addresses)
    return next((value for value in reported if isinstance(value, str) and _ADDRESS.fullmatch(value)), None)


def models_url(gateway: InferenceGateway) -> str | None:
    """Return the beginning of all models' URLs; None while it is unknown."""
    status = gateway.status
    if status is None or status.url or gateway.spec.tls or status.address is None:
        return status.url if status else None
    return url_of(status.address)  # written by an older version, without a URL


def hosts_of(gateway: InferenceGateway) -> frozenset[str]:
    """Return the hosts of the hub gateway's URLs, as far as its own object has them.

    A wildcard of its certificate does not count, as other servers may have names in that domain.
    """
    status, tls = gateway.status, gateway.spec.tls
    backend = read_url(url_of(status.address)) if status and status.address else None
    return frozenset({*([backend.host] if isinstance(backend, Backend) else []), *(tls.hostnames if tls else ())})


def url_of(address: str, scheme: str = "http") -> str:
    """Return the beginning of URLs at a gateway's address."""
    return f"{scheme}://[{address}]" if ":" in address else f"{scheme}://{address}"
