"""The ModelCache controller: what a plan reads on the hub and the clusters, and which changes enqueue a cache.

Clusters are read concurrently, and one that does not answer is part of the result: the others continue. Objects of
clusters are cut to the fields that the plan reads, since a cluster may return anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace

from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.cache.watches import Watched
from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError, Connecting, Unreachable
from kubeloop.loop import Change, Clients, Controller, Indexes, its_deletion
from kubeloop.objects import Key, Manifest, is_terminating, key_of, labels_of, section
from kubeloop.reading import Cluster, find, list_applied, unreadable
from kubeloop.reading import list_children as labelled
from kubeloop.resource import of, parse_stored
from kubeloop.strands import read_deadline
from kubeloop.types import JOB, NAMESPACE, PERSISTENT_VOLUME_CLAIM, POD, ROLE, ROLE_BINDING, SECRET, SERVICE_ACCOUNT
from kubeloop.wiring import owner_of_kind
from modelplane_operator.api import InferenceCluster, ModelCache, ModelReplica, names
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.lookups import cluster_of_replica
from modelplane_operator.models.cache.cache_sources import claim_of, credentials, source_of
from modelplane_operator.models.cache.cache_status import is_selected, must_hold
from modelplane_operator.models.cache.cached_cluster import ClusterState, Observed, User
from modelplane_operator.models.cache.hydration import prune_claim, prune_job
from modelplane_operator.models.cache.plan import MOST, plan
from modelplane_operator.models.cache.render import Hydrator
from modelplane_operator.models.replica import controller as model_replica
from modelplane_operator.models.replica import tenancy
from modelplane_operator.models.replica.orphans import clusters_of_cache
from modelplane_operator.models.replica.plan.symptoms import summarize, symptoms

CACHES, CLUSTERS, REPLICAS = of(ModelCache), of(InferenceCluster), of(ModelReplica)
CHILDREN = (PERSISTENT_VOLUME_CLAIM, JOB, SECRET, SERVICE_ACCOUNT, ROLE, ROLE_BINDING)
"""Types that a cache may have objects of on a cluster."""
CUT = {PERSISTENT_VOLUME_CLAIM: prune_claim, JOB: prune_job}
"""Functions that cut objects to the fields that are read, by type. Other types are watched as metadata only."""


INDEXES: Indexes = {
    REPLICAS: {"cache": model_replica.cache_of_replica, "cluster": cluster_of_replica},
    CACHES: {"cluster": clusters_of_cache, "namespace": lambda manifest: (manifest["metadata"]["namespace"],)},
}
"""Indexes of the hub's informers."""


def controller(referenced: ReferencedObjects, hydrator: Hydrator) -> Controller[ModelCache, Observed]:
    """Return the controller for ModelCaches. `referenced` reads the Secrets with credentials."""

    async def observe(cache: ModelCache, clients: Clients) -> Observed:
        """Return a cache with its Secret and the state of each cluster that concerns it."""
        namespace = find(clients.hub, NAMESPACE, Key("", cache.key.namespace))
        uid = namespace["metadata"]["uid"] if namespace else ""
        secret = await _read_secret(cache, referenced)
        states = await _observe_clusters(cache, uid, clients)
        crowded = _is_crowded(cache, clients.hub)
        excluded = _find_without_storage(cache, clients.hub)
        return Observed(
            cache, tuple(states), uid, hydrator, clients.now(), secret, referenced.recheck, crowded, excluded
        )

    return Controller(
        ModelCache,
        observe,
        plan,
        with_refusals=lambda observed, refusals: replace(observed, refusals=refusals),
        watches={CLUSTERS: _on_cluster, REPLICAS: _on_replica},
        remote_watches={**dict.fromkeys(CHILDREN, _owner), POD: _on_pod},
        watched_remotely=tuple(Watched(kind, only_ours=True, keeping=keep) for kind, keep in CUT.items()),
        on_connection=_on_connection,
        while_paused=its_deletion,
        concurrency_key=lambda manifest: manifest["metadata"]["namespace"],  # clusters may be slow
        indexes=INDEXES,
        while_leading=(referenced.run,),
    )


