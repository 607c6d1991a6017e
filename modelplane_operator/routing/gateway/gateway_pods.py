"""Render how a gateway's pods and Service run: Envoy Gateway's EnvoyProxy, and the values of Traefik's chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from kubeloop.objects import Manifest, section
from modelplane_operator.api import names
from modelplane_operator.api.gateway_pods import GatewayPods, GatewayService
from modelplane_operator.models.replica.render.kubelets import LOST, PROBE_GRACE, apart

# Each cloud uses its own annotation and ignores the others.
INTERNAL: Final[Mapping[str, str]] = {
    "networking.gke.io/load-balancer-type": "Internal",
    "service.beta.kubernetes.io/aws-load-balancer-internal": "true",  # by Kubernetes itself
    "service.beta.kubernetes.io/aws-load-balancer-scheme": "internal",  # by AWS' own controller
    "service.beta.kubernetes.io/azure-load-balancer-internal": "true",
}
AWS_TYPE: Final = "service.beta.kubernetes.io/aws-load-balancer-type"
# Annotations for load balancers that keep connections open while a model computes: a Classic Load Balancer of AWS
# closes them after a minute despite keepalives, and Azure's after four. docs/hub-gateway.md has the others.
PATIENT: Final[Mapping[str, str]] = {
    AWS_TYPE: "nlb",
    # minutes, the maximum that all versions accept
    "service.beta.kubernetes.io/azure-load-balancer-tcp-idle-timeout": "30",
}

GIVE_ADDRESSES: Final = "install something that gives addresses to Services of type LoadBalancer there, such as MetalLB"
REPLICAS: Final = 2  # default, to survive the loss of one node
READ: Final = "600s"  # to read a request with its body; Traefik's default of a minute is too short for an hour of audio
DRAIN: Final = 900  # seconds for responses to finish when a pod or listener is replaced
LEAVE: Final = 15  # seconds until load balancers stop sending requests to a terminating pod
# Envoy Gateway's default probes time out after a second, and a container that they restart drains as long as a
# terminating pod: a helper that hangs would make its Envoy reject all requests for that time.
_RESTART: Final[Manifest] = {"livenessProbe": {"timeoutSeconds": 5, **PROBE_GRACE}}
_RESTARTED: Final[list[Manifest]] = [{"name": name, **_RESTART} for name in ("envoy", "shutdown-manager")]
_PATCH: Final[Manifest] = {"spec": {"template": {"spec": {"containers": _RESTARTED}}}}
_BUDGET: Final[Manifest] = {"maxUnavailable": 1}  # never blocks the drain of a node, even with one pod


def envoy_proxy(pods: GatewayPods, gateway: str, service: str | None = None) -> Manifest:
    """Return the spec of the EnvoyProxy for a Gateway; `service`: the name of its Service, if that must be known.

    A replaced listener drains as long as a terminating pod. Listeners are replaced whenever endpoint pickers come and
    go.
    """
    settings = pods.service or GatewayService()
    resources = pods.resources.to_manifest() if pods.resources else {}
    owner = {"owning-gateway-name": gateway, "owning-gateway-namespace": names.SYSTEM_NAMESPACE}
    pod_labels = {f"gateway.envoyproxy.io/{key}": value for key, value in owner.items()}
    deployment = {
        "replicas": pods.replicas or REPLICAS,
        "pod": {"tolerations": LOST, "affinity": apart(pod_labels)},
        **({"container": {"resources": resources}} if resources else {}),
        "patch": {"type": "StrategicMerge", "value": _PATCH},
    }
    return {
        "provider": {
            "type": "Kubernetes",
            "kubernetes": {
                "envoyDeployment": deployment,
                "envoyPDB": _BUDGET,
                "envoyService": {
                    **({"name": service} if service else {}),
                    # With the default, Local, requests are lost that a load balancer sends to a node without an Envoy,
                    # as Nebius's does.
                    "externalTrafficPolicy": "Cluster",
                    **_build_annotations(settings),
                    **_build_class(settings),
                    **_build_ranges(settings),
                },
            },
        },
        "shutdown": {"drainTimeout": f"{DRAIN}s"},
    }


def traefik_values(pods: GatewayPods, service: str) -> Manifest:
    """Return values of Traefik's chart, with the name of its Service."""
    settings = pods.service or GatewayService()
    resources = pods.resources.to_manifest() if pods.resources else {}
    class_spec = {"spec": spec} if (spec := _build_class(settings)) else {}
    transport = {"lifeCycle": life_cycle(), "respondingTimeouts": {"readTimeout": READ}}
    return {
        "service": {"nameOverride": service, **_build_annotations(settings), **class_spec, **_build_ranges(settings)},
        "deployment": {"replicas": pods.replicas or REPLICAS, "terminationGracePeriodSeconds": LEAVE + DRAIN + 45},
        "ports": {name: {"transport": transport} for name in ("web", "websecure")},
        "podDisruptionBudget": {"enabled": True, **_BUDGET},
        "tolerations": LOST,
        "affinity": apart({"app.kubernetes.io/name": "traefik"}),
        **({"resources": resources} if resources else {}),
    }


def life_cycle(*, leave: int = LEAVE) -> dict[str, str]:
    """Return how an entry point of Traefik ends: it accepts requests for a while, and then finishes them."""
    return {"requestAcceptGraceTimeout": f"{leave}s", "graceTimeOut": f"{DRAIN}s"}


Pods = TypeVar("Pods", bound=GatewayPods)


def keep_load_balancer(pods: Pods, annotations: Mapping[str, str] | None) -> Pods:
    """Return the settings with the type of an existing AWS load balancer unchanged, as no provider can change it.

    Kubernetes' own would create another one with another address, and leave the first one to be paid for; newer
    versions reject the change. `annotations`: those that were last applied to the Service; None without a Service.
    """
    if annotations is None or AWS_TYPE in annotations:
        return pods
    service = pods.service or GatewayService()
    unchanged = service.model_copy(update={"annotations": {AWS_TYPE: "", **service.annotations}})
    return pods.model_copy(update={"service": unchanged})


def service_annotations(live: Iterable[Manifest]) -> Mapping[str, str] | None:
    """Return the annotations of a gateway's Service, by the EnvoyProxy among live objects; None without one."""
    path = ("spec", "provider", "kubernetes", "envoyService", "annotations")
    return next((section(manifest, *path) for manifest in live if manifest["kind"] == "EnvoyProxy"), None)


def _build_annotations(service: GatewayService) -> Manifest:
    """Return the annotations of a Service.

    An empty AWS type is left out; with a load balancer class, the class decides the type.
    """
    defaults = {key: value for key, value in PATIENT.items() if not (service.load_balancer_class and key == AWS_TYPE)}
    internal = INTERNAL if service.scope == "Internal" else {}
    annotations = {**defaults, **internal, **service.annotations}
    return {"annotations": {key: value for key, value in annotations.items() if value or key != AWS_TYPE}}


def _build_class(service: GatewayService) -> Manifest:
    """Return the load balancer class, if set."""
    return {"loadBalancerClass": service.load_balancer_class} if service.load_balancer_class else {}


def _build_ranges(service: GatewayService) -> Manifest:
    """Return the allowed source ranges, if set."""
    ranges = service.load_balancer_source_ranges
    return {"loadBalancerSourceRanges": list(ranges)} if ranges else {}
