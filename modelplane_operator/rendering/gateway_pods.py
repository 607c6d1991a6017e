"""How a gateway runs, in the words of what runs it: Envoy Gateway's EnvoyProxy, and the values of Traefik's chart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modelplane_operator.api.gateway_pods import GatewayPods, GatewayService
from modelplane_operator.api.model import Manifest

# Each cloud heeds its own, and passes over the others'.
INTERNAL: Final[Mapping[str, str]] = {
    "networking.gke.io/load-balancer-type": "Internal",
    "service.beta.kubernetes.io/aws-load-balancer-internal": "true",  # by Kubernetes itself
    "service.beta.kubernetes.io/aws-load-balancer-scheme": "internal",  # by AWS' own controller
    "service.beta.kubernetes.io/azure-load-balancer-internal": "true",
}


def envoy_provider(pods: GatewayPods, service: str | None = None) -> Manifest:
    """The provider of an EnvoyProxy, with the name of its Service where that has to be known."""
    asked = pods.service or GatewayService()
    resources = pods.resources.to_manifest() if pods.resources else {}
    deployment = {
        **({"replicas": pods.replicas} if pods.replicas else {}),
        **({"container": {"resources": resources}} if resources else {}),
    }
    return {
        "type": "Kubernetes",
        "kubernetes": {
            **({"envoyDeployment": deployment} if deployment else {}),
            "envoyService": {
                **({"name": service} if service else {}),
                # The default, Local, drops what a load balancer sends to a node without an Envoy: Nebius's does.
                "externalTrafficPolicy": "Cluster",
                **_annotated(asked),
                **_class(asked),
                **_ranges(asked),
            },
        },
    }


def traefik_values(pods: GatewayPods, service: str) -> Manifest:
    """Values of Traefik's chart, with the name of its Service."""
    asked = pods.service or GatewayService()
    resources = pods.resources.to_manifest() if pods.resources else {}
    classed = {"spec": spec} if (spec := _class(asked)) else {}
    return {
        "service": {"nameOverride": service, **_annotated(asked), **classed, **_ranges(asked)},
        **({"deployment": {"replicas": pods.replicas}} if pods.replicas else {}),
        **({"resources": resources} if resources else {}),
    }


def _annotated(service: GatewayService) -> Manifest:
    annotations = {**(INTERNAL if service.scope == "Internal" else {}), **service.annotations}
    return {"annotations": annotations} if annotations else {}


def _class(service: GatewayService) -> Manifest:
    return {"loadBalancerClass": service.load_balancer_class} if service.load_balancer_class else {}


def _ranges(service: GatewayService) -> Manifest:
    ranges = service.load_balancer_source_ranges
    return {"loadBalancerSourceRanges": list(ranges)} if ranges else {}
