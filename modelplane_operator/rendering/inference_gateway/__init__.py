"""The Gateway of an InferenceGateway, that every model's route hangs on, and under which address it is reached."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from modelplane_operator.api import names
from modelplane_operator.api.auth import Auth
from modelplane_operator.api.inference_gateway import TLS, InferenceGateway
from modelplane_operator.kube.objects import Key, Manifest
from modelplane_operator.rendering.backend_url import Backend, read_url
from modelplane_operator.rendering.cluster_gateway import CONTROLLER, ENVOY_NAMESPACE
from modelplane_operator.rendering.envoy_policies import backend_policy, client_policy
from modelplane_operator.rendering.gateway_pods import envoy_proxy
from modelplane_operator.rendering.owned import on_hub

_ADDRESS = re.compile("[-.:_a-zA-Z0-9]{1,253}")  # it becomes a part of URLs, and a cluster may say anything

KEYS: Final = (f"modelplane-keys.{names.SYSTEM_NAMESPACE}.svc.cluster.local", 8081)
"""Where the chart has the key service."""

Dialect = Literal["GatewayAPI", "EnvoyGateway"]


@dataclass(frozen=True, slots=True)
class DataPlane:
    """What answers requests: how the Gateway API knows it, and where its load balancer is to be found."""

    dialect: Dialect
    """How endpoints and routes are written for it."""
    gateway_class: str
    controller: str
    port: int
    """Of the Gateway's listener."""
    tls_port: int
    """Of its listeners by https. The load balancer listens on 443."""
    load_balancer: Key
    """The Service of type LoadBalancer that gives the Gateway its address."""
    domain: str
    """What completes the name of that Service, for the gateway itself."""
    balancer_port: int = 80


# Traefik listens on 8000 and 8443 inside, and wants its listeners to say so; its chart makes the load balancer.
TRAEFIK = DataPlane(
    dialect="GatewayAPI",
    gateway_class="traefik",
    controller="traefik.io/gateway-controller",
    port=8000,
    tls_port=8443,
    load_balancer=Key("traefik-system", "traefik"),
    domain="svc",
)
# Its Envoys complete no names (_BOOTSTRAP), and know the cluster's domain as its chart does by default.
ENVOY_GATEWAY = DataPlane(
    dialect="EnvoyGateway",
    gateway_class="envoy",
    controller=CONTROLLER,
    port=80,
    tls_port=443,
    load_balancer=Key(ENVOY_NAMESPACE, names.HUB_GATEWAY),
    domain="svc.cluster.local",
)
DATA_PLANES: Mapping[str, DataPlane] = {"Traefik": TRAEFIK, "EnvoyGateway": ENVOY_GATEWAY}

_PARAMETERS = {
    "group": "gateway.envoyproxy.io",
    "kind": "EnvoyProxy",
    "name": names.HUB_GATEWAY,
    "namespace": names.SYSTEM_NAMESPACE,
}
# No search domain shall turn an endpoint's name, `redis.prod`, into a Service of the hub.
_BOOTSTRAP = """\
typed_dns_resolver_config:
  name: envoy.network.dns_resolver.cares
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
    dns_resolver_options: {no_default_search_domain: true}
"""


def data_plane(gateway: InferenceGateway) -> DataPlane:
    return DATA_PLANES[gateway.spec.backend]


@dataclass(frozen=True, slots=True)
class HubGateway:
    """What the route of a service has to know."""

    plane: DataPlane = TRAEFIK
    tls_only: bool = field(default=False)
    """Whether clients are answered by https alone."""
    auth: Auth | None = None
    """Who may ask, where a service says nothing."""
    keys: tuple[str, int] = KEYS
    """Host and port of the key service."""
    mark: str = ""
    """What requests to endpoints of users carry (hops.py); empty while that is not known."""


def hub_gateway(gateway: InferenceGateway | None, keys: tuple[str, int] = KEYS, mark: str = "") -> HubGateway:
    if gateway is None:
        return HubGateway(keys=keys, mark=mark)
    tls = gateway.spec.tls
    tls_only = tls is not None and tls.http == "Refused"
    return HubGateway(data_plane(gateway), tls_only=tls_only, auth=gateway.spec.auth, keys=keys, mark=mark)


def render_inference_gateway(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    """The Gateway, and before it what it needs."""
    plane = data_plane(gateway)
    envoy = plane.dialect == "EnvoyGateway"
    return (
        *([_envoy_proxy(gateway)] if envoy else []),
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": on_hub(gateway, plane.gateway_class),
            "spec": {"controllerName": plane.controller, **({"parametersRef": _PARAMETERS} if envoy else {})},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": on_hub(gateway, names.HUB_GATEWAY, namespace=names.SYSTEM_NAMESPACE),
            "spec": {
                "gatewayClassName": plane.gateway_class,
                # The gateway calls itself by http (shares.py), even where clients cannot.
                "listeners": [_listener("web", "HTTP", plane.port), *_tls_listeners(gateway, plane)],
            },
        },
        *(_envoy_policies(gateway) if envoy else ()),
    )


def _envoy_policies(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    metadata = on_hub(gateway, names.HUB_GATEWAY, namespace=names.SYSTEM_NAMESPACE)
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": names.HUB_GATEWAY}
    # Gateways of clusters end idle connections after 120 s, and it takes a moment to reach them.
    return client_policy(metadata, target), backend_policy(metadata, target, idle="60s")


def _envoy_proxy(gateway: InferenceGateway) -> Manifest:
    """How Envoy Gateway runs the Envoys of the hub gateway."""
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "EnvoyProxy",
        "metadata": on_hub(gateway, names.HUB_GATEWAY, namespace=names.SYSTEM_NAMESPACE),
        "spec": {
            **envoy_proxy(gateway.spec, names.HUB_GATEWAY, names.HUB_GATEWAY),
            "bootstrap": {"type": "Merge", "value": _BOOTSTRAP},
        },
    }


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
        yield {**_listener(name, "HTTPS", plane.tls_port), "hostname": hostname, "tls": terminated}


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
