"""ModelReplica: what to read of it on the hub and on its cluster, and who wakes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.cache.watches import Watched
from kubeloop.errors import Connecting, Unreachable
from kubeloop.loop import Change, Clients, Controller, Indexes, its_deletion
from kubeloop.objects import Key, Manifest, is_terminating, key_of, labels_of, section
from kubeloop.reading import Cluster, applied, find
from kubeloop.reading import children as labelled
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
from modelplane_operator.lookups import placed_on
from modelplane_operator.models.cache.cache_status import awaited
from modelplane_operator.models.replica import tenancy
from modelplane_operator.models.replica.plan import ClusterState, Observed, plan
from modelplane_operator.models.replica.plan.nodes import Unfit, pools_of, unfit
from modelplane_operator.models.replica.plan.symptoms import (
    ALL_FIT,
    WORKLOAD_STATUS,
    cut_pod,
    cut_policy,
    cut_route,
    cut_workload,
    is_ready,
    symptoms,
    told,
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
FENCES = (NETWORK_POLICY, LIMIT_RANGE)
TOLD_APART = (CONFIG_MAP, RESOURCE_CLAIM_TEMPLATE, SERVICE, SERVICE_ACCOUNT, ROLE, ROLE_BINDING)
"""Children of which nobody reads more than whose they are, and which content they have: that says an annotation."""
_OPTIONAL = {
    ENVOY_EXTENSION_POLICY: EXTENSION_POLICIES,
    LEADER_WORKER_SET: LEADER_WORKER_SETS,
    POD_DISRUPTION_BUDGET: BUDGETS,
    POD_MONITOR: POD_MONITORS,
    HTTP_ROUTE_FILTER: ROUTE_FILTERS,
}

REPLICAS = of(ModelReplica)


def started_from(replica: Manifest) -> Iterator[Key]:
    """The cache of a replica: what replicas are found by."""
    if name := section(replica, "spec", "modelCacheRef").get("name"):
        yield Key(key_of(replica).namespace, name)


INDEXES: Indexes = {
    REPLICAS: {"cluster": placed_on, "cache": started_from},
    NODE: {"unfit": lambda node: (True,) if unfit(node) else ()},
}
WATCHED_REMOTELY = (
    Watched(POD, keeping=cut_pod),
    *(Watched(kind, ours=True, keeping=cut_workload) for kind in (DEPLOYMENT, LEADER_WORKER_SET)),
    Watched(HTTP_ROUTE, ours=True, keeping=cut_route),
    Watched(ENVOY_EXTENSION_POLICY, ours=True, keeping=cut_policy, spare=True),
    *(Watched(kind, ours=True, bare=True) for kind in (NAMESPACE, *TOLD_APART)),
    *(
        Watched(kind, ours=True, bare=True, spare=True)
        for kind in (*FENCES, POD_DISRUPTION_BUDGET, POD_MONITOR, HTTP_ROUTE_FILTER)
    ),
)
"""What others make for us, and not we; what tenants write, in copies and in workloads, whose content nobody here needs;
what an account of before this version may not read; and of all else that we make there, what is judged of it."""


def controller(
    referenced: ReferencedObjects, gateways: Gateways, lifecycle: Lifecycle, images: Images = TESTED
) -> Controller[ModelReplica, Observed]:
    """`referenced`: what engines name on the hub; `gateways` tell whether a cluster that is silent still serves."""

    async def observe(replica: ModelReplica, clients: Clients) -> Observed:
        name, uid = replica.spec.cluster_name, replica.metadata.uid or ""
        state, cluster = await _state(name, clients, gateways)
        around = Context("", frozenset())
        children: tuple[Manifest, ...] = ()
        pods: tuple[Manifest, ...] = ()
        fences: tuple[Manifest, ...] = ()
        namespace, of_others = None, tuple[str, ...]()
        if cluster is not None and state.connected:
            homes = (names.remote_namespace(replica.key.namespace),)
            pods = tuple(labelled(cluster, (POD,), uid, homes))
            children = tuple(applied(cluster, CHILDREN, uid, homes))
            if replica.metadata.deletion_timestamp is not None:
                namespace = _vacant(replica, clients.hub, cluster)
                if namespace is not None and not children:
                    of_others = await tenancy.of_others(cluster.kube, *homes)
                    namespace = _vacant(replica, clients.hub, cluster)  # one may have been placed there meanwhile
            elif (home := find(clients.hub, NAMESPACE, Key("", replica.key.namespace))) is not None:
                around = Context(
                    home["metadata"]["uid"],
                    _served(cluster),
                    await _referenced(replica, referenced),
                    _isolation(name, clients.hub),
                    images,
                )
                fences = _fences(replica, around.namespace_uid, cluster)
            else:
                state = replace(state, connected=False)  # its namespace has not been seen yet
        nodes = _unfit(cluster) if cluster is not None and state.connected else ALL_FIT
        now = clients.now()
        held = _awaited(replica, clients.hub)
        return Observed(
            replica, state, around, children, pods, namespace, fences, lifecycle, now, nodes, held, of_others
        )

    return Controller(
        ModelReplica,
        observe,
        plan,
        watches={of(InferenceCluster): _on_cluster, of(ModelCache): _on_cache},
        remote_watches={
            **dict.fromkeys(CHILDREN, _owner),
            **dict.fromkeys((NAMESPACE, *FENCES), _in_namespace),
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


async def _state(name: str, clients: Clients, gateways: Gateways) -> tuple[ClusterState, Cluster | None]:
    known = find(clients.hub, of(InferenceCluster), Key("", name))
    try:
        cluster = clients.fleet(name)
    except Connecting:
        return ClusterState(exists=known is not None, connected=False), None
    except Unreachable as error:
        return ClusterState(exists=known is not None, connected=False, error=error if known else None), None
    error = cluster.health.error
    gateway = section(known or {}, "status", "gateway")
    address = gateway.get("address")
    port = gateway.get("port") or DEFAULT_PORTS["https" if gateway.get("serverName") else "http"]
    serving = error is None or not address or await gateways.answers(name, address, port)
    return ClusterState(connected=cluster.synced and error is None, error=error, serving=serving), cluster


def _isolation(name: str, hub: Cluster) -> Isolation:
    found = find(hub, of(InferenceCluster), Key("", name))
    return parse_stored(Isolation, section(found or {}, "spec", "isolation"))


def _fences(replica: ModelReplica, uid: str, cluster: Cluster) -> tuple[Manifest, ...]:
    """What is around the replica's namespace there. Without a namespace on the hub to own it, nothing is ours."""
    return tuple(applied(cluster, FENCES, uid, (names.remote_namespace(replica.key.namespace),)))


