"""How a gateway runs, in the words of what runs it: Envoy Gateway's EnvoyProxy, and the values of Traefik's chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from kubeloop.objects import Manifest, section
from modelplane_operator.api import names
from modelplane_operator.api.gateway_pods import GatewayPods, GatewayService
from modelplane_operator.models.replica.render.kubelets import LOST, PROBE_GRACE, apart

# Each cloud heeds its own, and passes over the others'.
INTERNAL: Final[Mapping[str, str]] = {
    "networking.gke.io/load-balancer-type": "Internal",
    "service.beta.kubernetes.io/aws-load-balancer-internal": "true",  # by Kubernetes itself
    "service.beta.kubernetes.io/aws-load-balancer-scheme": "internal",  # by AWS' own controller
    "service.beta.kubernetes.io/azure-load-balancer-internal": "true",
}
AWS_TYPE: Final = "service.beta.kubernetes.io/aws-load-balancer-type"
# What has a load balancer leave connections alone on which a model thinks: a Classic one of AWS ends them after a
# minute, whatever keepalives say, and Azure's forgets them after four. docs/hub-gateway.md has what the others do.
PATIENT: Final[Mapping[str, str]] = {
    AWS_TYPE: "nlb",
    "service.beta.kubernetes.io/azure-load-balancer-tcp-idle-timeout": "30",  # minutes, the most that all versions take
}

GIVE_ADDRESSES: Final = "see that something gives addresses to Services of type LoadBalancer there, MetalLB for one"
REPLICAS: Final = 2  # by default: one node may die
READ: Final = "600s"  # for a request with its body; Traefik's own minute is too short for an hour of sound
DRAIN: Final = 900  # seconds that answers have to end, when what gives them is replaced
LEAVE: Final = 15  # seconds until load balancers send no more requests to a pod that goes
# Envoy Gateway's own probes give up after a second, and what they restart then drains for as long as a pod that ends:
# a helper that hangs has its Envoy refuse all requests for that time.
_RESTART: Final[Manifest] = {"livenessProbe": {"timeoutSeconds": 5, **PROBE_GRACE}}
_RESTARTED: Final[list[Manifest]] = [{"name": name, **_RESTART} for name in ("envoy", "shutdown-manager")]
_PATCH: Final[Manifest] = {"spec": {"template": {"spec": {"containers": _RESTARTED}}}}
_BUDGET: Final[Manifest] = {"maxUnavailable": 1}  # holds up no drain of a node, even where there is one pod


def envoy_proxy(pods: GatewayPods, gateway: str, service: str | None = None) -> Manifest:
    """What an EnvoyProxy says for a Gateway of this name, with the name of its Service where that has to be known.

    A listener that is replaced drains as a pod does that ends. Endpoint pickers have them replaced as they come and go.
    """
    asked = pods.service or GatewayService()
    resources = pods.resources.to_manifest() if pods.resources else {}
    owner = {"owning-gateway-name": gateway, "owning-gateway-namespace": names.SYSTEM_NAMESPACE}
    mine = {f"gateway.envoyproxy.io/{key}": value for key, value in owner.items()}
    deployment = {
        "replicas": pods.replicas or REPLICAS,
        "pod": {"tolerations": LOST, "affinity": apart(mine)},
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
                    # The default, Local, drops what a load balancer sends to a node without an Envoy: Nebius's does.
                    "externalTrafficPolicy": "Cluster",
                    **_annotated(asked),
                    **_class(asked),
                    **_ranges(asked),
                },
            },
        },
        "shutdown": {"drainTimeout": f"{DRAIN}s"},
    }


def traefik_values(pods: GatewayPods, service: str) -> Manifest:
    """Values of Traefik's chart, with the name of its Service."""
    asked = pods.service or GatewayService()
    resources = pods.resources.to_manifest() if pods.resources else {}
    classed = {"spec": spec} if (spec := _class(asked)) else {}
    transport = {"lifeCycle": life_cycle(), "respondingTimeouts": {"readTimeout": READ}}
    return {
        "service": {"nameOverride": service, **_annotated(asked), **classed, **_ranges(asked)},
        "deployment": {"replicas": pods.replicas or REPLICAS, "terminationGracePeriodSeconds": LEAVE + DRAIN + 45},
        "ports": {name: {"transport": transport} for name in ("web", "websecure")},
        "podDisruptionBudget": {"enabled": True, **_BUDGET},
        "tolerations": LOST,
        "affinity": apart({"app.kubernetes.io/name": "traefik"}),
        **({"resources": resources} if resources else {}),
    }


def life_cycle(*, leave: int = LEAVE) -> dict[str, str]:
    """How an entry point of Traefik ends: it takes requests on until nobody sends any, and then sees them through."""
    return {"requestAcceptGraceTimeout": f"{leave}s", "graceTimeOut": f"{DRAIN}s"}


Pods = TypeVar("Pods", bound=GatewayPods)


def keeping_balancer(pods: Pods, annotations: Mapping[str, str] | None) -> Pods:
    """Return how a gateway is to run, with its load balancer of AWS as it was made: no provider changes the type.

    Kubernetes' own made another one, at another address, and left the first one to be paid for; newer versions refuse.
    `annotations` are those that the Service was last asked for with; None where there is no Service yet.
    """
    if annotations is None or AWS_TYPE in annotations:
        return pods
    service = pods.service or GatewayService()
    kept = service.model_copy(update={"annotations": {AWS_TYPE: "", **service.annotations}})
    return pods.model_copy(update={"service": kept})


def service_annotations(live: Iterable[Manifest]) -> Mapping[str, str] | None:
    """Return the annotations of a gateway's Service, by the EnvoyProxy among live objects; None where there is none."""
    path = ("spec", "provider", "kubernetes", "envoyService", "annotations")
    return next((section(one, *path) for one in live if one["kind"] == "EnvoyProxy"), None)


def _annotated(service: GatewayService) -> Manifest:
    """The annotations of a Service; a type of AWS that is empty is left out, and one of a class' own is the class'."""
    patient = {key: value for key, value in PATIENT.items() if not (service.load_balancer_class and key == AWS_TYPE)}
    internal = INTERNAL if service.scope == "Internal" else {}
    annotations = {**patient, **internal, **service.annotations}
    return {"annotations": {key: value for key, value in annotations.items() if value or key != AWS_TYPE}}


def _class(service: GatewayService) -> Manifest:
    return {"loadBalancerClass": service.load_balancer_class} if service.load_balancer_class else {}


def _ranges(service: GatewayService) -> Manifest:
    ranges = service.load_balancer_source_ranges
    return {"loadBalancerSourceRanges": list(ranges)} if ranges else {}
