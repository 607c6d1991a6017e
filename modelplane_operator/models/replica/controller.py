"""The ModelReplica controller: what a plan reads on hub and cluster, and which changes enqueue a replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.cache.watches import Watched
from kubeloop.errors import Connecting, Unreachable
from kubeloop.loop import Change, Clients, Controller, Indexes, its_deletion
from kubeloop.objects import Key, Manifest, is_terminating, key_of, labels_of, section
from kubeloop.reading import Cluster, find, list_applied
from kubeloop.reading import list_children as labelled
from kubeloop.resource import of, parse_stored
from kubeloop.types import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENVOY_EXTENSION_POLICY,
    HTTP_ROUTE,
    HTTP_ROUTE_FILTER,
    LEADER_WORKER_SET,
    LIMIT_RANGE,
    NAMESPACE,
    NETWORK_POLICY,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_MONITOR,
    RESOURCE_CLAIM_TEMPLATE,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    ResourceType,
)
from kubeloop.wiring import owner_of_kind
from modelplane_operator.api import InferenceCluster, ModelCache, ModelReplica, labels, names
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.clusters.cluster.gateways import Gateways
from modelplane_operator.images import TESTED, Images
from modelplane_operator.lookups import cluster_of_replica
from modelplane_operator.models.cache.cache_status import find_awaited
from modelplane_operator.models.replica import tenancy
from modelplane_operator.models.replica.plan import ClusterState, Observed, plan
from modelplane_operator.models.replica.plan.nodes import Unfit, pools_of, unfit
from modelplane_operator.models.replica.plan.observed import Awaited
from modelplane_operator.models.replica.plan.symptoms import (
    ALL_FIT,
    WORKLOAD_STATUS,
    is_ready,
    prune_pod,
    prune_policy,
    prune_route,
    prune_workload,
    summarize,
    symptoms,
)
from modelplane_operator.models.replica.render import (
    BUDGETS,
    EXTENSION_POLICIES,
    LEADER_WORKER_SETS,
    POD_MONITORS,
    ROUTE_FILTERS,
    Context,
    Lifecycle,
    sources,
)
from modelplane_operator.routing.endpoint.backend_url import DEFAULT_PORTS

CHILDREN = (
    SECRET,
    CONFIG_MAP,
    RESOURCE_CLAIM_TEMPLATE,
    DEPLOYMENT,
    LEADER_WORKER_SET,
    SERVICE,
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    HTTP_ROUTE_FILTER,
    ENVOY_EXTENSION_POLICY,
    HTTP_ROUTE,
    POD_DISRUPTION_BUDGET,
    POD_MONITOR,
)
"""Types that a replica may have objects of on its cluster."""
FENCES = (NETWORK_POLICY, LIMIT_RANGE)
"""Types of the isolation policies in a tenant's namespace."""
METADATA_ONLY = (CONFIG_MAP, RESOURCE_CLAIM_TEMPLATE, SERVICE, SERVICE_ACCOUNT, ROLE, ROLE_BINDING)
"""Types of children of which only owner and content hash are read: an annotation has both."""
_OPTIONAL = {
    ENVOY_EXTENSION_POLICY: EXTENSION_POLICIES,
    LEADER_WORKER_SET: LEADER_WORKER_SETS,
    POD_DISRUPTION_BUDGET: BUDGETS,
    POD_MONITOR: POD_MONITORS,
    HTTP_ROUTE_FILTER: ROUTE_FILTERS,
}
"""Names of the optional APIs by the type that a cluster must serve."""

REPLICAS = of(ModelReplica)


def cache_of_replica(replica: Manifest) -> Iterator[Key]:
    """Yield the key of a replica's ModelCache; the "cache" index."""
    if name := section(replica, "spec", "modelCacheRef").get("name"):
        yield Key(key_of(replica).namespace, name)


