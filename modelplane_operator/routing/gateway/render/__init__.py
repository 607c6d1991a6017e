"""The Gateway of an InferenceGateway, that every model's route hangs on, and under which address it is reached."""

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

_ADDRESS = re.compile("[-.:_a-zA-Z0-9]{1,253}")  # it becomes a part of URLs, and a cluster may say anything

KEYS: Final = (f"modelplane-keys.{names.SYSTEM_NAMESPACE}.svc.cluster.local", 8081)
"""Where the chart has the key service."""

DATA_PLANES: Mapping[str, DataPlane] = {"Traefik": traefik, "EnvoyGateway": envoy_gateway}


def data_plane(gateway: InferenceGateway) -> DataPlane:
    return DATA_PLANES[gateway.spec.backend]


def known_plane(children: Iterable[ResourceType]) -> DataPlane | None:
    """The one that the objects of an endpoint were written for, by their types."""
    there = {*children}
    return next((plane for plane in DATA_PLANES.values() if plane.ENDPOINT in there), None)


@dataclass(frozen=True, slots=True)
class HubGateway:
    """What the route of a service has to know."""

    plane: DataPlane = traefik
    tls_only: bool = field(default=False)
    """Whether clients are answered by https alone."""
    auth: Auth | None = None
    """Who may ask, where a service says nothing."""
    keys: tuple[str, int] = KEYS
    """Host and port of the key service."""
    signing: str = field(default="", repr=False)
    """What signs where the key service is asked; empty while that is not there."""
    mark: str = ""
    """What requests to endpoints of users carry (hops.py); empty while that is not known."""


def hub_gateway(
    gateway: InferenceGateway | None, keys: tuple[str, int] = KEYS, mark: str = "", signing: str = ""
) -> HubGateway:
    if gateway is None:
        return HubGateway(keys=keys, mark=mark, signing=signing)
    tls = gateway.spec.tls
    tls_only = tls is not None and tls.http == "Refused"
    plane, auth = data_plane(gateway), gateway.spec.auth
    return HubGateway(plane, tls_only=tls_only, auth=auth, keys=keys, mark=mark, signing=signing)


def render_inference_gateway(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    """The Gateway, after what it needs."""
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
                # The gateway calls itself by http (weights.py), even where clients cannot.
                "listeners": [_listener("web", "HTTP", plane.PORT), *_tls_listeners(gateway, plane)],
            },
        },
        *plane.render_after(gateway),
    )


def secure_listeners(tls: TLS) -> Mapping[str, str]:
    """The host name of each listener by https."""
    return {f"https-{number}": hostname for number, hostname in enumerate(tls.hostnames)}


def _tls_listeners(gateway: InferenceGateway, plane: DataPlane) -> Iterator[Manifest]:
    tls = gateway.spec.tls
    if tls is None:
        return
    certificate = {"group": "", "kind": "Secret", "name": tls.secret_ref.name}
    terminated = {"mode": "Terminate", "certificateRefs": [certificate]}
    for name, hostname in secure_listeners(tls).items():
        yield {**_listener(name, "HTTPS", plane.TLS_PORT), "hostname": hostname, "tls": terminated}


def _listener(name: str, protocol: str, port: int) -> Manifest:
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
    """Where clients reach a Gateway as it was observed; None until its load balancer has an address."""
    addresses: list[Manifest] = gateway.get("status", {}).get("addresses") or []
    told = (one.get("value") for one in addresses)
    return next((value for value in told if isinstance(value, str) and _ADDRESS.fullmatch(value)), None)


def models_url(gateway: InferenceGateway) -> str | None:
    """The beginning of every model's URL, as far as the gateway is known to answer there."""
    known = gateway.status
    if known is None or known.url or gateway.spec.tls or known.address is None:
        return known.url if known else None
    return url_of(known.address)  # an older operator's status has no URL


def hosts_of(gateway: InferenceGateway) -> frozenset[str]:
    """The hosts that URLs of the hub gateway have, as far as its own object says so.

    A certificate's `*.example.com` is none: other servers of that domain may well be elsewhere.
    """
    known, tls = gateway.status, gateway.spec.tls
    own = read_url(url_of(known.address)) if known and known.address else None
    return frozenset({*([own.host] if isinstance(own, Backend) else []), *(tls.hostnames if tls else ())})


def url_of(address: str, scheme: str = "http") -> str:
    """The beginning of every URL behind a gateway with this address."""
    return f"{scheme}://[{address}]" if ":" in address else f"{scheme}://{address}"
