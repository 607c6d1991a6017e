"""The charts of a serving stack, one row each, with the values that we give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from kubeloop.objects import Key, Manifest
from modelplane_operator.api import pins
from modelplane_operator.api.serving_stack import ComponentName, ServingStackSpec, Versions
from modelplane_operator.clusters.cluster.cluster_gateway import ENVOY_CHART, ENVOY_NAMESPACE, ENVOY_REPOSITORY
from modelplane_operator.clusters.stack.beside import Marker
from modelplane_operator.models.replica.render.kubelets import LOST
from modelplane_operator.routing.gateway.gateway_pods import REPLICAS

ENVOY: Final[ComponentName] = "envoy-gateway"
AI_GATEWAY: Final[ComponentName] = "ai-gateway"
GPU_DRIVER: Final[ComponentName] = "dra-driver"
GPU_DRIVER_NAMESPACE: Final = "dra-driver-nvidia-gpu"
MONITORING: Final = "monitoring"
_AI_GATEWAY_NAMESPACE: Final = "envoy-ai-gateway-system"
_ENVOY_METRICS_PORT: Final = 19001
# What Envoy Gateway and the AI gateway tell each other of all routes at once. By default 4, which some hundred pass:
# then no route changes any more.
_XDS_MEBIBYTES: Final = 64
# What kube-prometheus-stack measures of a cluster, by the names of its values.
_OF_THE_CLUSTER: Final = (
    "nodeExporter",
    "kubeStateMetrics",
    "kubernetesServiceMonitors",
    "kubeApiServer",
    "kubelet",
    "kubeControllerManager",
    "coreDns",
    "kubeEtcd",
    "kubeScheduler",
    "kubeProxy",
)
# The pools' taint: what finds out which nodes have GPUs must run on them, or the driver never does.
_GPU_TOLERATION: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


PodSecurity = Literal["restricted", "baseline", "privileged"]


def _nothing(_: ServingStackSpec) -> Manifest:
    return {}


@dataclass(frozen=True, slots=True)
class StackChart:
    """One part of the stack that is a chart."""

    name: ComponentName
    chart: str
    repository: str
    namespace: str
    version: Callable[[Versions], str]
    values: Callable[[ServingStackSpec], Manifest] = _nothing
    after: tuple[ComponentName, ...] = ()
    """What has to be deployed before."""
    pods: PodSecurity = "baseline"
    """What its pods keep to, with the values that we give it."""
    needed: bool = field(default=True)
    """Whether no model can be served without it, once what needs it is deployed."""
    marker: Marker = field(kw_only=True)
    """By what a cluster shows that it has this software."""
    yields: bool = field(default=False)
    """Whether it is left out where somebody else has brought such software."""
    default: bool = field(default=True)
    """Whether a stack has it that does not name it. One that has it already keeps it."""

    @property
    def release(self) -> Key:
        """Fixed and short: the reference has the same, and upgrades must find it."""
        return Key(self.namespace, f"mp-{self.chart}")


def asks_ai_gateway(spec: ServingStackSpec) -> bool:
    """Return whether Envoy Gateway asks the AI gateway: a stack that only has kept it may have no routes of its."""
    return any(one.name == AI_GATEWAY and one.enabled for one in spec.components)


def _envoy_values(spec: ServingStackSpec) -> Manifest:
    return {
        "deployment": {"pod": {"tolerations": LOST}},
        "config": {
            "envoyGateway": {
                "extensionApis": {"enableBackend": True},
                **({"extensionManager": _ai_gateway()} if asks_ai_gateway(spec) else {}),
            }
        },
    }


def _ai_gateway_values(_: ServingStackSpec) -> Manifest:
    """While none answers, no route on the cluster changes: so there are two."""
    controller = {"replicaCount": REPLICAS, "tolerations": LOST, "maxRecvMsgSize": str(_XDS_MEBIBYTES * 2**20)}
    return {"controller": controller}


def _ai_gateway() -> Manifest:
    """Return how Envoy Gateway asks the AI gateway about routes of its kinds, and to InferencePools."""
    everything = {"includeAll": True}
    kinds = ("listener", "route", "cluster", "secret")
    service = f"ai-gateway-controller.{_AI_GATEWAY_NAMESPACE}.svc.cluster.local"
    return {
        "hooks": {
            "xdsTranslator": {
                "translation": dict.fromkeys(kinds, everything),
                "post": ["Translation", "Cluster", "Route"],
            }
        },
        "service": {"fqdn": {"hostname": service, "port": 1063}},
        "maxMessageSize": f"{_XDS_MEBIBYTES}Mi",
        # Where a cluster does not know the kind, Envoy Gateway 1.8 changes no route: so its definition comes along.
        "backendResources": [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "version": "v1"}],
    }


def _prometheus_values(_: ServingStackSpec) -> Manifest:
    """Return values for the metrics of engines and gateways, and for nothing that reaches into another's monitoring.

    The operator reconciles what is in its own namespace. `namespaces` of the chart would confine it, too, and hide the
    PodMonitors that are in those of models.
    """
    own = [MONITORING]
    return {
        "fullnameOverride": "prometheus",
        "prometheusOperator": {
            "prometheusInstanceNamespaces": own,
            "alertmanagerInstanceNamespaces": own,
            "thanosRulerInstanceNamespaces": own,
            # The webhooks judge every PrometheusRule of the cluster, and a hook of theirs makes the TLS certificate.
            "admissionWebhooks": {"enabled": False},
            "tls": {"enabled": False},
            "kubeletService": {"enabled": False},  # the operator makes it in kube-system, and nobody takes it away
        },
        # These are of the cluster and not of models: a node has one port 9100, kube-system gets Services of them, and
        # every other Prometheus of the cluster that selects all rules and monitors takes the chart's as well.
        **{key: {"enabled": False} for key in _OF_THE_CLUSTER},
        "defaultRules": {"create": False},
        "prometheus": {
            "prometheusSpec": {
                # Whoever puts a PodMonitor beside a model has it scraped, whatever its labels.
                "podMonitorSelectorNilUsesHelmValues": False,
                "podMonitorNamespaceSelector": {},
                # Of one answer, whosever it is. The metrics of a cluster's objects are the largest honest one.
                "additionalConfig": {"enforcedSampleLimit": 1_000_000, "enforcedBodySizeLimit": "128MB"},
                "additionalScrapeConfigs": [
                    {
                        "job_name": "envoy-gateway-proxy",
                        "metrics_path": "/stats/prometheus",
                        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [ENVOY_NAMESPACE]}}],
                        "relabel_configs": [
                            {
                                "source_labels": ["__meta_kubernetes_pod_label_app_kubernetes_io_component"],
                                "regex": "proxy",
                                "action": "keep",
                            },
                            {
                                "source_labels": ["__address__"],
                                "regex": r"([^:]+)(?::\d+)?",
                                "replacement": f"$1:{_ENVOY_METRICS_PORT}",
                                "target_label": "__address__",
                            },
                        ],
                    }
                ],
            }
        },
        "grafana": {"enabled": False},
        "alertmanager": {"enabled": False},
    }


def _gpu_driver_values(spec: ServingStackSpec) -> Manifest:
    root = spec.nvidia_driver_root
    return {
        "gpuResourcesEnabledOverride": True,
        "resources": {"computeDomains": {"enabled": False}},
        **({"nvidiaDriverRoot": root} if root != "/" else {}),
    }


AI_GATEWAY_ROUTES: Final = Marker("aigatewayroutes.aigateway.envoyproxy.io", "ai-gateway-controller")
STACK: Final = (
    # Nothing of the stack needs it. Those who began to use it where an earlier version installed it keep it.
    StackChart(
        "cert-manager",
        chart="cert-manager",
        repository="https://charts.jetstack.io",
        namespace="cert-manager",
        version=lambda versions: versions.cert_manager,
        values=lambda _: {"crds": {"enabled": True, "keep": True}},
        pods="restricted",
        needed=False,
        marker=Marker("certificates.cert-manager.io", "cert-manager-controller"),
        default=False,
    ),
    # Labels the nodes that have GPUs; the driver's plugin runs where the label is.
    StackChart(
        "node-feature-discovery",
        chart="node-feature-discovery",
        repository="oci://registry.k8s.io/nfd/charts",
        namespace="node-feature-discovery",
        version=lambda versions: versions.node_feature_discovery,
        values=lambda _: {"worker": {"tolerations": [_GPU_TOLERATION]}},
        pods="privileged",  # its workers read the node's own files
        needed=False,
        marker=Marker("nodefeaturerules.nfd.k8s-sigs.io", "node-feature-discovery"),
        yields=True,
    ),
    StackChart(
        "leader-worker-set",
        chart="lws",
        repository="oci://registry.k8s.io/lws/charts",
        namespace="lws-system",
        version=lambda versions: versions.leader_worker_set,
        needed=False,
        marker=Marker("leaderworkersets.leaderworkerset.x-k8s.io", "lws"),
        yields=True,
    ),
    StackChart(
        "prometheus",
        chart="kube-prometheus-stack",
        repository="https://prometheus-community.github.io/helm-charts",
        namespace=MONITORING,
        version=lambda versions: versions.prometheus,
        values=_prometheus_values,
        needed=False,
        marker=Marker("prometheuses.monitoring.coreos.com", "prometheus-operator"),
        yields=True,
    ),
    # Nothing of the stack needs these two either: pickers are asked by Envoy Gateway itself.
    StackChart(
        "ai-gateway-crds",
        chart="ai-gateway-crds-helm",
        repository="oci://docker.io/envoyproxy",
        namespace=_AI_GATEWAY_NAMESPACE,
        version=lambda _: pins.AI_GATEWAY.version,
        needed=False,
        marker=AI_GATEWAY_ROUTES,
        default=False,
    ),
    StackChart(
        AI_GATEWAY,
        chart="ai-gateway-helm",
        repository="oci://docker.io/envoyproxy",
        namespace=_AI_GATEWAY_NAMESPACE,
        version=lambda _: pins.AI_GATEWAY.version,
        values=_ai_gateway_values,
        needed=False,
        marker=AI_GATEWAY_ROUTES,
        default=False,
        after=("ai-gateway-crds",),
    ),
    StackChart(
        ENVOY,
        chart=ENVOY_CHART,
        repository=ENVOY_REPOSITORY,
        namespace=ENVOY_NAMESPACE,
        version=lambda versions: versions.envoy_gateway,
        values=_envoy_values,
        marker=Marker("envoyproxies.gateway.envoyproxy.io", ENVOY_CHART),
        after=(AI_GATEWAY,),
    ),
    # Publishes the GPUs as ResourceSlices and makes the DeviceClass.
    StackChart(
        GPU_DRIVER,
        chart="dra-driver-nvidia-gpu",
        repository="oci://registry.k8s.io/dra-driver-nvidia/charts",
        namespace=GPU_DRIVER_NAMESPACE,
        version=lambda versions: versions.nvidia_dra_driver,
        values=_gpu_driver_values,
        after=("node-feature-discovery",),
        pods="privileged",  # it gives pods the node's devices
        marker=Marker("gpu.nvidia.com"),
        yields=True,
    ),
)
NAMESPACES: Final = tuple(dict.fromkeys(component.namespace for component in STACK))


def optional_charts(spec: ServingStackSpec) -> tuple[StackChart, ...]:
    """Return the charts that are left out where somebody else has brought such software; one that is named is not."""
    named = {override.name for override in spec.components}
    return tuple(one for one in STACK if one.yields and one.name not in named)
