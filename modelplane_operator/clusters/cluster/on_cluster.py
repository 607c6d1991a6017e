"""What is on a workload cluster itself: what it serves and has, what we made there, and what is left of models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from kubeloop.errors import ClientError, Forbidden
from kubeloop.objects import Key, Manifest, is_terminating, key_of, labels_of
from kubeloop.reading import Cluster, children
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
from modelplane_operator.clusters.cluster.plan import CHILDREN, ClusterState, Registered
from modelplane_operator.clusters.cluster.plan.hardware import ObservedHardware
from modelplane_operator.clusters.cluster.registrations import look_alike
from modelplane_operator.clusters.stack.plan import CHILDREN as OF_STACKS
from modelplane_operator.models.replica.controller import CHILDREN as OF_REPLICAS
from modelplane_operator.models.replica.orphans import Sweeps, elsewhere, is_tenants, ours

APIS: Mapping[str, ResourceType] = {
    "DRA": RESOURCE_SLICE,
    "EnvoyGateway": ENVOY_PROXY,
    "GatewayAPI": GATEWAY,
    "LeaderWorkerSet": LEADER_WORKER_SET,
}
"""What a cluster may serve, by the names that its status has for them, and a type that tells."""

OF_MODELS = (DEPLOYMENT, LEADER_WORKER_SET, JOB, PERSISTENT_VOLUME_CLAIM, HTTP_ROUTE)
"""What must be gone before a cluster is let go, where its owner is a model's."""
MODELS = frozenset({"ModelReplica", "ModelCache"})
SWEPT = tuple(dict.fromkeys((*OF_MODELS, *CHILDREN, *OF_REPLICAS, *OF_STACKS)))
"""Of what it is looked for whether it still has an owner."""

OPTIONAL = (SECRET, *POLICIES)
"""What we make there as far as we may. An account of before this version has no permission to all of it."""

VERSION_LASTS = timedelta(minutes=5)


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
    made = tuple(children(remote, CHILDREN, cluster.metadata.uid or "", PLATFORM_NAMESPACES))
    terminating = cluster.metadata.deletion_timestamp is not None
    has_namespace = await _has_namespace(remote, made, reads, now)
    home = has_namespace or any(child["kind"] == NAMESPACE.kind for child in made)
    alike = [one["metadata"]["name"] for one in look_alike(remote.name, registered.identity, hub)]
    return ClusterState(
        version=await reads.of(remote, ("version",), lambda kube: kube.version(), now, lasts=VERSION_LASTS),
        latency=remote.health.latency,
        apis=frozenset(name for name, kind in APIS.items() if (found := remote.find(kind)) and found.serves()),
        hardware=_hardware(remote),
        children=made,
        has_namespace=has_namespace,
        others=tuple(of_models(remote, hub)) if terminating else (),
        orphans=None if terminating else sweeps.of(remote, hub, now, alike),
        spared=tuple(_spared(remote)) if terminating and not registered.first else (),
        unpermitted=_unpermitted(remote),
        forbidden=frozenset(kind for kind in OPTIONAL if _forbidden(remote, kind)),
        registered=replace(registered, home=home),
    )


def is_synced(remote: Cluster) -> bool:
    """Whether it answers, and all that we make there has been seen once."""
    return remote.health.answers and all(
        ((found := remote.find(kind)) is not None and found.synced) or (kind in OPTIONAL and _forbidden(remote, kind))
        for kind in CHILDREN
    )


def _forbidden(remote: Cluster, kind: ResourceType) -> Forbidden | None:
    return error if isinstance(error := remote.failing(kind), Forbidden) else None


def forbidden_on(remote: Cluster) -> ClientError | None:
    """Why the cluster does not tell us of what we need to see, or no longer does."""
    return next((error for kind in CHILDREN if kind not in OPTIONAL and (error := _forbidden(remote, kind))), None)


def _unpermitted(remote: Cluster) -> str:
    """Why the gateway there cannot be made to answer the hub alone, as far as permissions or kinds are concerned."""
    refused = next((error for kind in (SECRET, CLIENT_TRAFFIC_POLICY) if (error := _forbidden(remote, kind))), None)
    if refused is not None:
        return f"the operator lacks a permission there: {refused}"
    found = remote.find(CLIENT_TRAFFIC_POLICY)
    return "" if found and found.serves() else "the cluster serves no ClientTrafficPolicy"


def _hardware(remote: Cluster) -> ObservedHardware | ClientError | None:
    nodes, slices = remote.find(NODE), remote.find(RESOURCE_SLICE)
    for found in (nodes, slices):
        if found is None or not found.synced:
            return found and remote.failing(found.type)
    return ObservedHardware(tuple(nodes or ()), tuple(slices or ()))


async def _has_namespace(remote: Cluster, made: Iterable[Manifest], reads: Reads, now: datetime) -> bool:
    """Whether our namespace is there and of somebody else's making."""
    kinds = {child["kind"] for child in made}
    if kinds & {"Namespace", "EnvoyProxy"}:
        return "Namespace" not in kinds  # what is in it needs it
    key = Key("", names.SYSTEM_NAMESPACE)
    return await reads.of(remote, ("home", frozenset(kinds)), lambda kube: kube.find(NAMESPACE, key), now) is not None


def of_models(remote: Cluster, hub: Cluster) -> Iterator[str]:
    """What is there because of a model, but for what the same cluster under another name has; and what ends already.

    It is what we applied, where such a model's objects are: labels alone are anybody's to write, and would hold the
    cluster for ever.
    """
    for kind in OF_MODELS:
        for one in ours(remote.find(kind)):
            if _is_of_a_model(one) and not elsewhere(one, remote.name, hub):
                yield f"{kind.kind} {key_of(one)}"
    for one in _namespaces(remote):
        if is_terminating(one):
            yield f"{NAMESPACE.kind} {key_of(one)}"


def _spared(remote: Cluster) -> Iterator[str]:
    """Namespaces of tenants that nobody deletes. By now no replica is left: they went with the last, if they could."""
    return (f"{NAMESPACE.kind} {key_of(one)}" for one in _namespaces(remote) if not is_terminating(one))


def _namespaces(remote: Cluster) -> Iterator[Manifest]:
    return (one for one in ours(remote.find(NAMESPACE)) if is_tenants(one) and _is_at_home(one, labels.OWNER_NAME))


def _is_of_a_model(manifest: Manifest) -> bool:
    return labels_of(manifest).get(labels.OWNER_KIND) in MODELS and _is_at_home(manifest, labels.OWNER_NAMESPACE)


def _is_at_home(manifest: Manifest, label: str) -> bool:
    """Whether it is, or is in, the namespace that stands for the one of the hub that its label names."""
    key = key_of(manifest)
    return (key.namespace or key.name) == names.remote_namespace(labels_of(manifest).get(label, ""))
