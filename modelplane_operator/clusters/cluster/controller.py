"""The controller of InferenceCluster: observes it on the hub and on the cluster, and maps changes to it.

The state of the cluster comes from informers of its connection (`on_cluster`), and only while these have synced: an
object that is merely not listed yet must not be created a second time. Decisions are left to `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from kubeloop.cache.watches import Watched
from kubeloop.client.resolver import Resolver
from kubeloop.errors import Unreachable
from kubeloop.loop import Change, Clients, Controller, Indexes
from kubeloop.objects import Key, Manifest, entries, is_terminating, key_of, section
from kubeloop.reading import Cluster, find, list_applied
from kubeloop.resource import of
from kubeloop.tokens import Token
from kubeloop.types import GATEWAY, NAMESPACE, NODE, POLICIES, RESOURCE_SLICE, SECRET, type_of
from kubeloop.wiring import owner_of_kind
from modelplane_operator.api import (
    InferenceClass,
    InferenceCluster,
    ModelCache,
    ModelEndpoint,
    ModelReplica,
    ServingStack,
    labels,
    names,
)
from modelplane_operator.api.names import PLATFORM_NAMESPACES
from modelplane_operator.clouds.tokens import CLOUDS, infrastructure
from modelplane_operator.clusters.class_.controller import class_names
from modelplane_operator.clusters.cluster import connections
from modelplane_operator.clusters.cluster.cluster_gateway import HTTPS_PORT
from modelplane_operator.clusters.cluster.connections import Connections
from modelplane_operator.clusters.cluster.fabrics import Fabrics
from modelplane_operator.clusters.cluster.gateways import Gateways
from modelplane_operator.clusters.cluster.hub_gateway import (
    GATEWAYS,
    hosts_at,
    hub_gateway,
    on_authority,
    on_gateway,
    own_hosts,
)
from modelplane_operator.clusters.cluster.on_cluster import (
    APIS,
    OF_MODELS,
    SWEPT,
    find_forbidden,
    is_synced,
    observe_state,
)
from modelplane_operator.clusters.cluster.plan import (
    CHILDREN,
    ON_HUB,
    ClusterState,
    Observed,
    Secrets,
    is_emptied,
    plan,
)
from modelplane_operator.clusters.cluster.registrations import Registrations, identity_of, on_another
from modelplane_operator.lookups import cluster_of_endpoint, cluster_of_replica
from modelplane_operator.models.replica.orphans import GAUGE, Sweeps, clusters_of_cache
from modelplane_operator.routing.gateway.render import address_of

CLUSTERS, CLASSES, REPLICAS = of(InferenceCluster), of(InferenceClass), of(ModelReplica)
STACKS, ENDPOINTS = of(ServingStack), of(ModelEndpoint)


def _has_finalizer(secret: Manifest) -> tuple[bool, ...]:
    """Return the index key of a Secret: True if it has the operator's finalizer."""
    return (labels.FINALIZER in (secret["metadata"].get("finalizers") or ()),)


INDEXES: Indexes = {
    **connections.INDEXES,
    CLUSTERS: {**connections.INDEXES[CLUSTERS], "class": class_names, "identity": identity_of},
    REPLICAS: {"cluster": cluster_of_replica},
    of(ModelCache): {"cluster": clusters_of_cache},
    ENDPOINTS: {"cluster": cluster_of_endpoint},
    SECRET: {"finalizer": _has_finalizer},
}


def remote_watches(fabrics: Fabrics) -> tuple[Watched, ...]:
    """Return the watches on workload clusters, other than those for objects with the operator's owner label."""
    return (
        *(Watched(kind, only_ours=True) for kind in (*OF_MODELS, NAMESPACE, *APIS.values())),
        *(Watched(kind, only_ours=True, spare=True) for kind in POLICIES),
        *fabrics.watches(),
    )