def _served(cluster: Cluster) -> frozenset[str]:
    """The optional APIs of a cluster, as far as it has told."""
    return frozenset(
        name
        for kind, name in _OPTIONAL.items()
        if (found := cluster.find(kind)) and found.serves() and (found.synced or found.count)
    )


async def _referenced(replica: ModelReplica, referenced: ReferencedObjects) -> tuple[Manifest, ...]:
    kinds = {"Secret": SECRET, "ConfigMap": CONFIG_MAP}
    wanted: dict[tuple[ResourceType, Key], frozenset[str] | None] = {}
    needed: dict[tuple[ResourceType, Key], frozenset[str]] = {}
    for source in sources(replica):
        place = kinds[source.kind], Key(replica.key.namespace, source.name)
        before = wanted.get(place, frozenset())
        wanted[place] = None if before is None or source.use == "PullSecret" else before | source.keys
        if source.required:
            needed[place] = needed.get(place, frozenset()) | source.needed
    found = [
        await referenced.find(
            *place,
            wanted[place],
            waiting=(REPLICAS, replica.key) if place in needed else None,
            needed=needed.get(place, frozenset()),
        )
        for place in sorted(wanted)
    ]
    return tuple(filter(None, found))


def _awaited(replica: ModelReplica, hub: Cluster) -> str:
    """Why the replica is better not begun: what of its weights is on its cluster is not all of them."""
    reference = replica.spec.model_cache_ref
    cache = find(hub, of(ModelCache), Key(replica.key.namespace, reference.name)) if reference else None
    cluster = find(hub, of(InferenceCluster), Key("", replica.spec.cluster_name))
    return awaited(ModelCache.parse(cache), cluster) if cache and cluster else ""