INDEXES: Indexes = {
    REPLICAS: {"cluster": cluster_of_replica, "cache": cache_of_replica},
    NODE: {"unfit": lambda node: (True,) if unfit(node) else ()},
}
"""Indexes of the informers on the hub and on the clusters."""
WATCHED_REMOTELY = (
    Watched(POD, keeping=prune_pod),
    *(Watched(kind, only_ours=True, keeping=prune_workload) for kind in (DEPLOYMENT, LEADER_WORKER_SET)),
    Watched(HTTP_ROUTE, only_ours=True, keeping=prune_route),
    Watched(ENVOY_EXTENSION_POLICY, only_ours=True, keeping=prune_policy, spare=True),
    *(Watched(kind, only_ours=True, bare=True) for kind in (NAMESPACE, *METADATA_ONLY)),
    *(
        Watched(kind, only_ours=True, bare=True, spare=True)
        for kind in (*FENCES, POD_DISRUPTION_BUDGET, POD_MONITOR, HTTP_ROUTE_FILTER)
    ),
)
"""Types watched on workload clusters, and what informers retain of each object.

Pods are created by controllers. Workloads and pods are cut, because tenants write most of their content. Routes and
policies are cut to what their gateways report. All other types listed here are watched as metadata only. A cluster
may forbid the `spare` types: its kubeconfig may be older than they are.
"""


def controller(
    referenced: ReferencedObjects,
    gateways: Gateways,
    lifecycle: Lifecycle,
    images: Images = TESTED,
    describe_failure: Callable[[Key], str] = lambda _: "",
) -> Controller[ModelReplica, Observed]:
    """Return the controller for ModelReplicas.

    `referenced` reads the Secrets and ConfigMaps that engines name on the hub. `gateways` tests whether the gateway
    of a silent cluster still serves; `describe_failure` returns why no request reaches a replica's endpoint.
    """

    async def observe(replica: ModelReplica, clients: Clients) -> Observed:
        """Return a replica with the state of its cluster, and the objects on the hub that it needs there."""
        name, uid = replica.spec.cluster_name, replica.metadata.uid or ""
        state, cluster = await _observe_cluster(name, clients, gateways)
        state = replace(state, silence=describe_failure(replica.key))
        around = Context("", frozenset())
        children: tuple[Manifest, ...] = ()
        pods: tuple[Manifest, ...] = ()
        fences: tuple[Manifest, ...] = ()
        namespace, foreign = None, tuple[str, ...]()
        if cluster is not None and state.connected:
            namespaces = (names.remote_namespace(replica.key.namespace),)
            pods = tuple(labelled(cluster, (POD,), uid, namespaces))
            children = tuple(list_applied(cluster, CHILDREN, uid, namespaces))
            if replica.metadata.deletion_timestamp is not None:
                namespace = _find_unused_namespace(replica, clients.hub, cluster)
                if namespace is not None and not children:
                    foreign = await tenancy.of_others(cluster.kube, *namespaces)
                    namespace = _find_unused_namespace(replica, clients.hub, cluster)  # one may have arrived since
            elif (tenant_namespace := find(clients.hub, NAMESPACE, Key("", replica.key.namespace))) is not None:
                around = Context(
                    tenant_namespace["metadata"]["uid"],
                    _find_served_apis(cluster),
                    await _read_referenced(replica, referenced),
                    parse_stored(
                        Isolation,
                        section(find(clients.hub, of(InferenceCluster), Key("", name)) or {}, "spec", "isolation"),
                    ),
                    images,
                )
                fences = tuple(list_applied(cluster, FENCES, around.namespace_uid, namespaces))
            else:
                state = replace(state, connected=False)  # the informer does not have its namespace yet
        nodes = ALL_FIT
        if cluster is not None and state.connected and (informer := cluster.find(NODE)):
            nodes = Unfit(tuple(informer.by("unfit", True)))  # noqa: FBT003
        now = clients.now()
        awaited = _find_awaited(replica, clients.hub)
        return Observed(
            replica, state, around, children, pods, namespace, fences, lifecycle, now, nodes, awaited, foreign
        )

    return Controller(
        ModelReplica,
        observe,
        plan,
        watches={of(InferenceCluster): _on_cluster, of(ModelCache): _on_cache},
        remote_watches={
            **dict.fromkeys(CHILDREN, _owner),
            **dict.fromkeys((NAMESPACE, *FENCES), _on_namespace),
            **dict.fromkeys((DEPLOYMENT, LEADER_WORKER_SET), _on_workload),
            POD: _on_pod,
            NODE: _on_node,
        },
        on_connection=_replicas_on,
        concurrency_key=lambda manifest: manifest["spec"].get("clusterName", ""),
        while_paused=its_deletion,
        watched_remotely=WATCHED_REMOTELY,
        indexes=INDEXES,
        while_leading=(referenced.run,),
    )


