"""Render the charts of the hub gateway, with MetalLB for networks without load balancers."""

from __future__ import annotations

from typing import Final

from kubeloop.helm.release import Component, Release
from kubeloop.objects import Key, Manifest
from kubeloop.ownership import owner_labels
from modelplane_operator.api import labels, pins
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.owned import on_hub
from modelplane_operator.routing.gateway.data_plane import EVERYTHING, Allowed
from modelplane_operator.routing.gateway.render import DATA_PLANES, data_plane

METALLB: Final = "metallb"
METALLB_NAMESPACE: Final = "metallb-system"
METALLB_VERSION: Final = pins.METALLB.version
METALLB_REPOSITORY: Final = "https://metallb.github.io/metallb"
_POOL: Final = "modelplane"
NAMESPACES: Final = (*(plane.LOAD_BALANCER.namespace for plane in DATA_PLANES.values()), METALLB_NAMESPACE)
"""The namespaces that may have charts of the hub gateway."""


def gateway_parts(gateway: InferenceGateway, allowed: Allowed = EVERYTHING) -> tuple[Component, ...]:
    """Return the charts of the hub gateway, each after its dependencies."""
    plane = data_plane(gateway)
    software = plane.software(gateway.spec)
    if software is None:
        return ()
    balancer = (_build_metallb(gateway),) if software.load_balancer == "MetalLB" else ()
    return (*balancer, plane.chart(gateway, software, allowed))


def _build_metallb(gateway: InferenceGateway) -> Component:
    """Return the chart of MetalLB."""
    release = Key(METALLB_NAMESPACE, "mp-metallb")
    own_labels = owner_labels(gateway)
    return Component(
        METALLB, Release(release, METALLB, METALLB_REPOSITORY, METALLB_VERSION, values={}, labels=own_labels)
    )


def render_namespaces(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    """Return the namespaces of the charts, for hubs that do not have them yet."""
    # MetalLB's speaker uses the node's network.
    levels = {METALLB_NAMESPACE: "privileged"}
    chart_namespaces = dict.fromkeys(component.release.key.namespace for component in gateway_parts(gateway))
    return tuple(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": on_hub(gateway, name, extra={labels.POD_SECURITY: levels.get(name, "restricted")}),
        }
        for name in chart_namespaces
    )


def render_addresses(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    """Return the addresses that MetalLB assigns, and their announcement; applied once MetalLB is installed."""
    software = data_plane(gateway).software(gateway.spec)
    if software is None or software.load_balancer != "MetalLB" or software.metallb is None:
        return ()
    metadata = on_hub(gateway, _POOL, namespace=METALLB_NAMESPACE)
    return (
        {
            "apiVersion": "metallb.io/v1beta1",
            "kind": "IPAddressPool",
            "metadata": metadata,
            "spec": {"addresses": [software.metallb.address_pool]},
        },
        {
            "apiVersion": "metallb.io/v1beta1",
            "kind": "L2Advertisement",
            "metadata": metadata,
            "spec": {"ipAddressPools": [_POOL]},
        },
    )
