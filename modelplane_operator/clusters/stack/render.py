"""The software of a workload cluster: its charts, and the few objects that are no chart's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from kubeloop.helm.release import Component, Release
from kubeloop.objects import Key, Manifest
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
from modelplane_operator.owned import Owner, on_hub, owner_labels
from modelplane_operator.routing.gateway.gateway_pods import keeping_balancer, service_annotations

_NO_LABELS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class ClusterSoftware:
    """What of a stack a cluster has already."""

    releases: Collection[Key] = frozenset[Key]()
    """The stack's own: a part that is no longer in every stack stays where it is."""
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    """Parts that somebody else has brought, and who that is."""


NOTHING: Final = ClusterSoftware()


def render_stack(cluster: InferenceCluster, extra: Iterable[Manifest] = (), driver_root: str = "") -> Manifest:
    """The stack of a cluster, with the charts that only its cloud asks for.

    What the cluster does not say itself is for others to add, and theirs.
    """
    existing, gateway, stack = cluster.spec.cluster.existing, cluster.spec.gateway, cluster.spec.stack
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
            **({"components": [one.to_manifest() for one in stack.components]} if stack and stack.components else {}),
            **({"nvidiaDriverRoot": driver_root} if driver_root else {}),
            **({"extraCharts": charts} if (charts := [*extra]) else {}),
        },
    }


def parts(stack: ServingStack, existing: ClusterSoftware = NOTHING) -> tuple[Component, ...]:
    """The charts of a stack, in the order in which they are installed."""
    spec = stack.spec
    overrides = {override.name: override for override in spec.components}

    def is_wanted(one: StackChart) -> bool:
        if override := overrides.get(one.name):
            return override.enabled
        return one.release in existing.releases or (one.default and one.name not in existing.others)

    wanted = [one for one in STACK if is_wanted(one)]
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


def render_namespaces(stack: ServingStack, existing: ClusterSoftware = NOTHING) -> tuple[Manifest, ...]:
    """Where the charts go; for clusters that have none of that name yet."""
    wanted = dict.fromkeys(part.release.key.namespace for part in parts(stack, existing))
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


def render_before(stack: ServingStack, existing: ClusterSoftware = NOTHING) -> tuple[Manifest, ...]:
    """What the charts need that no chart brings."""
    if not any(part.name == GPU_DRIVER for part in parts(stack, existing)):
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


def render_gateway(
    stack: ServingStack, live: Iterable[Manifest] = (), *, https: bool = False, http: bool = True
) -> tuple[Manifest, ...]:
    """What Envoy Gateway makes the cluster's gateway of. `live` are the stack's objects there."""
    gateway = keeping_balancer(stack.spec.gateway or StackGateway(), service_annotations(live))
    return render_cluster_gateway(stack, gateway, https=https, http=http)


def _object(
    api_version: str, kind: str, owner: Owner, name: str, namespace: str = "", *, extra: Mapping[str, str] = _NO_LABELS
) -> dict[str, Any]:
    marks = {**extra, **owner_labels(owner)}
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": marks}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
