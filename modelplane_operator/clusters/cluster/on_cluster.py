"""Observe a workload cluster: its APIs and hardware, the operator's own objects, and remaining objects of models.

The controller of InferenceClusters calls `observe_state` for each cluster that answers. What cannot be observed,
because of missing permissions or an API that is not served, is part of the result instead of an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from kubeloop.errors import ClientError, Forbidden
from kubeloop.objects import Key, Manifest, is_terminating, key_of, labels_of
from kubeloop.reading import Cluster, is_rewritten, list_children
from kubeloop.reads import Reads
from kubeloop.types import (
    CLIENT_TRAFFIC_POLICY,
    DEPLOYMENT,
    ENVOY_PROXY,
    GATEWAY,
    HTTP_ROUTE,
    JOB,
    LEADER_WORKER_SET,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POLICIES,
    RESOURCE_SLICE,
    SECRET,
    ResourceType,
)
from modelplane_operator.api import InferenceCluster, labels, names
from modelplane_operator.api.names import PLATFORM_NAMESPACES
from modelplane_operator.clusters.cluster.cluster_gateway import CERTIFICATE, ISSUED
from modelplane_operator.clusters.cluster.plan import CHILDREN, ClusterState, Registered
from modelplane_operator.clusters.cluster.plan.hardware import ObservedHardware
from modelplane_operator.clusters.cluster.registrations import find_same_cluster
from modelplane_operator.clusters.stack.plan import CHILDREN as OF_STACKS
from modelplane_operator.models.replica.controller import CHILDREN as OF_REPLICAS
from modelplane_operator.models.replica.orphans import Sweeps, elsewhere, is_tenants, own_objects

APIS: Mapping[str, ResourceType] = {
    "DRA": RESOURCE_SLICE,
    "EnvoyGateway": ENVOY_PROXY,
    "GatewayAPI": GATEWAY,
    "LeaderWorkerSet": LEADER_WORKER_SET,
}
"""Optional APIs by their names in the status, each with a type that shows its presence."""

OF_MODELS = (DEPLOYMENT, LEADER_WORKER_SET, JOB, PERSISTENT_VOLUME_CLAIM, HTTP_ROUTE)
"""Types of models' objects that must be deleted before a cluster is released."""
MODELS = frozenset({"ModelReplica", "ModelCache"})
"""Kinds of the hub whose objects on the cluster belong to models."""
SWEPT = tuple(dict.fromkeys((*OF_MODELS, *CHILDREN, *OF_REPLICAS, *OF_STACKS)))
"""Types that are swept for objects without an owner."""

OPTIONAL = (SECRET, *POLICIES)
"""Types that the operator creates if permitted. Older access manifests do not permit all of them."""

VERSION_LASTS = timedelta(minutes=5)
"""Time for which the version is cached, since an upgrade takes longer."""


async def observe_state(  # noqa: PLR0917 - what was known, and what is seen
    cluster: InferenceCluster,
    remote: Cluster,
    hub: Cluster,
    reads: Reads,
    sweeps: Sweeps,
    registered: Registered,
    *,
    now: datetime,
) -> ClusterState:
    """Return the state of a workload cluster."""
    owned = tuple(list_children(remote, CHILDREN, cluster.metadata.uid or "", PLATFORM_NAMESPACES))
    terminating = cluster.metadata.deletion_timestamp is not None
    has_namespace = await _has_namespace(remote, owned, reads, now)
    home = has_namespace or any(child["kind"] == NAMESPACE.kind for child in owned)
    same_identity = [item["metadata"]["name"] for item in find_same_cluster(remote.name, registered.identity, hub)]
    return ClusterState(
        version=await reads.of(remote, ("version",), lambda kube: kube.version(), now, lasts=VERSION_LASTS),
        latency=remote.health.latency,
        apis=frozenset(name for name, kind in APIS.items() if (informer := remote.find(kind)) and informer.serves()),
        hardware=_observe_hardware(remote),
        children=owned,
        has_namespace=has_namespace,
        rewritten=is_rewritten(remote, SECRET, CERTIFICATE, ISSUED),
        others=tuple(of_models(remote, hub)) if terminating else (),
        orphans=None if terminating else sweeps.of(remote, hub, now, same_identity),
        spared=tuple(  # with the last replica gone, those that could be deleted have been
            f"{NAMESPACE.kind} {key_of(namespace)}"
            for namespace in (_list_tenant_namespaces(remote) if terminating and not registered.first else ())
            if not is_terminating(namespace)
        ),
        unpermitted=_explain_unpermitted(remote),
        forbidden=frozenset(kind for kind in OPTIONAL if _get_forbidden(remote, kind)),
        registered=replace(registered, home=home),
    )