async def _observe_cluster(name: str, clients: Clients, gateways: Gateways) -> tuple[ClusterState, Cluster | None]:
    """Return the state of the replica's cluster, and its connection if there is one."""
    inference_cluster = find(clients.hub, of(InferenceCluster), Key("", name))
    try:
        cluster = clients.fleet(name)
    except Connecting:
        return ClusterState(exists=inference_cluster is not None, connected=False), None
    except Unreachable as error:
        return ClusterState(
            exists=inference_cluster is not None, connected=False, error=error if inference_cluster else None
        ), None
    error = cluster.health.error
    gateway = section(inference_cluster or {}, "status", "gateway")
    address = gateway.get("address")
    port = gateway.get("port") or DEFAULT_PORTS["https" if gateway.get("serverName") else "http"]
    serving = error is None or not address or await gateways.answers(name, address, port)
    return ClusterState(connected=cluster.synced and error is None, error=error, serving=serving), cluster


def _find_served_apis(cluster: Cluster) -> frozenset[str]:
    """Return the optional APIs that a cluster serves, as far as its informers show."""
    return frozenset(
        name
        for kind, name in _OPTIONAL.items()
        if (informer := cluster.find(kind)) and informer.serves() and (informer.synced or informer.count)
    )


async def _read_referenced(replica: ModelReplica, referenced: ReferencedObjects) -> tuple[Manifest, ...]:
    """Read the Secrets and ConfigMaps that a replica copies, with no more keys than it uses."""
    kinds = {"Secret": SECRET, "ConfigMap": CONFIG_MAP}
    keys_by_object: dict[tuple[ResourceType, Key], frozenset[str] | None] = {}
    required_keys: dict[tuple[ResourceType, Key], frozenset[str]] = {}
    for source in sources(replica):
        location = kinds[source.kind], Key(replica.key.namespace, source.name)
        keys = keys_by_object.get(location, frozenset())
        keys_by_object[location] = None if keys is None or source.use == "PullSecret" else keys | source.keys
        if source.required:
            required_keys[location] = required_keys.get(location, frozenset()) | source.needed
    objects = [
        await referenced.find(
            *location,
            keys_by_object[location],
            waiting=(REPLICAS, replica.key) if location in required_keys else None,
            needed=required_keys.get(location, frozenset()),
        )
        for location in sorted(keys_by_object)
    ]
    return tuple(filter(None, objects))


def _find_awaited(replica: ModelReplica, hub: Cluster) -> Awaited | None:
    """Return the weights that the replica must wait for on its cluster; None if it may start."""
    reference = replica.spec.model_cache_ref
    cache = find(hub, of(ModelCache), Key(replica.key.namespace, reference.name)) if reference else None
    cluster = find(hub, of(InferenceCluster), Key("", replica.spec.cluster_name))
    return find_awaited(ModelCache.parse(cache), cluster) if cache and cluster else None


