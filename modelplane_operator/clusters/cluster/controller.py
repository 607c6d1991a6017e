"""InferenceCluster: what to read of it on the hub and on the cluster itself, and who wakes it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from kubeloop.cache.watches import Watched
from kubeloop.client.resolver import Resolver
from kubeloop.errors import Unreachable
from kubeloop.loop import Change, Clients, Controller, Indexes
from kubeloop.objects import Key, Manifest, entries, is_terminating, key_of, labels_of, section
from kubeloop.reading import Cluster, applied, find
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
    forbidden_on,
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
from modelplane_operator.lookups import placed_on
from modelplane_operator.models.replica.orphans import GAUGE, Sweeps, staged_on
from modelplane_operator.routing.gateway.render import address_of

CLUSTERS, CLASSES, REPLICAS = of(InferenceCluster), of(InferenceClass), of(ModelReplica)
STACKS, ENDPOINTS = of(ServingStack), of(ModelEndpoint)


def _has_finalizer(secret: Manifest) -> tuple[bool, ...]:
    return (labels.FINALIZER in (secret["metadata"].get("finalizers") or ()),)


def _cluster_of(endpoint: Manifest) -> tuple[str, ...]:
    name = labels_of(endpoint).get(labels.CLUSTER)
    return (name,) if name else ()


INDEXES: Indexes = {
    **connections.INDEXES,
    CLUSTERS: {**connections.INDEXES[CLUSTERS], "class": class_names, "identity": identity_of},
    REPLICAS: {"cluster": placed_on},
    of(ModelCache): {"cluster": staged_on},
    ENDPOINTS: {"cluster": _cluster_of},
    SECRET: {"finalizer": _has_finalizer},
}


def watched_remotely(fabrics: Fabrics) -> tuple[Watched, ...]:
    """What is watched on workload clusters beside what wakes us, or in another way than by our owner label."""
    return (
        *(Watched(kind, ours=True) for kind in (*OF_MODELS, NAMESPACE, *APIS.values())),
        *(Watched(kind, ours=True, spare=True) for kind in POLICIES),
        *fabrics.watched(),
    )


def controller(
    known: Connections,
    gateways: Gateways,
    resolver: Resolver,
    fabrics: Fabrics,
    *,
    helm: bool = False,
    settle: timedelta = timedelta(minutes=6),
    beside: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (),
) -> Controller[InferenceCluster, Observed]:
    """`known` says what is wrong with kubeconfigs; `helm`: whether charts are installed on clusters.

    `settle`: how long after the last endpoint that leads there by http requests may still come so, or be answered.
    `resolver` says what the names of gateways stand for, `fabrics` what is kept of nodes. `beside`: what makes the
    tokens by which clusters are reached.
    """
    sweeps, registrations = Sweeps(SWEPT), Registrations()
    tokens: dict[str, tuple[Token | None, datetime]] = {}

    async def observe(cluster: InferenceCluster, clients: Clients) -> Observed:
        name = cluster.metadata.name
        now = clients.now().replace(microsecond=0)
        wanted = sorted({pool.class_name for pool in cluster.spec.node_pools})
        classes = [find(clients.hub, CLASSES, Key("", one)) for one in wanted]
        try:
            remote = clients.fleet(name)
        except Unreachable:
            remote = None
        forbidden = forbidden_on(remote) if remote else None
        token, since = tokens.get(name, (None, now))
        if remote and remote.token != token:
            token, since = tokens[name] = remote.token, now
        stack = _stack(cluster, clients.hub)
        # Whatever takes the cluster down may refuse us there first; nothing of it is waited for any more.
        over = cluster.metadata.deletion_timestamp is not None and is_emptied(cluster.status)
        visible = remote is not None and not forbidden and not over and is_synced(remote)
        state = None
        if remote and visible:
            registered = await registrations.of(cluster, remote, clients, now)
            state = await observe_state(cluster, remote, clients.hub, clients.reads, sweeps, registered, now=now)
        our_hosts = own_hosts(clients.hub, resolver)
        replicas = clients.hub.find(REPLICAS)  # after the cluster was asked: some may have been placed meanwhile
        placed = tuple(replicas.by("cluster", name)) if replicas else ()
        return Observed(
            cluster,
            classes={one["metadata"]["name"]: InferenceClass.parse(one) for one in classes if one},
            replicas=tuple(map(key_of, placed)),
            state=state,
            unreachable=remote.health.error if remote else None,
            forbidden=forbidden,
            kubeconfig=known.why(name),
            connected=remote is not None,
            server=remote.server if remote else "",
            unverified=remote.unverified if remote else "",
            token=token,
            token_seen=since,
            secrets=_secrets(cluster, clients.hub),
            now=now,
            helm=helm,
            stack=stack,
            used_pools=frozenset(pool for one in placed for pool in _pools_of(one)),
            infrastructure=infrastructure(cluster, clients.hub),
            hub=(front := hub_gateway(clients.hub, now)),
            answers=not front.ready or await _answers(cluster, stack, gateways),
            relay=tuple(applied(clients.hub, ON_HUB, cluster.metadata.uid or "", PLATFORM_NAMESPACES)),
            plain=plain_endpoints(name, clients.hub),
            settle=settle,
            hub_gateway=frozenset(
                one for one in _told(state, stack) if our_hosts & hosts_at(one, resolver, f"cluster {name}")
            ),
        )

    return Controller(
        InferenceCluster,
        observe,
        plan,
        sums_up=True,
        watches={
            CLASSES: _with_pools_of_it,
            CLUSTERS: on_another,
            REPLICAS: _counting_it,
            ENDPOINTS: _led_by_http,
            GATEWAYS: on_gateway(CLUSTERS),
            SECRET: on_authority(CLUSTERS),
            **dict.fromkeys((STACKS, *CLOUDS, *ON_HUB), owner_of_kind("InferenceCluster")),
        },
        remote_watches={
            **{kind: owner_of_kind("InferenceCluster") for kind in CHILDREN},
            NODE: _with_that_node,
            RESOURCE_SLICE: _with_that_node,
        },
        on_connection=lambda name, _: (Key("", name),),
        concurrency_key=lambda manifest: manifest["metadata"]["name"],
        watched_remotely=watched_remotely(fabrics),
        indexes=INDEXES,
        listeners=(fabrics.listen, known.listen),
        on_unauthorized=(known.refused,),
        while_leading=beside,
        gauges=(GAUGE,),
    )


def _pools_of(replica: Manifest) -> Iterator[str]:
    for engine in entries(replica, "spec", "engines"):
        yield from (member["nodePoolName"] for member in entries(engine, "members"))


def _told(state: ClusterState | None, stack: Manifest | None) -> Iterator[str]:
    """Where the gateway says to be."""
    gateways = [one for one in state.children if type_of(one) == GATEWAY] if state else []
    told = [*map(address_of, gateways), section(stack, "status", "gateway").get("address") if stack else None]
    return filter(None, told)


def _stack(cluster: InferenceCluster, hub: Cluster) -> Manifest | None:
    """The cluster's stack. ServingStacks are written by others too, so that the labels alone tell nothing."""
    wanted = Key(names.SYSTEM_NAMESPACE, names.serving_stack(cluster.metadata.name))
    found = applied(hub, (STACKS,), cluster.metadata.uid or "", (wanted.namespace,))
    return next((one for one in found if key_of(one) == wanted), None)


