"""The charts of a serving stack, one entry each, with the values that the operator sets.

`render` derives from STACK the charts of a cluster, and `chart_states` installs and upgrades them. The namespaces are
labelled with the level of Pod Security that the pods need.
"""

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
# The size limit of messages with all routes between Envoy Gateway and the AI gateway. A few hundred routes exceed the
# default of 4, and then no route changes any more.
_XDS_MEBIBYTES: Final = 64
# Values of kube-prometheus-stack for the metrics of the cluster itself.
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
# Tolerates the taint of GPU pools: the pods that detect GPUs must run there, or the driver never does.
_GPU_TOLERATION: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


PodSecurity = Literal["restricted", "baseline", "privileged"]


def _build_no_values(_: ServingStackSpec) -> Manifest:
    """Return no values."""
    return {}


@dataclass(frozen=True, slots=True)
class StackChart:
    """A component of the stack that is a chart."""

    name: ComponentName
    """Name of the component in `spec.stack`."""
    chart: str
    """Name of the chart in its repository."""
    repository: str
    namespace: str
    """Namespace of the release."""
    version: Callable[[Versions], str]
    """The chart's version, from the versions of a stack."""
    values: Callable[[ServingStackSpec], Manifest] = _build_no_values
    """The operator's values, from the spec of a stack."""
    after: tuple[ComponentName, ...] = ()
    """Components that must be deployed first."""
    pods: PodSecurity = "baseline"
    """The Pod Security level of its pods, with the operator's values."""
    needed: bool = field(default=True)
    """True if no model can be served without it, once its dependants are deployed."""
    marker: Marker = field(kw_only=True)
    """The objects by which a cluster shows that it has this software."""
    yields: bool = field(default=False)
    """True if it is left out where another owner has installed the software."""
    default: bool = field(default=True)
    """True if stacks that do not name it have it. An installed one stays."""

    @property
    def release(self) -> Key:
        """The key of its release: fixed and short, the same as in the reference, so that upgrades find it."""
        return Key(self.namespace, f"mp-{self.chart}")


def asks_ai_gateway(spec: ServingStackSpec) -> bool:
    """Return True if Envoy Gateway queries the AI gateway.

    The spec must enable it: a stack that merely keeps an installed one may have no routes of its kinds.
    """
    return any(component.name == AI_GATEWAY and component.enabled for component in spec.components)


def _build_envoy_values(spec: ServingStackSpec) -> Manifest:
    """Return the values of Envoy Gateway, with the AI gateway as its extension where that is enabled."""
    return {
        "deployment": {"pod": {"tolerations": LOST}},
        "config": {
            "envoyGateway": {
                "extensionApis": {"enableBackend": True},
                **({"extensionManager": _build_extension_manager()} if asks_ai_gateway(spec) else {}),
            }
        },
    }


def _build_ai_gateway_values(_: ServingStackSpec) -> Manifest:
    """Return values with two replicas: while none answers, no route on the cluster changes."""
    controller = {"replicaCount": REPLICAS, "tolerations": LOST, "maxRecvMsgSize": str(_XDS_MEBIBYTES * 2**20)}
    return {"controller": controller}


def _build_extension_manager() -> Manifest:
    """Return the settings by which Envoy Gateway queries the AI gateway about its own kinds and InferencePools."""
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
        # Without this kind's definition, Envoy Gateway 1.8 changes no route, so the stack installs it.
        "backendResources": [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "version": "v1"}],
    }


def _build_prometheus_values(_: ServingStackSpec) -> Manifest:
    """Return values for the metrics of engines and gateways only, so that foreign monitoring is not affected.

    The Prometheus operator reconciles objects in its own namespace. The chart's `namespaces` value is not used: it
    would also hide PodMonitors in models' namespaces.
    """
    own_namespaces = [MONITORING]
    return {
        "fullnameOverride": "prometheus",
        "prometheusOperator": {
            "prometheusInstanceNamespaces": own_namespaces,
            "alertmanagerInstanceNamespaces": own_namespaces,
            "thanosRulerInstanceNamespaces": own_namespaces,
            # The webhooks check every PrometheusRule of the cluster, and one of their hooks creates the TLS
            # certificate.
            "admissionWebhooks": {"enabled": False},
            "tls": {"enabled": False},
            "kubeletService": {"enabled": False},  # created by the operator in kube-system, and never deleted
        },
        # These are about the cluster, not models: a node has one port 9100, kube-system gets Services for them, and any
        # other Prometheus of the cluster that selects all rules and monitors would load the chart's as well.
        **{key: {"enabled": False} for key in _OF_THE_CLUSTER},
        "defaultRules": {"create": False},
        "prometheus": {
            "prometheusSpec": {
                # A PodMonitor is scraped in any namespace, whatever its labels.
                "podMonitorSelectorNilUsesHelmValues": False,
                "podMonitorNamespaceSelector": {},
                # Limits for one response of any target. The largest legitimate response is that with the metrics of a
                # cluster's objects.
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


def _build_gpu_driver_values(spec: ServingStackSpec) -> Manifest:
    """Return the values of NVIDIA's DRA driver, without compute domains."""
    root = spec.nvidia_driver_root
    return {
        "gpuResourcesEnabledOverride": True,
        "resources": {"computeDomains": {"enabled": False}},
        **({"nvidiaDriverRoot": root} if root != "/" else {}),
    }


AI_GATEWAY_ROUTES: Final = Marker("aigatewayroutes.aigateway.envoyproxy.io", "ai-gateway-controller")
STACK: Final = (
    # No component depends on it. A stack that got it from an earlier version keeps it.
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
    # Labels the nodes that have GPUs; the driver's plugin runs on labelled nodes.
    StackChart(
        "node-feature-discovery",
        chart="node-feature-discovery",
        repository="oci://registry.k8s.io/nfd/charts",
        namespace="node-feature-discovery",
        version=lambda versions: versions.node_feature_discovery,
        values=lambda _: {"worker": {"tolerations": [_GPU_TOLERATION]}},
        pods="privileged",  # its workers read files of the node
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
        values=_build_prometheus_values,
        needed=False,
        marker=Marker("prometheuses.monitoring.coreos.com", "prometheus-operator"),
        yields=True,
    ),
    # No component depends on these two: Envoy Gateway itself queries the endpoint pickers.
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
        values=_build_ai_gateway_values,
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
        values=_build_envoy_values,
        marker=Marker("envoyproxies.gateway.envoyproxy.io", ENVOY_CHART),
        after=(AI_GATEWAY,),
    ),
    # Publishes the GPUs as ResourceSlices and creates the DeviceClass.
    StackChart(
        GPU_DRIVER,
        chart="dra-driver-nvidia-gpu",
        repository="oci://registry.k8s.io/dra-driver-nvidia/charts",
        namespace=GPU_DRIVER_NAMESPACE,
        version=lambda versions: versions.nvidia_dra_driver,
        values=_build_gpu_driver_values,
        after=("node-feature-discovery",),
        pods="privileged",  # it mounts the node's devices into pods
        marker=Marker("gpu.nvidia.com"),
        yields=True,
    ),
)
NAMESPACES: Final = tuple(dict.fromkeys(component.namespace for component in STACK))


def optional_charts(spec: ServingStackSpec) -> tuple[StackChart, ...]:
    """Return the charts that are left out where another owner has installed the software.

    A chart that the spec names is never left out.
    """
    names = {override.name for override in spec.components}
    return tuple(chart for chart in STACK if chart.yields and chart.name not in names)
