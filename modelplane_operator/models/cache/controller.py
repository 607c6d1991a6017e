"""ModelCache: what to read of it on all of its clusters, and who wakes it."""

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
from kubeloop.reading import Cluster, applied, find, unreadable
from kubeloop.reading import children as labelled
from kubeloop.resource import of, parse_stored
from kubeloop.strands import a_look
from kubeloop.types import JOB, NAMESPACE, PERSISTENT_VOLUME_CLAIM, POD, ROLE, ROLE_BINDING, SECRET, SERVICE_ACCOUNT
from kubeloop.wiring import owner_of_kind
from modelplane_operator.api import InferenceCluster, ModelCache, ModelReplica, names
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.lookups import placed_on
from modelplane_operator.models.cache.cache_sources import claim_of, credentials, source_of
from modelplane_operator.models.cache.cache_status import is_meant, is_selected
from modelplane_operator.models.cache.cached_cluster import ClusterState, Observed, User
from modelplane_operator.models.cache.hydration import cut_claim, cut_job
from modelplane_operator.models.cache.plan import MOST, plan
from modelplane_operator.models.cache.render import Hydrator
from modelplane_operator.models.replica import controller as model_replica
from modelplane_operator.models.replica import tenancy
from modelplane_operator.models.replica.orphans import staged_on
from modelplane_operator.models.replica.plan.symptoms import symptoms, told

CACHES, CLUSTERS, REPLICAS = of(ModelCache), of(InferenceCluster), of(ModelReplica)
CHILDREN = (PERSISTENT_VOLUME_CLAIM, JOB, SECRET, SERVICE_ACCOUNT, ROLE, ROLE_BINDING)
CUT = {PERSISTENT_VOLUME_CLAIM: cut_claim, JOB: cut_job}
"""What is kept of those of which more is read than metadata."""


INDEXES: Indexes = {
    REPLICAS: {"cache": model_replica.started_from, "cluster": placed_on},
    CACHES: {"cluster": staged_on, "namespace": lambda manifest: (manifest["metadata"]["namespace"],)},
}


def controller(referenced: ReferencedObjects, hydrator: Hydrator) -> Controller[ModelCache, Observed]:
    """`referenced`: how tokens are read."""

    async def observe(cache: ModelCache, clients: Clients) -> Observed:
        home = find(clients.hub, NAMESPACE, Key("", cache.key.namespace))
        uid = home["metadata"]["uid"] if home else ""
        secret = await _secret(cache, referenced)
        states = await _states(cache, uid, clients)
        crowded = _is_crowded(cache, clients.hub)
        left_out = _left_out(cache, clients.hub)
        return Observed(
            cache, tuple(states), uid, hydrator, clients.now(), secret, referenced.recheck, crowded, left_out
        )

    return Controller(
        ModelCache,
        observe,
        plan,
        with_refusals=lambda seen, refusals: replace(seen, refusals=refusals),
        watches={CLUSTERS: _on_cluster, REPLICAS: _on_replica},
        remote_watches={**dict.fromkeys(CHILDREN, _owner), POD: _on_pod},
        watched_remotely=tuple(Watched(kind, ours=True, keeping=keep) for kind, keep in CUT.items()),
        on_connection=_on_connection,
        while_paused=its_deletion,
        concurrency_key=lambda manifest: manifest["metadata"]["namespace"],  # some of its clusters may answer slowly
        indexes=INDEXES,
        while_leading=(referenced.run,),
    )


async def _secret(cache: ModelCache, referenced: ReferencedObjects) -> Mapping[str, str]:
    """As the Secret has it, by the hydrator's variables; what is missing or empty is left out."""
    asked = credentials(source_of(cache))
    if asked is None or cache.metadata.deletion_timestamp:
        return {}
    needed, keys = frozenset(asked.variables.values()), {**asked.variables, **asked.optional}
    found = await referenced.find(
        SECRET,
        Key(cache.key.namespace, asked.secret),
        frozenset(keys.values()),
        waiting=(CACHES, cache.key),
        needed=needed,
    )
    data = section(found or {}, "data")
    return {variable: data[key] for variable, key in keys.items() if data.get(key)}