def _secrets(cluster: InferenceCluster, hub: Cluster) -> Secrets:
    clusters, secrets = hub.find(CLUSTERS), hub.find(SECRET)
    existing = cluster.spec.cluster.existing
    own = existing.secret_ref if existing else None
    if clusters is None or secrets is None or own is None:
        return Secrets()
    mine = secrets.get(Key(names.SYSTEM_NAMESPACE, own.name))
    # One that is being deleted and has no finalizer goes: no finalizer can be added any more.
    kept = mine is not None and (not is_terminating(mine) or True in _has_finalizer(mine))
    users, used = clusters.by("kubeconfig", own.name), clusters.values("kubeconfig")
    return Secrets(
        mine=key_of(mine) if mine and kept else None,
        terminating=bool(mine and kept and is_terminating(mine)),
        theirs=any(user["metadata"]["name"] != cluster.metadata.name for user in users),
        unneeded=tuple(sorted(key for key in secrets.keys_by("finalizer", value=True) if key.name not in used)),
    )


def _with_pools_of_it(change: Change, hub: Cluster) -> Iterable[Key]:
    """The clusters that name a class, when it says something else than before."""
    if change.old and change.new and _version(change.old) == _version(change.new):
        return ()
    clusters = hub.find(CLUSTERS)
    return map(key_of, clusters.by("class", change.latest["metadata"]["name"])) if clusters else ()