def _on_cache(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the replicas that start from a cache, when its status about clusters changes."""
    old, new = (manifest and section(manifest, "status").get("clusters") for manifest in change)
    replicas = hub.find(REPLICAS)
    return replicas.keys_by("cache", key_of(change.latest)) if replicas and old != new else ()


def _find_unused_namespace(replica: ModelReplica, hub: Cluster, cluster: Cluster) -> Manifest | None:
    """Return the replica's namespace on its cluster if no other replica needs it.

    Objects of a ModelCache there are found by `of_others`. The cache itself needs no namespace after its deletion.
    """
    namespace = replica.key.namespace
    others = (other for other in _replicas_on(replica.spec.cluster_name, hub) if other.namespace == namespace)
    needed = any(other != replica.key and exists(other, hub, cluster) for other in others)
    return None if needed else find(cluster, NAMESPACE, Key("", names.remote_namespace(namespace)))


def exists(key: Key, hub: Cluster, cluster: Cluster) -> bool:
    """True if a replica has or will have objects on its cluster.

    A replica that is being deleted counts only while it has objects: two that go together must not wait for each
    other.
    """
    replica, namespaces = find(hub, REPLICAS, key), (names.remote_namespace(key.namespace),)
    if replica is None or not is_terminating(replica):
        return replica is not None
    uid = replica["metadata"]["uid"]
    return any(list_applied(cluster, CHILDREN, uid, namespaces)) or any(labelled(cluster, (POD,), uid, namespaces))


_owner = owner_of_kind("ModelReplica")


def _on_workload(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the owner of a workload, when its status about copies, its metadata or its spec changes."""
    fields = (*WORKLOAD_STATUS, "conditions")
    old, new = (
        workload and (*_identity(workload), *(section(workload, "status").get(name) for name in fields))
        for workload in change
    )
    return _owner(change, hub) if old != new else ()


def _on_pod(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the owner of a pod, when its readiness, its symptoms or its metadata change."""
    old, new = (pod and (*_identity(pod), is_ready(pod), summarize(symptoms([pod]))) for pod in change)
    return _owner(change, hub) if old != new else ()


def _on_node(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the replicas on a pool of which a node becomes fit or unfit for pods."""
    old, new = (unfit(item) if item else "" for item in change)
    pool, replicas = labels_of(change.latest).get(labels.POOL, ""), hub.find(REPLICAS)
    if old == new or replicas is None:
        return ()
    return [key_of(item) for item in replicas.by("cluster", change.cluster) if pool in pools_of(item["spec"])]


def _identity(manifest: Manifest) -> tuple[object, ...]:
    """Return the metadata of an object that changes when its content does."""
    metadata = section(manifest, "metadata")
    fields = ("uid", "labels", "annotations", "deletionTimestamp")
    # A LimitRange has no generation: a change of its spec shows only in its resourceVersion.
    return *map(metadata.get, fields), metadata.get("generation") or metadata.get("resourceVersion")


def _on_namespace(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the replicas in a tenant's namespace, when the namespace or an isolation policy in it changes."""
    old, new = (manifest and _identity(manifest) for manifest in change)
    object_labels = labels_of(change.latest)
    if old is None or old == new or object_labels.get(labels.OWNER_KIND) != "Namespace":
        return ()
    return [key for key in _replicas_on(change.cluster, hub) if key.namespace == object_labels.get(labels.OWNER_NAME)]


def _on_cluster(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the replicas on a cluster that appears, goes, or changes its isolation."""
    old, new = (manifest and section(manifest, "spec", "isolation") for manifest in change)
    if change.old is None or change.new is None or old != new:
        return _replicas_on(change.latest["metadata"]["name"], hub)
    return ()


def _replicas_on(cluster: str, hub: Cluster) -> Iterable[Key]:
    """Return the keys of the replicas that are placed on a cluster."""
    replicas = hub.find(REPLICAS)
    return [key_of(manifest) for manifest in replicas.by("cluster", cluster)] if replicas else ()