def is_synced(remote: Cluster) -> bool:
    """True if the cluster answers and the caches of all child types have synced, or are forbidden and optional."""
    return remote.health.answers and all(
        ((informer := remote.find(kind)) is not None and informer.synced)
        or (kind in OPTIONAL and _get_forbidden(remote, kind))
        for kind in CHILDREN
    )


def _get_forbidden(remote: Cluster, kind: ResourceType) -> Forbidden | None:
    """Return the error if the operator may not read a type on the cluster."""
    return error if isinstance(error := remote.find_failing(kind), Forbidden) else None


def find_forbidden(remote: Cluster) -> ClientError | None:
    """Return the error of the first required type that the operator may not read; None if it may read all."""
    return next((error for kind in CHILDREN if kind not in OPTIONAL and (error := _get_forbidden(remote, kind))), None)


def _explain_unpermitted(remote: Cluster) -> str:
    """Return why mutual TLS cannot be set up, by permissions and served APIs; empty if it can."""
    refused = next((error for kind in (SECRET, CLIENT_TRAFFIC_POLICY) if (error := _get_forbidden(remote, kind))), None)
    if refused is not None:
        return f"the operator lacks a permission there: {refused}"
    informer = remote.find(CLIENT_TRAFFIC_POLICY)
    return "" if informer and informer.serves() else "the cluster serves no ClientTrafficPolicy"


def _observe_hardware(remote: Cluster) -> ObservedHardware | ClientError | None:
    """Return the nodes and slices, the error if they cannot be listed, or None before they have synced."""
    nodes, slices = remote.find(NODE), remote.find(RESOURCE_SLICE)
    for informer in (nodes, slices):
        if informer is None or not informer.synced:
            return informer and remote.find_failing(informer.type)
    return ObservedHardware(tuple(nodes or ()), tuple(slices or ()))


async def _has_namespace(remote: Cluster, owned: Iterable[Manifest], reads: Reads, now: datetime) -> bool:
    """True if the operator's namespace exists and was created by another owner."""
    kinds = {child["kind"] for child in owned}
    if kinds & {"Namespace", "EnvoyProxy"}:
        return "Namespace" not in kinds  # an object in the namespace proves that it exists
    key = Key("", names.SYSTEM_NAMESPACE)
    return await reads.of(remote, ("home", frozenset(kinds)), lambda kube: kube.find(NAMESPACE, key), now) is not None


def of_models(remote: Cluster, hub: Cluster) -> Iterator[str]:
    """Yield remaining objects of models, and tenant namespaces that are being deleted.

    Objects of the same cluster's other InferenceCluster are left out. Only objects that the operator applied in the
    expected namespaces count: users may set labels, and must not block the release of the cluster.
    """
    for kind in OF_MODELS:
        for manifest in own_objects(remote.find(kind)):
            is_of_model = labels_of(manifest).get(labels.OWNER_KIND) in MODELS and _is_in_own_namespace(
                manifest, labels.OWNER_NAMESPACE
            )
            if is_of_model and not elsewhere(manifest, remote.name, hub):
                yield f"{kind.kind} {key_of(manifest)}"
    for manifest in _list_tenant_namespaces(remote):
        if is_terminating(manifest):
            yield f"{NAMESPACE.kind} {key_of(manifest)}"


def _list_tenant_namespaces(remote: Cluster) -> Iterator[Manifest]:
    """Yield the namespaces that the operator created for tenants."""
    return (
        namespace
        for namespace in own_objects(remote.find(NAMESPACE))
        if is_tenants(namespace) and _is_in_own_namespace(namespace, labels.OWNER_NAME)
    )


def _is_in_own_namespace(manifest: Manifest, label: str) -> bool:
    """True if the object is, or is in, the namespace that stands for the hub namespace in its label."""
    key = key_of(manifest)
    return (key.namespace or key.name) == names.remote_namespace(labels_of(manifest).get(label, ""))