def controller(
    connections: Connections,
    gateways: Gateways,
    resolver: Resolver,
    fabrics: Fabrics,
    *,
    describe_silence: Callable[[str], str] = lambda _: "",
    helm: bool = False,
    settle: timedelta = timedelta(minutes=6),
    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (),
) -> Controller[InferenceCluster, Observed]:
    """Return the controller.

    `connections` has the errors of kubeconfigs, `resolver` the addresses of gateways' names, `fabrics` the watches of
    nodes. `describe_silence`: that the gateway of a cluster gives no answer. `helm`: True if charts can be installed.
    `settle`: how long requests may still use http after the last endpoint has switched. The tasks in `background`
    create tokens for clusters while this process leads.
    """
    sweeps, registrations = Sweeps(SWEPT), Registrations()
    tokens: dict[str, tuple[Token | None, datetime]] = {}

    async def observe(cluster: InferenceCluster, clients: Clients) -> Observed:
        """Return a cluster with its objects on the hub and, if it answers and all caches have synced, its own state."""
        name = cluster.metadata.name
        now = clients.now().replace(microsecond=0)
        class_names_sorted = sorted({pool.class_name for pool in cluster.spec.node_pools})
        classes = [find(clients.hub, CLASSES, Key("", item)) for item in class_names_sorted]
        try:
            remote = clients.fleet(name)
        except Unreachable:
            remote = None
        forbidden = find_forbidden(remote) if remote else None
        token, token_seen = tokens.get(name, (None, now))
        if remote and remote.token != token:
            token, token_seen = tokens[name] = remote.token, now
        stack = _find_stack(cluster, clients.hub)
        # While a cluster is being deleted, it may reject the operator first; nothing there is waited for any more.
        emptied = cluster.metadata.deletion_timestamp is not None and is_emptied(cluster.status)
        visible = remote is not None and not forbidden and not emptied and is_synced(remote)
        state = None
        if remote and visible:
            registered = await registrations.of(cluster, remote, clients, now)
            state = await observe_state(cluster, remote, clients.hub, clients.reads, sweeps, registered, now=now)
        our_hosts = own_hosts(clients.hub, resolver)
        # after the reads on the cluster, during which replicas may have been placed
        replicas = clients.hub.find(REPLICAS)
        replicas_here = tuple(replicas.by("cluster", name)) if replicas else ()
        return Observed(
            cluster,
            classes={item["metadata"]["name"]: InferenceClass.parse(item) for item in classes if item},
            replicas=tuple(map(key_of, replicas_here)),
            state=state,
            # None also before the first probe has finished.
            unreachable=remote.health.error if remote else None,
            forbidden=forbidden,
            kubeconfig=connections.error_of(name),
            connected=remote is not None,
            server=remote.server if remote else "",
            unverified=remote.unverified if remote else "",
            token=token,
            token_observed_at=token_seen,
            secrets=_observe_secrets(cluster, clients.hub),
            now=now,
            helm=helm,
            stack=stack,
            used_pools=frozenset(pool for item in replicas_here for pool in _list_pool_names(item)),
            infrastructure=infrastructure(cluster, clients.hub),
            hub=(gateway_state := hub_gateway(clients.hub, now)),
            silence=describe_silence(name),
            answers=not gateway_state.ready or await _probe_gateway(cluster, stack, gateways),
            relay=tuple(list_applied(clients.hub, ON_HUB, cluster.metadata.uid or "", PLATFORM_NAMESPACES)),
            plain=plain_endpoints(name, clients.hub),
            settle=settle,
            hub_gateway=frozenset(
                item
                for item in _list_addresses(state, stack)
                if our_hosts & hosts_at(item, resolver, f"cluster {name}")
            ),
        )

    return Controller(
        InferenceCluster,
        observe,
        plan,
        sums_up=True,
        watches={
            CLASSES: _map_from_class,
            CLUSTERS: on_another,
            REPLICAS: _map_from_replica,
            ENDPOINTS: _map_from_endpoint,
            GATEWAYS: on_gateway(CLUSTERS),
            SECRET: _map_from_secret,
            **dict.fromkeys((STACKS, *CLOUDS, *ON_HUB), owner_of_kind("InferenceCluster")),
        },
        remote_watches={
            **{kind: owner_of_kind("InferenceCluster") for kind in CHILDREN},
            NODE: _map_from_node,
            RESOURCE_SLICE: _map_from_node,
        },
        on_connection=lambda name, _: (Key("", name),),
        concurrency_key=lambda manifest: manifest["metadata"]["name"],
        watched_remotely=remote_watches(fabrics),
        indexes=INDEXES,
        listeners=(fabrics.add_event_handlers, connections.add_event_handlers),
        on_unauthorized=(connections.on_unauthorized,),
        while_leading=background,
        gauges=(GAUGE,),
    )


def _list_pool_names(replica: Manifest) -> Iterator[str]:
    """Yield the node pools that a replica's engines use."""
    for engine in entries(replica, "spec", "engines"):
        yield from (member["nodePoolName"] for member in entries(engine, "members"))


def _list_addresses(state: ClusterState | None, stack: Manifest | None) -> Iterator[str]:
    """Yield the addresses that the cluster's gateway reports."""
    gateways = [child for child in state.children if type_of(child) == GATEWAY] if state else []
    reported = [*map(address_of, gateways), section(stack, "status", "gateway").get("address") if stack else None]
    return filter(None, reported)


def _find_stack(cluster: InferenceCluster, hub: Cluster) -> Manifest | None:
    """Return the cluster's own ServingStack.

    It is identified by its key, as users may write ServingStacks with the same labels.
    """
    key = Key(names.SYSTEM_NAMESPACE, names.serving_stack(cluster.metadata.name))
    stacks = list_applied(hub, (STACKS,), cluster.metadata.uid or "", (key.namespace,))
    return next((stack for stack in stacks if key_of(stack) == key), None)