def _version(known: Manifest) -> tuple[str, int | None]:
    return known["metadata"]["uid"], known["metadata"].get("generation")


async def _answers(cluster: InferenceCluster, stack: Manifest | None, gateways: Gateways) -> bool:
    """Whether the gateway takes connections for https; asked until it is reached by them."""
    last = cluster.status.gateway if cluster.status else None
    address = section(stack or {}, "status", "gateway").get("address") or (last.address if last else None)
    if not address or (last and last.server_name):
        return True
    return await gateways.answers(cluster.metadata.name, address, HTTPS_PORT)


def plain_endpoints(name: str, hub: Cluster) -> int:
    """How many endpoints of replicas lead to a cluster by http, or may still do so.

    Others' are others' business: one whose owner's label somebody has changed is nobody's to mend any more.
    """
    endpoints, replicas = hub.find(ENDPOINTS), hub.find(REPLICAS)
    if endpoints is None or replicas is None:
        return 0
    plain = [one for one in endpoints.by("cluster", name) if is_plain(one)]
    pairs = [(one, found) for one in plain if (found := replicas.get(key_of(one)))]
    return sum(name in placed_on(found) and labels.owner_uid(one) == labels.owner_uid(found) for one, found in pairs)


def is_plain(endpoint: Manifest) -> bool:
    """Whether requests may come by http for it."""
    if is_terminating(endpoint) and labels.FINALIZER not in (endpoint["metadata"].get("finalizers") or ()):
        return False  # nobody is led there any more, and whoever still holds it holds up nothing
    urls = (endpoint["spec"].get("url"), section(endpoint, "status", "routing").get("url"))
    return any(url and not url.startswith("https:") for url in urls)


def _led_by_http(change: Change, _: Cluster) -> Iterable[Key]:
    """The cluster to which one endpoint more or less leads by http."""
    before, after = ({*_cluster_of(one)} if one and is_plain(one) else set[str]() for one in change)
    return [Key("", name) for name in sorted(before ^ after)]


def _counting_it(change: Change, _: Cluster) -> Iterable[Key]:
    """The clusters on which there is a replica more or less, or one on other pools."""

    def places(replica: Manifest | None) -> set[tuple[str, str]]:
        if replica is None:
            return set()
        return {(name, pool) for name in placed_on(replica) for pool in ("", *_pools_of(replica))}

    before, after = map(places, change)
    return [Key("", name) for name in sorted({name for name, _ in before ^ after})]


def _with_that_node(change: Change, _: Cluster) -> Iterable[Key]:
    """The cluster of a node or its devices, when anything that counts is another."""
    if change.old and change.new and _said(change.old) == _said(change.new):
        return ()
    return (Key("", change.cluster),)


def _said(cut: Manifest) -> tuple[object, ...]:
    return cut["metadata"].get("labels"), cut["spec"], cut.get("status"), cut.get("fabrics")
