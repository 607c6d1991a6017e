"""The software of the hub's hub gateway, and MetalLB where the network has no load balancers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_gateway import InferenceGateway, Software
from modelplane_operator.kube.objects import Key, Manifest
from modelplane_operator.kube.releases import Part, Release
from modelplane_operator.rendering.cluster_gateway import ENVOY_CHART, ENVOY_NAMESPACE, ENVOY_REPOSITORY
from modelplane_operator.rendering.gateway_pods import LEAVE, LOST, life_cycle, traefik_values
from modelplane_operator.rendering.inference_gateway import TRAEFIK as TRAEFIK_PLANE
from modelplane_operator.rendering.inference_gateway import data_plane
from modelplane_operator.rendering.model_endpoint import RELAY, RELAY_HOST, RELAY_PORT
from modelplane_operator.rendering.owned import on_hub, owner_labels

TRAEFIK: Final = "traefik"
ENVOY_GATEWAY: Final = "envoy-gateway"
METALLB: Final = "metallb"
METALLB_NAMESPACE: Final = "metallb-system"
METALLB_VERSION: Final = "0.14.9"
TRAEFIK_REPOSITORY: Final = "https://traefik.github.io/charts"
METALLB_REPOSITORY: Final = "https://metallb.github.io/metallb"
_POOL: Final = "modelplane"
NAMESPACES: Final = (TRAEFIK_PLANE.load_balancer.namespace, ENVOY_NAMESPACE, METALLB_NAMESPACE)
"""Where charts of the hub gateway may be."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the hub lets the hub gateway's software do."""

    traefik_account: str = ""
    """The account of Traefik's namespace that has its rights; empty: its chart makes one."""
    tenants: tuple[str, ...] = ()
    """The namespaces that Traefik serves; none: all."""


EVERYTHING: Final = Allowed()


def gateway_parts(gateway: InferenceGateway, allowed: Allowed = EVERYTHING) -> tuple[Part, ...]:
    """The charts of the hub gateway, each after what it needs."""
    software = gateway.spec.software
    if software is None:
        return ()
    balancer = (_metallb(gateway),) if software.load_balancer == "MetalLB" else ()
    match gateway.spec.backend:
        case "Traefik":
            return (*balancer, _traefik(gateway, software, allowed))
        case "EnvoyGateway":
            return (*balancer, _envoy_gateway(gateway, software))


def _metallb(gateway: InferenceGateway) -> Part:
    release = Key(METALLB_NAMESPACE, "mp-metallb")
    ours = owner_labels(gateway)
    return Part(METALLB, Release(release, METALLB, METALLB_REPOSITORY, METALLB_VERSION, values={}, labels=ours))


def _envoy_gateway(gateway: InferenceGateway, software: Software) -> Part:
    values = {
        "deployment": {"pod": {"tolerations": LOST}},
        # What endpoints are to it.
        "config": {"envoyGateway": {"extensionApis": {"enableBackend": True}}},
        # Tells Envoys the zone that they are in, which nothing here asks for, by a webhook before every pod's binding.
        "topologyInjector": {"enabled": False},
        # Its policy would refuse others their versions of the Gateway API's kinds, on the whole hub.
        "crds": {"gatewayAPI": {"safeUpgradePolicy": {"enabled": False}}},
    }
    release = Key(ENVOY_NAMESPACE, f"mp-{ENVOY_CHART}")
    ours = owner_labels(gateway)
    chart = Release(release, ENVOY_CHART, ENVOY_REPOSITORY, software.version, values, ours, software.digest)
    return Part(ENVOY_GATEWAY, chart)


def _traefik(gateway: InferenceGateway, software: Software, allowed: Allowed) -> Part:
    balancer = data_plane(gateway).load_balancer
    served = (names.SYSTEM_NAMESPACE, balancer.namespace, *allowed.tenants) if allowed.tenants else ()
    pods = traefik_values(gateway.spec, balancer.name)
    values = {
        "providers": {
            "kubernetesGateway": {
                "enabled": True,
                "statusAddress": {"service": {"name": balancer.name, "namespace": balancer.namespace}},
                **({"namespaces": list(served)} if served else {}),
            },
            # What leads to clusters (gateway_relay.py), and what asks for API keys. Only what the operator made:
            # IngressRoutes of anybody else would answer at any path.
            "kubernetesCRD": {
                "enabled": True,
                "labelSelector": labels.OWNER_UID,
                **({"namespaces": list(served)} if served else {}),
            },
            "kubernetesIngress": {"enabled": False},
        },
        # What its namespace demands (render_namespaces), whatever the chart's version says by itself.
        "podSecurityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **(
            {"rbac": {"enabled": False}, "serviceAccount": {"name": allowed.traefik_account}}
            if allowed.traefik_account
            else {}
        ),
        **pods,
        "deployment": {**pods["deployment"], "hostAliases": [{"ip": "127.0.0.1", "hostnames": [RELAY_HOST]}]},
        "additionalArguments": [
            f"--entryPoints.{RELAY}.address=127.0.0.1:{RELAY_PORT}/tcp",
            f"--entryPoints.{RELAY}.forwardedHeaders.insecure=true",  # nobody but itself comes by there
            # It ends after those by which requests come.
            *(
                f"--entryPoints.{RELAY}.transport.lifeCycle.{key}={value}"
                for key, value in life_cycle(leave=LEAVE + 5).items()
            ),
        ],
        "experimental": {"fastProxy": {"enabled": True}},
        # By itself the chart makes Traefik what serves every Ingress of the hub that names no class.
        "ingressClass": {"enabled": False},
        # The Gateway and its class are ours to make.
        "gateway": {"enabled": False},
        "gatewayClass": {"enabled": False},
    }
    release, ours = Key(balancer.namespace, "mp-traefik"), owner_labels(gateway)
    chart = Release(release, TRAEFIK, TRAEFIK_REPOSITORY, software.version, values, ours, software.digest)
    return Part(TRAEFIK, chart)


def render_namespaces(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    """Where the charts go; for a hub that has none of that name yet."""
    # What MetalLB announces addresses with uses the node's own network.
    levels = {METALLB_NAMESPACE: "privileged"}
    wanted = dict.fromkeys(part.release.key.namespace for part in gateway_parts(gateway))
    return tuple(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": on_hub(gateway, name, extra={labels.POD_SECURITY: levels.get(name, "restricted")}),
        }
        for name in wanted
    )


def render_addresses(gateway: InferenceGateway) -> tuple[Manifest, ...]:
    """The addresses that MetalLB gives out, and that it announces them; for when MetalLB is there."""
    software = gateway.spec.software
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