async def _read_secret(cache: ModelCache, referenced: ReferencedObjects) -> Mapping[str, str]:
    """Return the values of the Secret by the hydrator's variables. Missing and empty ones are left out."""
    required = credentials(source_of(cache))
    if required is None or cache.metadata.deletion_timestamp:
        return {}
    needed, keys = frozenset(required.variables.values()), {**required.variables, **required.optional}
    secret = await referenced.find(
        SECRET,
        Key(cache.key.namespace, required.secret),
        frozenset(keys.values()),
        waiting=(CACHES, cache.key),
        needed=needed,
    )
    data = section(secret or {}, "data")
    return {variable: data[key] for variable, key in keys.items() if data.get(key)}


async def _observe_clusters(cache: ModelCache, uid: str, clients: Clients) -> Sequence[ClusterState]:
    """Return the clusters that the cache selects or has objects on. Clusters are queried concurrently."""
    reported = {each_state.name for each_state in cache.status.clusters} if cache.status else set[str]()
    users, states = _find_users(cache, clients.hub), list[ClusterState]()
    for cluster in clients.hub.find(CLUSTERS) or ():
        name = cluster["metadata"]["name"]
        storage = section(cluster, "status", "cache").get("storageClassName") or ""
        state = ClusterState(name, must_hold(cache, cluster), storage, users=users.get(name, ()))
        state = _observe_informers(state, cache, uid, clients)
        if not (state.is_selected or state.users or state.children or name in reported):
            continue
        isolation = parse_stored(Isolation, section(cluster, "spec", "isolation"))
        states.append(replace(state, isolation=isolation))
    states.sort(key=lambda each_state: each_state.name)
    complete = await asyncio.gather(
        *(
            _observe_unwatched(each_state, cache, clients, is_reported=each_state.name in reported)
            for each_state in states
        )
    )
    return [
        replace(each_state, namespace=None) if _is_namespace_needed(each_state, clients.hub) else each_state
        for each_state in complete
    ]


async def _observe_unwatched(
    state: ClusterState, cache: ModelCache, clients: Clients, *, is_reported: bool
) -> ClusterState:
    """Return the state completed by what no watch delivers. Any error marks only this cluster as unreachable.

    `is_reported` is true if the status of the cache names the cluster.
    """
    namespace, claim = names.remote_namespace(cache.key.namespace), claim_of(cache)
    is_leaving = cache.metadata.deletion_timestamp is not None or not state.is_selected
    try:
        if is_leaving and is_reported and state.connected and not state.children and not state.users:
            state = replace(
                state, namespace=await _find_unused_namespace(namespace, clients.fleet(state.name), clients.hub)
            )
        if claim and state.connected and not is_leaving:
            state = await _with_existing(state, Key(namespace, claim), clients)
    except Exception as error:  # noqa: BLE001 - a hostile cluster may answer anything
        return replace(state, connected=False, error=unreadable(state.name, error, clients.repeats))
    return state


def _observe_informers(state: ClusterState, cache: ModelCache, namespace_uid: str, clients: Clients) -> ClusterState:
    """Return the state with the objects on the cluster, from its informers."""
    try:
        remote = clients.fleet(state.name)
    except Connecting:
        return replace(state, connected=False)
    except Unreachable as error:
        return replace(state, connected=False, error=error)
    if remote.health.error or not remote.synced:
        return replace(state, connected=False, error=remote.health.error)
    uid, namespaces = cache.metadata.uid or "", (names.remote_namespace(cache.key.namespace),)
    return replace(
        state,
        children=tuple(list_applied(remote, CHILDREN, uid, namespaces)),
        pods=tuple(labelled(remote, (POD,), uid, namespaces)),
        fences=tuple(list_applied(remote, model_replica.FENCES, namespace_uid, namespaces)) if namespace_uid else (),
    )


async def _with_existing(state: ClusterState, claim: Key, clients: Clients) -> ClusterState:
    """Return the state with the user's claim, which is read and not watched."""

    def fetch(kube: Kube) -> Awaitable[Manifest | None]:
        return kube.find(PERSISTENT_VOLUME_CLAIM, claim)

    try:
        async with read_deadline():
            existing = await clients.reads.of(clients.fleet(state.name), ("claim", claim), fetch, clients.now())
        return replace(state, existing=prune_claim(existing) if existing else None)
    except ClientError as error:
        return replace(state, connected=False, error=error)


def _find_replicas(namespace: str, cluster: str, hub: Cluster) -> Sequence[Manifest]:
    """Return the replicas on a cluster whose namespace there has the given name."""
    replicas = hub.find(REPLICAS)
    on_cluster = replicas.by("cluster", cluster) if replicas else ()
    return [replica for replica in on_cluster if names.remote_namespace(key_of(replica).namespace) == namespace]