async def _states(cache: ModelCache, uid: str, clients: Clients) -> Sequence[ClusterState]:
    """The clusters that it is meant for, and those that have something of it, asked side by side."""
    known = {one.name for one in cache.status.clusters} if cache.status else set[str]()
    users, found = _users(cache, clients.hub), list[ClusterState]()
    for cluster in clients.hub.find(CLUSTERS) or ():
        name = cluster["metadata"]["name"]
        storage = section(cluster, "status", "cache").get("storageClassName") or ""
        state = ClusterState(name, is_meant(cache, cluster), storage, users=users.get(name, ()))
        state = _seen(state, cache, uid, clients)
        if not (state.meant or state.users or state.children or name in known):
            continue
        isolation = parse_stored(Isolation, section(cluster, "spec", "isolation"))
        found.append(replace(state, isolation=isolation))
    found.sort(key=lambda one: one.name)
    asked = await asyncio.gather(*(_asked(one, cache, clients, known=one.name in known) for one in found))
    return [replace(one, namespace=None) if _placed_meanwhile(one, clients.hub) else one for one in asked]


async def _asked(state: ClusterState, cache: ModelCache, clients: Clients, *, known: bool) -> ClusterState:
    """The same with what no watch tells; whatever fails is that cluster's. `known`: whether the status names it."""
    home, claim = names.remote_namespace(cache.key.namespace), claim_of(cache)
    leaving = cache.metadata.deletion_timestamp is not None or not state.meant
    try:
        if leaving and known and state.connected and not state.children and not state.users:
            state = replace(state, namespace=await _vacant(home, clients.fleet(state.name), clients.hub))
        if claim and state.connected and not leaving:
            state = await _with_existing(state, Key(home, claim), clients)
    except Exception as error:  # noqa: BLE001 - a hostile one may answer anything
        return replace(state, connected=False, error=unreadable(state.name, error, clients.repeats))
    return state


def _seen(state: ClusterState, cache: ModelCache, home: str, clients: Clients) -> ClusterState:
    """The same with what is on the cluster."""
    try:
        there = clients.fleet(state.name)
    except Connecting:
        return replace(state, connected=False)
    except Unreachable as error:
        return replace(state, connected=False, error=error)
    if there.health.error or not there.synced:
        return replace(state, connected=False, error=there.health.error)
    uid, homes = cache.metadata.uid or "", (names.remote_namespace(cache.key.namespace),)
    return replace(
        state,
        children=tuple(applied(there, CHILDREN, uid, homes)),
        pods=tuple(labelled(there, (POD,), uid, homes)),
        fences=tuple(applied(there, model_replica.FENCES, home, homes)) if home else (),
    )


async def _with_existing(state: ClusterState, claim: Key, clients: Clients) -> ClusterState:
    """The same with a claim that somebody else has made: nothing of theirs is watched."""

    def ask(kube: Kube) -> Awaitable[Manifest | None]:
        return kube.find(PERSISTENT_VOLUME_CLAIM, claim)

    try:
        async with a_look():
            found = await clients.reads.of(clients.fleet(state.name), ("claim", claim), ask, clients.now())
        return replace(state, existing=cut_claim(found) if found else None)
    except ClientError as error:
        return replace(state, connected=False, error=error)


def _placed(home: str, cluster: str, hub: Cluster) -> Sequence[Manifest]:
    """The replicas that are on a cluster and there in the namespace of that name."""
    replicas = hub.find(REPLICAS)
    placed = replicas.by("cluster", cluster) if replicas else ()
    return [one for one in placed if names.remote_namespace(key_of(one).namespace) == home]