def _observe_secrets(cluster: InferenceCluster, hub: Cluster) -> Secrets:
    """Return the kubeconfig Secrets that concern the cluster's finalizers."""
    clusters, secrets = hub.find(CLUSTERS), hub.find(SECRET)
    existing = cluster.spec.cluster.existing
    reference = existing.secret_ref if existing else None
    if clusters is None or secrets is None or reference is None:
        return Secrets()
    secret = secrets.get(Key(names.SYSTEM_NAMESPACE, reference.name))
    # A Secret that is being deleted without a finalizer is lost: none can be added any more.
    keepable = secret is not None and (not is_terminating(secret) or True in _has_finalizer(secret))
    users, used = clusters.by("kubeconfig", reference.name), clusters.values("kubeconfig")
    return Secrets(
        own=key_of(secret) if secret and keepable else None,
        terminating=bool(secret and keepable and is_terminating(secret)),
        is_shared=any(user["metadata"]["name"] != cluster.metadata.name for user in users),
        unneeded=tuple(sorted(key for key in secrets.keys_by("finalizer", value=True) if key.name not in used)),
    )


def _map_from_secret(change: Change, hub: Cluster) -> Iterator[Key]:
    """Yield the clusters that a change of an authority concerns, or that of a kubeconfig's existence or deletion.

    A changed kubeconfig changes the connection, which has its own events.
    """
    yield from on_authority(CLUSTERS)(change, hub)
    old, new = (manifest and is_terminating(manifest) for manifest in change)
    clusters, key = hub.find(CLUSTERS), key_of(change.latest)
    if old != new and clusters and key.namespace == names.SYSTEM_NAMESPACE:
        yield from map(key_of, clusters.by("kubeconfig", key.name))


def _map_from_class(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the clusters that reference a class, if its spec has changed."""
    if change.old and change.new and _get_version(change.old) == _get_version(change.new):
        return ()
    clusters = hub.find(CLUSTERS)
    return map(key_of, clusters.by("class", change.latest["metadata"]["name"])) if clusters else ()


def _get_version(manifest: Manifest) -> tuple[str, int | None]:
    """Return the values that change whenever the spec does."""
    return manifest["metadata"]["uid"], manifest["metadata"].get("generation")


async def _probe_gateway(cluster: InferenceCluster, stack: Manifest | None, gateways: Gateways) -> bool:
    """True if the gateway accepts https connections, which is probed until mutual TLS is first in use."""
    last = cluster.status.gateway if cluster.status else None
    address = section(stack or {}, "status", "gateway").get("address") or (last.address if last else None)
    if not address or (last and last.server_name):
        return True
    return await gateways.answers(cluster.metadata.name, address, HTTPS_PORT)


def plain_endpoints(name: str, hub: Cluster) -> int:
    """Return the number of endpoints of the cluster's replicas that lead, or may still lead, to it by http.

    An endpoint whose owner label does not match its replica is not counted, as the operator will not change it.
    """
    endpoints, replicas = hub.find(ENDPOINTS), hub.find(REPLICAS)
    if endpoints is None or replicas is None:
        return 0
    plain = [endpoint for endpoint in endpoints.by("cluster", name) if is_plain(endpoint)]
    pairs = [(endpoint, replica) for endpoint in plain if (replica := replicas.get(key_of(endpoint)))]
    return sum(
        name in cluster_of_replica(replica) and labels.owner_uid(endpoint) == labels.owner_uid(replica)
        for endpoint, replica in pairs
    )


def is_plain(endpoint: Manifest) -> bool:
    """True if requests for the endpoint may arrive by http."""
    if is_terminating(endpoint) and labels.FINALIZER not in (endpoint["metadata"].get("finalizers") or ()):
        return False  # no route uses it any more; a foreign finalizer must not block the switch
    urls = (endpoint["spec"].get("url"), section(endpoint, "status", "routing").get("url"))
    return any(url and not url.startswith("https:") for url in urls)


def _map_from_endpoint(change: Change, _: Cluster) -> Iterable[Key]:
    """Return the clusters for which an endpoint has begun or ceased to use http."""
    old_clusters, new_clusters = (
        {*cluster_of_endpoint(endpoint)} if endpoint and is_plain(endpoint) else set[str]() for endpoint in change
    )
    return [Key("", name) for name in sorted(old_clusters ^ new_clusters)]


def _map_from_replica(change: Change, _: Cluster) -> Iterable[Key]:
    """Return the clusters that have gained or lost a replica, or whose replica now uses other pools."""

    def locations(replica: Manifest | None) -> set[tuple[str, str]]:
        """Return the cluster and pools of a replica; the empty pool stands for the cluster itself."""
        if replica is None:
            return set()
        return {(name, pool) for name in cluster_of_replica(replica) for pool in ("", *_list_pool_names(replica))}

    old, new = map(locations, change)
    return [Key("", name) for name in sorted({name for name, _ in old ^ new})]


def _map_from_node(change: Change, _: Cluster) -> Iterable[Key]:
    """Return the cluster of a node or ResourceSlice, if a relevant field has changed."""
    if change.old and change.new and _get_relevant_fields(change.old) == _get_relevant_fields(change.new):
        return ()
    return (Key("", change.cluster),)


def _get_relevant_fields(cut: Manifest) -> tuple[object, ...]:
    """Return the fields of a reduced node or slice that the plan uses."""
    return cut["metadata"].get("labels"), cut["spec"], cut.get("status"), cut.get("fabrics")
