"""The software of the hub's front door: Traefik, and MetalLB where the network has no load balancers."""

from __future__ import annotations

from typing import Final

from modelplane_operator.api import labels
from modelplane_operator.api.base import Key
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model import Manifest
from modelplane_operator.api.release import Part, Release
from modelplane_operator.rendering.inference_gateway import data_plane
from modelplane_operator.rendering.owned import on_hub, owner_labels

TRAEFIK: Final = "traefik"
METALLB: Final = "metallb"
METALLB_NAMESPACE: Final = "metallb-system"
METALLB_VERSION: Final = "0.14.9"
TRAEFIK_REPOSITORY: Final = "https://traefik.github.io/charts"
METALLB_REPOSITORY: Final = "https://metallb.github.io/metallb"
_POOL: Final = "modelplane"


def gateway_parts(gateway: InferenceGateway) -> tuple[Part, ...]:
    """The charts of the front door, each after what it needs."""
    match gateway.spec.backend:
        case "Traefik":
            return _traefik(gateway)
        case "EnvoyGateway":
            return ()


def _traefik(gateway: InferenceGateway) -> tuple[Part, ...]:
    traefik = gateway.spec.traefik
    if traefik is None:
        return ()
    ours = owner_labels(gateway)
    balancer = data_plane(gateway).load_balancer
    metallb = Part(
        METALLB,
        Release(
            Key(METALLB_NAMESPACE, "mp-metallb"), METALLB, METALLB_REPOSITORY, METALLB_VERSION, values={}, labels=ours
        ),
    )
    values = {
        "providers": {
            "kubernetesGateway": {
                "enabled": True,
                "statusAddress": {"service": {"name": balancer.name, "namespace": balancer.namespace}},
            },
            "kubernetesIngress": {"enabled": False},
        },
        "service": {"nameOverride": balancer.name},
        "experimental": {"fastProxy": {"enabled": True}},
        # By itself the chart makes Traefik what serves every Ingress of the hub that names no class.
        "ingressClass": {"enabled": False},
        # The Gateway and its class are ours to make.
        "gateway": {"enabled": False},
        "gatewayClass": {"enabled": False},
    }
    return (
        *((metallb,) if traefik.load_balancer == "MetalLB" else ()),
        Part(
            TRAEFIK,
            Release(
                Key(balancer.namespace, "mp-traefik"),
                TRAEFIK,
                TRAEFIK_REPOSITORY,
                traefik.version,
                values=values,
                labels=ours,
            ),
        ),
    )


def render_namespaces(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    """Where the charts go; for a hub that has none of that name yet."""
    # What MetalLB announces addresses with uses the node's own network.
    privileged = {METALLB_NAMESPACE: {labels.POD_SECURITY: "privileged"}}
    wanted = dict.fromkeys(part.release.key.namespace for part in gateway_parts(gateway))
    return tuple(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": on_hub(gateway, name, extra=privileged.get(name))}
        for name in wanted
    )


def render_addresses(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    """The addresses that MetalLB gives out, and that it announces them; for when MetalLB is there."""
    traefik = gateway.spec.traefik
    if traefik is None or traefik.load_balancer != "MetalLB" or traefik.metallb is None:
        return ()
    metadata = on_hub(gateway, _POOL, namespace=METALLB_NAMESPACE)
    return (
        {
            "apiVersion": "metallb.io/v1beta1",
            "kind": "IPAddressPool",
            "metadata": metadata,
            "spec": {"addresses": [traefik.metallb.address_pool]},
        },
        {
            "apiVersion": "metallb.io/v1beta1",
            "kind": "L2Advertisement",
            "metadata": metadata,
            "spec": {"ipAddressPools": [_POOL]},
        },
    )
