"""Render the software of a workload cluster: its charts, and the few objects besides them.

`render_stack` creates the ServingStack of an InferenceCluster; `parts` and `render_gateway` turn a stack into charts
and objects. A default chart is left out if another owner has installed its software.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from kubeloop.helm.release import Component, Release
from kubeloop.objects import Key, Manifest
from kubeloop.ownership import owner_labels
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.serving_stack import (
    ComponentOverride,
    ServingStack,
    ServingStackSpec,
    StackGateway,
    Versions,
)
from modelplane_operator.clusters.cluster.cluster_gateway import render_cluster_gateway, render_system_namespace
from modelplane_operator.clusters.stack.charts import GPU_DRIVER, GPU_DRIVER_NAMESPACE, STACK, StackChart
from modelplane_operator.owned import Owner, on_hub
from modelplane_operator.routing.gateway.gateway_pods import keep_load_balancer, service_annotations

_NO_LABELS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class ClusterSoftware:
    """The components of a stack that a cluster already has."""

    releases: Collection[Key] = frozenset[Key]()
    """The stack's own releases: one that is no longer a default stays installed."""
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    """Components that another owner has installed, with that owner."""


NOTHING: Final = ClusterSoftware()


def render_stack(cluster: InferenceCluster, extra: Iterable[Manifest] = (), driver_root: str = "") -> Manifest:
    """Return the ServingStack of a cluster, with the charts that its cloud requires.

    Fields that the cluster does not set are left to other field managers.
    """
    existing, gateway, stack = cluster.spec.cluster.existing, cluster.spec.gateway, cluster.spec.stack
    # An InferenceCluster's stack does not read this Secret: it uses the cluster's connection, which may have tokens
    # from memory.
    secrets = [{"type": "Kubeconfig", "name": names.kubeconfig(cluster.metadata.name), "key": "kubeconfig"}]
    if existing is not None and (reference := existing.secret_ref):
        secrets = [{"type": "Kubeconfig", "name": reference.name, "key": reference.key}]
    if existing is not None and (identity_reference := existing.identity_secret_ref):
        secrets.append(
            {"type": identity_reference.type, "name": identity_reference.name, "key": identity_reference.key}
        )
    return {
        "apiVersion": ServingStack.definition.api_version,
        "kind": ServingStack.definition.kind,
        "metadata": on_hub(cluster, names.serving_stack(cluster.metadata.name), namespace=names.SYSTEM_NAMESPACE),
        "spec": {
            "secrets": secrets,
            **({"gateway": gateway.to_manifest()} if gateway else {}),
            **(
                {"components": [component.to_manifest() for component in stack.components]}
                if stack and stack.components
                else {}
            ),
            **({"nvidiaDriverRoot": driver_root} if driver_root else {}),
            **({"extraCharts": charts} if (charts := [*extra]) else {}),
        },
    }


def parts(stack: ServingStack, existing: ClusterSoftware = NOTHING) -> tuple[Component, ...]:
    """Return the charts of a stack, in the order of installation."""
    spec = stack.spec
    overrides = {override.name: override for override in spec.components}

    def is_wanted(chart: StackChart) -> bool:
        """True if the spec enables the chart, or it is installed already, or it is a default without a
        foreign owner.
        """
        if override := overrides.get(chart.name):
            return override.enabled
        return chart.release in existing.releases or (chart.default and chart.name not in existing.others)

    charts = [chart for chart in STACK if is_wanted(chart)]
    chart_names = {chart.name for chart in charts}
    own_labels = owner_labels(stack)
    return (
        *(
            Component(
                chart.name,
                _build_release(chart, spec, overrides.get(chart.name), own_labels),
                tuple(name for name in chart.after if name in chart_names),
                chart.needed,
                definitions=True,
            )
            for chart in charts
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
                    own_labels,
                    extra.digest,
                ),
                # Extra charts may need any of the stack's software.
                tuple(chart.name for chart in charts),
                needed=False,
                definitions=True,
            )
            for extra in spec.extra_charts
        ),
    )


def _build_release(
    chart: StackChart, spec: ServingStackSpec, override: ComponentOverride | None, own_labels: dict[str, str]
) -> Release:
    """Return the release of a chart, with the overrides of the spec."""
    version = (override.version if override else None) or chart.version(spec.versions or Versions())
    values = merge_values(chart.values(spec), override.values if override else {})
    digest = override.digest if override else None
    return Release(chart.release, chart.chart, chart.repository, version, values, own_labels, digest)


def merge_values(values: Manifest, overrides: Manifest) -> Manifest:
    """Return values merged with overrides: objects are merged, everything else is replaced."""
    return {
        **values,
        **{
            name: merge_values(cast(Manifest, values[name]), cast(Manifest, value))
            if isinstance(value, dict) and isinstance(values.get(name), dict)
            else value
            for name, value in overrides.items()
        },
    }


def render_namespaces(stack: ServingStack, existing: ClusterSoftware = NOTHING) -> tuple[Manifest, ...]:
    """Return the namespaces of the charts, for clusters that do not have them yet."""
    chart_namespaces = dict.fromkeys(component.release.key.namespace for component in parts(stack, existing))
    levels = _build_pod_security(stack.spec)
    return (
        render_system_namespace(stack),
        *(_build_object("v1", "Namespace", stack, name, extra=levels.get(name, {})) for name in chart_namespaces),
    )


def _build_pod_security(spec: ServingStackSpec) -> Mapping[str, Mapping[str, str]]:
    """Return the Pod Security labels by namespace.

    A namespace with extra charts or overridden values gets none, as their pods may need any level.
    """
    extra = {item.namespace for item in spec.extra_charts}
    overridden = {item.name for item in spec.components if item.values}
    unknown = extra | {item.namespace for item in STACK if item.name in overridden}
    return {item.namespace: {labels.POD_SECURITY: item.pods} for item in STACK if item.namespace not in unknown}


def render_before(stack: ServingStack, existing: ClusterSoftware = NOTHING) -> tuple[Manifest, ...]:
    """Return the objects that charts need and that no chart has."""
    if not any(component.name == GPU_DRIVER for component in parts(stack, existing)):
        return ()
    return (
        # GKE admits pods with the driver's priority classes only in namespaces with such a quota.
        {
            **_build_object("v1", "ResourceQuota", stack, "allow-critical-pods", GPU_DRIVER_NAMESPACE),
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


def render_gateway(
    stack: ServingStack, live: Iterable[Manifest] = (), *, https: bool = False, http: bool = True
) -> tuple[Manifest, ...]:
    """Return the objects of the cluster's gateway. `live`: the stack's objects on the cluster."""
    gateway = keep_load_balancer(stack.spec.gateway or StackGateway(), service_annotations(live))
    return render_cluster_gateway(stack, gateway, https=https, http=http)


def _build_object(
    api_version: str, kind: str, owner: Owner, name: str, namespace: str = "", *, extra: Mapping[str, str] = _NO_LABELS
) -> dict[str, Any]:
    """Return an empty object with the owner's labels."""
    object_labels = {**extra, **owner_labels(owner)}
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": object_labels}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