def _on_cache(change: Change, hub: Cluster) -> Iterable[Key]:
    """The replicas that start from a cache, when something else is known of it on its clusters."""
    before, after = (one and section(one, "status").get("clusters") for one in change)
    replicas = hub.find(REPLICAS)
    return replicas.keys_by("cache", key_of(change.latest)) if replicas and before != after else ()


def _vacant(replica: ModelReplica, hub: Cluster, cluster: Cluster) -> Manifest | None:
    """The replica's namespace on its cluster, when no other replica needs it.

    What a ModelCache has there is for `of_others` to find: the cache itself keeps nothing, and goes without our doing.
    """
    namespace = replica.key.namespace
    neighbours = (one for one in _replicas_on(replica.spec.cluster_name, hub) if one.namespace == namespace)
    needed = any(one != replica.key and is_there(one, hub, cluster) for one in neighbours)
    return None if needed else find(cluster, NAMESPACE, Key("", names.remote_namespace(namespace)))


def is_there(key: Key, hub: Cluster, cluster: Cluster) -> bool:
    """Whether a replica has or will have objects on its cluster. Two that go together must not wait for each other."""
    found, homes = find(hub, REPLICAS, key), (names.remote_namespace(key.namespace),)
    if found is None or not is_terminating(found):
        return found is not None
    uid = found["metadata"]["uid"]
    return any(applied(cluster, CHILDREN, uid, homes)) or any(labelled(cluster, (POD,), uid, homes))


_owner = owner_of_kind("ModelReplica")


def _on_workload(change: Change, hub: Cluster) -> Iterable[Key]:
    """Its replica, when it says something else about copies, or somebody has changed it."""
    told = (*WORKLOAD_STATUS, "conditions")
    before, after = (one and (*_identity(one), *(section(one, "status").get(name) for name in told)) for one in change)
    return _owner(change, hub) if before != after else ()


def _on_pod(change: Change, hub: Cluster) -> Iterable[Key]:
    """Its replica, when it begins or ceases to answer, or something else is the matter with it."""
    before, after = (one and (*_identity(one), is_ready(one), told(symptoms([one]))) for one in change)
    return _owner(change, hub) if before != after else ()


def _on_node(change: Change, hub: Cluster) -> Iterable[Key]:
    """The replicas on a pool of which a node begins or ceases to be fit for pods."""
    before, after = (unfit(one) if one else "" for one in change)
    pool, replicas = labels_of(change.latest).get(labels.POOL, ""), hub.find(REPLICAS)
    if before == after or replicas is None:
        return ()
    return [key_of(one) for one in replicas.by("cluster", change.cluster) if pool in pools_of(one["spec"])]


def _unfit(cluster: Cluster) -> Unfit:
    nodes = cluster.find(NODE)
    return Unfit(tuple(nodes.by("unfit", True))) if nodes else ALL_FIT  # noqa: FBT003


def _identity(manifest: Manifest) -> tuple[object, ...]:
    metadata = section(manifest, "metadata")
    told = ("uid", "labels", "annotations", "deletionTimestamp")
    # A LimitRange has no generation: what somebody changes of it shows in its version alone.
    return *map(metadata.get, told), metadata.get("generation") or metadata.get("resourceVersion")


def _in_namespace(change: Change, hub: Cluster) -> Iterable[Key]:
    """The replicas in a namespace of ours on a cluster, when it or what is around it is not as it was."""
    before, after = (one and _identity(one) for one in change)
    named = labels_of(change.latest)
    if before is None or before == after or named.get(labels.OWNER_KIND) != "Namespace":
        return ()
    return [key for key in _replicas_on(change.cluster, hub) if key.namespace == named.get(labels.OWNER_NAME)]


def _on_cluster(change: Change, hub: Cluster) -> Iterable[Key]:
    """Replicas on a cluster that appears, goes, or isolates them in another way."""
    before, after = (one and section(one, "spec", "isolation") for one in change)
    if change.old is None or change.new is None or before != after:
        return _replicas_on(change.latest["metadata"]["name"], hub)
    return ()


def _replicas_on(cluster: str, hub: Cluster) -> Iterable[Key]:
    found = hub.find(REPLICAS)
    return [key_of(manifest) for manifest in found.by("cluster", cluster)] if found else ()