def _placed_meanwhile(state: ClusterState, hub: Cluster) -> bool:
    """Whether a namespace that can go is needed after all: all wait for the slowest of their clusters."""
    placed = _placed(key_of(state.namespace).name, state.name, hub) if state.namespace else ()
    return not all(map(is_terminating, placed))


async def _vacant(home: str, there: Cluster, hub: Cluster) -> Manifest | None:
    """The namespace of the cache there, when neither a replica nor anybody else has something in it."""
    found = find(there, NAMESPACE, Key("", home))
    if found is None:
        return None
    try:
        needed = any(model_replica.is_there(key_of(one), hub, there) for one in _placed(home, there.name, hub))
        async with a_look():
            return None if needed or await tenancy.of_others(there.kube, home) else found
    except ClientError:  # it stays, and InferenceClusters tell of it
        return None


def _left_out(cache: ModelCache, hub: Cluster) -> tuple[str, ...]:
    clusters = hub.find(CLUSTERS) or ()
    chosen = (one for one in clusters if is_selected(cache.match_labels, one) and not is_meant(cache, one))
    return tuple(sorted(one["metadata"]["name"] for one in chosen))


def _is_crowded(cache: ModelCache, hub: Cluster) -> bool:
    """True if its namespace has as many older caches as it may have."""
    caches = hub.find(CACHES)
    beside = caches.by("namespace", cache.key.namespace) if caches else ()
    ages = sorted((one["metadata"].get("creationTimestamp") or "", key_of(one)) for one in beside)
    return cache.key in (key for _, key in ages[MOST:])


def _users(cache: ModelCache, hub: Cluster) -> Mapping[str, tuple[User, ...]]:
    """Return its replicas by cluster."""
    replicas, found = hub.find(REPLICAS), dict[str, tuple[User, ...]]()
    for replica in replicas.by("cache", cache.key) if replicas else ():
        volume = section(replica, "spec", "modelCacheRef").get("volume") or names.cache_volume(*cache.key)
        cluster = replica["spec"].get("clusterName", "")
        found[cluster] = (*found.get(cluster, ()), User(key_of(replica).name, volume))
    return {cluster: tuple(sorted(users, key=lambda one: one.name)) for cluster, users in found.items()}


# Who is woken ---------------------------------------------------------------------------------------------------------

_owner = owner_of_kind("ModelCache")


def _on_cluster(change: Change, hub: Cluster) -> Iterable[Key]:
    """The caches that a cluster is meant for, or was, when it is another one to them."""
    before, after = (_offer(one) if one else None for one in change)
    if before != after:
        for one in filter(None, change):
            yield from _concerned(one, hub)


def _offer(cluster: Manifest) -> tuple[object, ...]:
    status = section(cluster, "status", "cache").get("storageClassName")
    return status, labels_of(cluster), is_terminating(cluster), section(cluster, "spec", "isolation")


def _concerned(cluster: Manifest, hub: Cluster) -> Iterable[Key]:
    name = cluster["metadata"]["name"]
    for cache in hub.find(CACHES) or ():
        if name in staged_on(cache) or is_selected(section(cache, "spec", "clusterSelector", "matchLabels"), cluster):
            yield key_of(cache)


def _on_connection(name: str, hub: Cluster) -> Iterable[Key]:
    cluster = find(hub, CLUSTERS, Key("", name))
    return _concerned(cluster, hub) if cluster else ()


def _on_replica(change: Change, _: Cluster) -> Iterable[Key]:
    """Its cache, when there is a replica more or less that starts from it, or from another volume of it."""
    before, after = (one and (section(one, "spec", "modelCacheRef"), one["spec"].get("clusterName")) for one in change)
    if before != after:
        for one in filter(None, change):
            yield from model_replica.started_from(one)


def _on_pod(change: Change, hub: Cluster) -> Iterable[Key]:
    """Its cache, when it ends, or something else is the matter with it."""
    before, after = (one and (section(one, "status").get("phase"), told(symptoms([one]))) for one in change)
    return _owner(change, hub) if before != after else ()
