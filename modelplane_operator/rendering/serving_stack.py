"""The software of a workload cluster: a table of charts, and the few objects that are no chart's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.serving_stack import (
    ComponentName,
    ComponentOverride,
    ServingStack,
    ServingStackSpec,
    Versions,
)
from modelplane_operator.kube.objects import Key, Manifest
from modelplane_operator.kube.releases import Component, Release
from modelplane_operator.rendering.cluster_gateway import (
    ENVOY_CHART,
    ENVOY_NAMESPACE,
    ENVOY_REPOSITORY,
    render_cluster_gateway,
    render_system_namespace,
)
from modelplane_operator.rendering.gateway_pods import REPLICAS
from modelplane_operator.rendering.kubelets import LOST
from modelplane_operator.rendering.owned import Owner, on_hub, owner_labels

ENVOY: Final[ComponentName] = "envoy-gateway"
AI_GATEWAY: Final[ComponentName] = "ai-gateway"
GPU_DRIVER: Final[ComponentName] = "dra-driver"
GPU_DRIVER_NAMESPACE: Final = "dra-driver-nvidia-gpu"
MONITORING: Final = "monitoring"
_NO_LABELS: Final[Mapping[str, str]] = {}
_AI_GATEWAY_NAMESPACE: Final = "envoy-ai-gateway-system"
_ENVOY_METRICS_PORT: Final = 19001
# What the two tell each other of all routes at once. By default 4, which some 120 pooled replicas pass: then no route
# changes any more.
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

    @property
    def release(self) -> Key:
        """Fixed and short: the reference has the same, and upgrades must find it."""
        return Key(self.namespace, f"mp-{self.chart}")


def _envoy_values(spec: ServingStackSpec) -> Manifest:
    extended = not any(one.name == AI_GATEWAY and not one.enabled for one in spec.components)
    return {
        "deployment": {"pod": {"tolerations": LOST}},
        "config": {
            "envoyGateway": {
                "extensionApis": {"enableBackend": True},
                **({"extensionManager": _inference_pools()} if extended else {}),
            }
        },
    }


def _ai_gateway_values(_: ServingStackSpec) -> Manifest:
    """While none answers, no route on the cluster changes: so there are two."""
    controller = {"replicaCount": REPLICAS, "tolerations": LOST, "maxRecvMsgSize": str(_XDS_MEBIBYTES * 2**20)}
    return {"controller": controller}


def _inference_pools() -> Manifest:
    """How Envoy Gateway asks the AI gateway, which turns InferencePools, no Services, into Envoy's clusters."""
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


STACK: Final = (
    StackChart(
        "cert-manager",
        chart="cert-manager",
        repository="https://charts.jetstack.io",
        namespace="cert-manager",
        version=lambda versions: versions.cert_manager,
        values=lambda _: {"crds": {"enabled": True, "keep": False}},
        pods="restricted",
        needed=False,
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
    ),
    StackChart(
        "leader-worker-set",
        chart="lws",
        repository="oci://registry.k8s.io/lws/charts",
        namespace="lws-system",
        version=lambda versions: versions.leader_worker_set,
        needed=False,
    ),
    StackChart(
        "prometheus",
        chart="kube-prometheus-stack",
        repository="https://prometheus-community.github.io/helm-charts",
        namespace=MONITORING,
        version=lambda versions: versions.prometheus,
        values=_prometheus_values,
        needed=False,
    ),
    StackChart(
        "ai-gateway-crds",
        chart="ai-gateway-crds-helm",
        repository="oci://docker.io/envoyproxy",
        namespace=_AI_GATEWAY_NAMESPACE,
        version=lambda _: "v0.7.0",
    ),
    StackChart(
        AI_GATEWAY,
        chart="ai-gateway-helm",
        repository="oci://docker.io/envoyproxy",
        namespace=_AI_GATEWAY_NAMESPACE,
        version=lambda _: "v0.7.0",
        values=_ai_gateway_values,
        after=("ai-gateway-crds",),
    ),
    StackChart(
        ENVOY,
        chart=ENVOY_CHART,
        repository=ENVOY_REPOSITORY,
        namespace=ENVOY_NAMESPACE,
        version=lambda versions: versions.envoy_gateway,
        values=_envoy_values,
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
    ),
)
NAMESPACES: Final = tuple(dict.fromkeys(component.namespace for component in STACK))