def _is_namespace_needed(state: ClusterState, hub: Cluster) -> bool:
    """True if a replica has been placed in a namespace that was about to be deleted, while other clusters answered."""
    replicas = _find_replicas(key_of(state.namespace).name, state.name, hub) if state.namespace else ()
    return not all(map(is_terminating, replicas))


async def _find_unused_namespace(name: str, remote: Cluster, hub: Cluster) -> Manifest | None:
    """Return the namespace of the cache on a cluster if no replica and no foreign object needs it."""
    namespace = find(remote, NAMESPACE, Key("", name))
    if namespace is None:
        return None
    try:
        needed = any(
            model_replica.exists(key_of(replica), hub, remote) for replica in _find_replicas(name, remote.name, hub)
        )
        async with read_deadline():
            return None if needed or await tenancy.of_others(remote.kube, name) else namespace
    except ClientError:  # the namespace stays; the InferenceCluster reports the error
        return None


def _find_without_storage(cache: ModelCache, hub: Cluster) -> tuple[str, ...]:
    """Return the names of selected clusters without storage for caches."""
    clusters = hub.find(CLUSTERS) or ()
    excluded = (
        cluster for cluster in clusters if is_selected(cache.match_labels, cluster) and not must_hold(cache, cluster)
    )
    return tuple(sorted(cluster["metadata"]["name"] for cluster in excluded))


def _is_crowded(cache: ModelCache, hub: Cluster) -> bool:
    """True if the namespace has reached its limit with older caches."""
    caches = hub.find(CACHES)
    neighbors = caches.by("namespace", cache.key.namespace) if caches else ()
    ages = sorted((other["metadata"].get("creationTimestamp") or "", key_of(other)) for other in neighbors)
    return cache.key in (key for _, key in ages[MOST:])


def _find_users(cache: ModelCache, hub: Cluster) -> Mapping[str, tuple[User, ...]]:
    """Return the replicas that start from the cache, by cluster."""
    replicas, users_by_cluster = hub.find(REPLICAS), dict[str, tuple[User, ...]]()
    for replica in replicas.by("cache", cache.key) if replicas else ():
        volume = section(replica, "spec", "modelCacheRef").get("volume") or names.cache_volume(*cache.key)
        cluster = replica["spec"].get("clusterName", "")
        users_by_cluster[cluster] = (*users_by_cluster.get(cluster, ()), User(key_of(replica).name, volume))
    return {cluster: tuple(sorted(users, key=lambda user: user.name)) for cluster, users in users_by_cluster.items()}


# Mappers --------------------------------------------------------------------------------------------------------------

_owner = owner_of_kind("ModelCache")


def _on_cluster(change: Change, hub: Cluster) -> Iterable[Key]:
    """Yield the caches that select a cluster or have objects on it, when a field that caches depend on changes."""
    old, new = (
        (
            section(cluster, "status", "cache").get("storageClassName"),
            labels_of(cluster),
            is_terminating(cluster),
            section(cluster, "spec", "isolation"),
        )
        if cluster
        else None
        for cluster in change
    )
    if old != new:
        for cluster in filter(None, change):
            yield from _find_affected(cluster, hub)


def _find_affected(cluster: Manifest, hub: Cluster) -> Iterable[Key]:
    """Yield the caches that select a cluster or have objects on it."""
    name = cluster["metadata"]["name"]
    for cache in hub.find(CACHES) or ():
        if name in clusters_of_cache(cache) or is_selected(
            section(cache, "spec", "clusterSelector", "matchLabels"), cluster
        ):
            yield key_of(cache)


def _on_connection(name: str, hub: Cluster) -> Iterable[Key]:
    """Return the caches on a cluster whose connection begins or ceases to answer."""
    cluster = find(hub, CLUSTERS, Key("", name))
    return _find_affected(cluster, hub) if cluster else ()


def _on_replica(change: Change, _: Cluster) -> Iterable[Key]:
    """Yield the cache of a replica that appears, goes, or changes its volume or cluster."""
    old, new = (
        replica and (section(replica, "spec", "modelCacheRef"), replica["spec"].get("clusterName"))
        for replica in change
    )
    if old != new:
        for replica in filter(None, change):
            yield from model_replica.cache_of_replica(replica)


def _on_pod(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the cache of a hydration pod whose phase or symptoms change."""
    old, new = (pod and (section(pod, "status").get("phase"), summarize(symptoms([pod]))) for pod in change)
    return _owner(change, hub) if old != new else ()
