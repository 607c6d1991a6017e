"""The routing half of an InferenceGateway: the Gateway that every model's route hangs on, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modelplane_operator.api import names
from modelplane_operator.api.base import Key
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model import Manifest
from modelplane_operator.rendering.owned import on_hub


@dataclass(frozen=True, slots=True)
class DataPlane:
    """What answers requests: how the Gateway API knows it, and where its load balancer is to be found."""

    gateway_class: str
    controller: str
    port: int
    """Of the Gateway's listener. The load balancer listens on 80."""
    load_balancer: Key
    """The Service of type LoadBalancer that gives the Gateway its address."""


# Traefik listens on 8000 inside, and wants its listeners to say so; its chart makes the load balancer.
TRAEFIK = DataPlane(
    gateway_class="traefik",
    controller="traefik.io/gateway-controller",
    port=8000,
    load_balancer=Key("traefik-system", "traefik"),
)
DATA_PLANES: Mapping[str, DataPlane] = {"Traefik": TRAEFIK}


def data_plane(gateway: InferenceGateway) -> DataPlane:
    return DATA_PLANES[gateway.spec.backend]


def render_inference_gateway(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    """The GatewayClass and the Gateway."""
    plane = data_plane(gateway)
    return (
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": on_hub(gateway, plane.gateway_class),
            "spec": {"controllerName": plane.controller},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": on_hub(gateway, names.HUB_GATEWAY, namespace=names.SYSTEM_NAMESPACE),
            "spec": {
                "gatewayClassName": plane.gateway_class,
                "listeners": [
                    {
                        "name": "web",
                        "protocol": "HTTP",
                        "port": plane.port,
                        "allowedRoutes": {
                            "namespaces": {"from": "All"},
                            "kinds": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute"}],
                        },
                    }
                ],
            },
        },
    )


def address_of(gateway: Manifest) -> str | None:
    """Where clients reach a Gateway as it was observed; None until its load balancer has an address."""
    addresses: list[Manifest] = gateway.get("status", {}).get("addresses") or []
    return addresses[0].get("value") if addresses else None


def url_of(address: str) -> str:
    """The beginning of every URL behind a gateway with this address."""
    return f"http://[{address}]" if ":" in address else f"http://{address}"