def render_stack(cluster: InferenceCluster, extra: Iterable[Manifest] = (), driver_root: str = "") -> Manifest:
    """The stack of a cluster, with the charts that only its cloud asks for.

    What the cluster does not say itself is for others to add, and theirs.
    """
    existing, gateway = cluster.spec.cluster.existing, cluster.spec.gateway
    # Of a stack that an InferenceCluster has, nobody reads it: it goes the cluster's way, by tokens made in memory.
    secrets = [{"type": "Kubeconfig", "name": names.kubeconfig(cluster.metadata.name), "key": "kubeconfig"}]
    if existing is not None and (own := existing.secret_ref):
        secrets = [{"type": "Kubeconfig", "name": own.name, "key": own.key}]
    if existing is not None and (identity := existing.identity_secret_ref):
        secrets.append({"type": identity.type, "name": identity.name, "key": identity.key})
    return {
        "apiVersion": ServingStack.definition.api_version,
        "kind": ServingStack.definition.kind,
        "metadata": on_hub(cluster, names.serving_stack(cluster.metadata.name), namespace=names.SYSTEM_NAMESPACE),
        "spec": {
            "secrets": secrets,
            **({"gateway": gateway.to_manifest()} if gateway else {}),
            **({"nvidiaDriverRoot": driver_root} if driver_root else {}),
            **({"extraCharts": charts} if (charts := [*extra]) else {}),
        },
    }


def parts(stack: ServingStack) -> tuple[Component, ...]:
    """The charts of a stack, in the order in which they are installed."""
    spec = stack.spec
    overrides = {override.name: override for override in spec.components}
    wanted = [one for one in STACK if one.name not in overrides or overrides[one.name].enabled]
    there = {one.name for one in wanted}
    ours = owner_labels(stack)
    return (
        *(
            Component(
                one.name,
                _release(one, spec, overrides.get(one.name), ours),
                tuple(name for name in one.after if name in there),
                one.needed,
            )
            for one in wanted
        ),
        *(
            Component(
                f"{extra.namespace}/{extra.name}",
                Release(
                    Key(extra.namespace, extra.name),
                    extra.chart,
                    extra.repository,
                    extra.version,
                    extra.values,
                    ours,
                    extra.digest,
                ),
                tuple(one.name for one in wanted),
                needed=False,
            )
            for extra in spec.extra_charts
        ),
    )


def _release(
    one: StackChart, spec: ServingStackSpec, override: ComponentOverride | None, ours: dict[str, str]
) -> Release:
    version = (override.version if override else None) or one.version(spec.versions or Versions())
    values = laid_over(one.values(spec), override.values if override else {})
    digest = override.digest if override else None
    return Release(one.release, one.chart, one.repository, version, values, ours, digest)


def laid_over(ours: Manifest, theirs: Manifest) -> Manifest:
    """Values with others laid over them: objects are merged, everything else is replaced."""
    return {
        **ours,
        **{
            name: laid_over(cast(Manifest, ours[name]), cast(Manifest, value))
            if isinstance(value, dict) and isinstance(ours.get(name), dict)
            else value
            for name, value in theirs.items()
        },
    }


def render_namespaces(stack: ServingStack) -> tuple[Manifest, ...]:
    """Where the charts go; for clusters that have none of that name yet."""
    wanted = dict.fromkeys(part.release.key.namespace for part in parts(stack))
    levels = _pod_security(stack.spec)
    return (
        render_system_namespace(stack),
        *(_object("v1", "Namespace", stack, name, extra=levels.get(name, {})) for name in wanted),
    )


def _pod_security(spec: ServingStackSpec) -> Mapping[str, Mapping[str, str]]:
    """The labels that hold pods to what we know of them, by namespace. Others' values may ask for anything."""
    extra = {one.namespace for one in spec.extra_charts}
    changed = {one.name for one in spec.components if one.values}
    of_others = extra | {one.namespace for one in STACK if one.name in changed}
    return {one.namespace: {labels.POD_SECURITY: one.pods} for one in STACK if one.namespace not in of_others}


def render_before(stack: ServingStack) -> tuple[Manifest, ...]:
    """What the charts need that no chart brings."""
    if not any(part.name == GPU_DRIVER for part in parts(stack)):
        return ()
    return (
        # GKE admits pods of the priorities that the driver's have only where a quota says so.
        {
            **_object("v1", "ResourceQuota", stack, "allow-critical-pods", GPU_DRIVER_NAMESPACE),
            "spec": {
                "hard": {"pods": "1000"},
                "scopeSelector": {
                    "matchExpressions": [
                        {
                            "scopeName": "PriorityClass",
                            "operator": "In",
                            "values": ["system-node-critical", "system-cluster-critical"],
                        }
                    ]
                },
            },
        },
    )


def render_gateway(stack: ServingStack, *, https: bool = False, http: bool = True) -> tuple[Manifest, ...]:
    """What Envoy Gateway makes the cluster's gateway of."""
    return render_cluster_gateway(stack, stack.spec.gateway, https=https, http=http)


def _object(
    api_version: str, kind: str, owner: Owner, name: str, namespace: str = "", *, extra: Mapping[str, str] = _NO_LABELS
) -> dict[str, Any]:
    marks = {**extra, **owner_labels(owner)}
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": marks}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
