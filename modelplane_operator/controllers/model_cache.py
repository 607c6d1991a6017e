"""ModelCache: what to read of it on all of its clusters, and who wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from modelplane_operator.api import InferenceCluster, ModelCache, ModelReplica, labels, names
from modelplane_operator.api.base import of
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.referenced import ReferencedObjects
from modelplane_operator.clients.watches import Watched
from modelplane_operator.controllers import model_replica, tenancy
from modelplane_operator.controllers.lookups import placed_on
from modelplane_operator.controllers.orphans import staged_on
from modelplane_operator.kube.errors import ClientError, Connecting, Unreachable
from modelplane_operator.kube.objects import (
    Key,
    Manifest,
    annotations_of,
    entries,
    is_terminating,
    key_of,
    labels_of,
    section,
)
from modelplane_operator.kube.resources import (
    JOB,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
    type_of,
)
from modelplane_operator.planning.cache_status import is_meant, is_selected
from modelplane_operator.planning.cached_cluster import ClusterState, Neighbour, Observed, User
from modelplane_operator.planning.hydration import cut_claim, cut_job
from modelplane_operator.planning.model_cache import MOST, plan
from modelplane_operator.planning.symptoms import symptoms, told
from modelplane_operator.rendering.cache_sources import claim_of, content_of, credentials, source_of
from modelplane_operator.rendering.model_cache import Hydrator
from modelplane_operator.runtime.loop import Change, Clients, Controller, Indexes, its_deletion
from modelplane_operator.runtime.reading import Cluster, applied, find, unreadable
from modelplane_operator.runtime.reading import children as labelled
from modelplane_operator.runtime.strands import a_look
from modelplane_operator.runtime.wiring import owner_of_kind

CACHES, CLUSTERS, REPLICAS = of(ModelCache), of(InferenceCluster), of(ModelReplica)
CHILDREN = (PERSISTENT_VOLUME_CLAIM, JOB, SECRET, SERVICE_ACCOUNT, ROLE, ROLE_BINDING)
CUT = {PERSISTENT_VOLUME_CLAIM: cut_claim, JOB: cut_job}
"""What is kept of those of which more is read than metadata."""


def _volume(replica: Manifest) -> Iterable[Key]:
    """The claim that a replica names: one that is not its cache's first."""
    named = section(replica, "spec", "modelCacheRef").get("volume")
    return (Key(key_of(replica).namespace, named),) if named else ()


def _lenders(cache: Manifest) -> frozenset[Key]:
    """The caches whose volumes it shares."""
    named = (one.get("volumeOf") for one in entries(cache, "status", "clusters"))
    return frozenset(Key(key_of(cache).namespace, str(one)) for one in named if one)


def _shared(cache: Manifest) -> Iterable[Key]:
    """What it is to hold, when it shares that: caches with the same may share a volume."""
    if not cache["spec"].get("sharing"):
        return ()
    try:
        known = ModelCache.parse(cache)
        return () if claim_of(known) else (Key(known.key.namespace, content_of(known)),)
    except ValueError:  # it cannot be read, and says so itself
        return ()


INDEXES: Indexes = {
    REPLICAS: {"cache": model_replica.started_from, "cluster": placed_on, "volume": _volume},
    CACHES: {
        "cluster": staged_on,
        "namespace": lambda manifest: (manifest["metadata"]["namespace"],),
        "lender": _lenders,
        "shared": _shared,
    },
}


def controller(referenced: ReferencedObjects, hydrator: Hydrator) -> Controller[ModelCache, Observed]:
    """`referenced`: how tokens are read."""

    async def observe(cache: ModelCache, clients: Clients) -> Observed:
        home = find(clients.hub, NAMESPACE, Key("", cache.key.namespace))
        uid = home["metadata"]["uid"] if home else ""
        secret = await _secret(cache, referenced)
        states = await _states(cache, uid, clients)
        crowded = _crowded(cache, clients.hub)
        left_out = _left_out(cache, clients.hub)
        return Observed(
            cache, tuple(states), uid, hydrator, clients.now(), secret, referenced.recheck, crowded, left_out
        )

    return Controller(
        ModelCache,
        observe,
        plan,
        with_refusals=lambda seen, refusals: replace(seen, refusals=refusals),
        watches={CLUSTERS: _on_cluster, REPLICAS: _on_replica, CACHES: _on_neighbour},
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
    users, found, manifest = _users(cache, clients.hub), list[ClusterState](), cache.to_manifest()
    neighbours = list(_neighbours(cache, clients.hub))
    for cluster in clients.hub.find(CLUSTERS) or ():
        name = cluster["metadata"]["name"]
        storage = section(cluster, "status", "cache").get("storageClassName") or ""
        state = ClusterState(name, is_meant(manifest, cluster), storage, users=users.get(name, ()))
        state = _seen(state, cache, uid, clients)
        if not (state.meant or state.users or state.children or name in known):
            continue
        lenders = ((other, content, is_meant(raw, cluster)) for other, content, raw in neighbours)
        state = _with_sharers(state, cache, lenders, clients)
        isolation = InferenceCluster.parse(cluster).spec.isolation
        found.append(replace(state, isolation=isolation or Isolation()))
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


def _with_sharers(
    state: ClusterState, cache: ModelCache, neighbours: Iterable[tuple[ModelCache, str, bool]], clients: Clients
) -> ClusterState:
    """The same with caches that may share volumes with it there, and replicas of those that start from its own."""
    if not state.connected:
        return state
    there, homes = clients.fleet(state.name), (names.remote_namespace(cache.key.namespace),)
    lent = tuple(
        Neighbour(
            other, content, meant, tuple(applied(there, (PERSISTENT_VOLUME_CLAIM,), other.metadata.uid or "", homes))
        )
        for other, content, meant in neighbours
    )
    replicas, users = clients.hub.find(REPLICAS), {str(one): one for one in state.users}
    for claim in (one for one in state.children if type_of(one) == PERSISTENT_VOLUME_CLAIM):
        volume = key_of(claim).name
        for replica in replicas.by("volume", Key(cache.key.namespace, volume)) if replicas else ():
            if replica["spec"].get("clusterName") == state.name:
                user = User(key_of(replica).name, volume)
                users[str(user)] = user
    return replace(state, neighbours=lent, users=tuple(sorted(users.values(), key=str)))


def _neighbours(cache: ModelCache, hub: Cluster) -> Iterator[tuple[ModelCache, str, Manifest]]:
    """The caches whose volumes it may share, or does; what they are to hold; and they themselves, as they are stored.

    Of those that only borrow themselves, the oldest will do: a namespace may have a hundred.
    """
    caches, mine = hub.find(CACHES), cache.to_manifest()
    named = _lenders(mine)
    alike = [one for key in _shared(mine) for one in caches.by("shared", key)] if caches else []
    oldest = min(map(_age, alike), default=None)
    found = {key_of(one): one for one in alike if not _borrows(one) or _age(one) == oldest}
    found |= {key: one for key in named if caches and (one := caches.get(key))}
    for key, manifest in found.items():
        if key != cache.key:
            with suppress(ValueError):  # one that cannot be read says so itself
                other = ModelCache.parse(manifest)
                yield other, "" if claim_of(other) else content_of(other), manifest


def _borrows(cache: Manifest) -> bool:
    lines = entries(cache, "status", "clusters")
    return bool(lines) and all(one.get("volumeOf") for one in lines)


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
    manifest, clusters = cache.to_manifest(), hub.find(CLUSTERS) or ()
    chosen = (one for one in clusters if is_selected(manifest, one) and not is_meant(manifest, one))
    return tuple(sorted(one["metadata"]["name"] for one in chosen))


def _crowded(cache: ModelCache, hub: Cluster) -> bool:
    caches = hub.find(CACHES)
    beside = caches.by("namespace", cache.key.namespace) if caches else ()
    mine = _age(cache.to_manifest())
    return sum(_age(one) < mine for one in beside) >= MOST


def _age(cache: Manifest) -> tuple[str, str]:
    return cache["metadata"].get("creationTimestamp") or "", cache["metadata"]["name"]


def _users(cache: ModelCache, hub: Cluster) -> Mapping[str, tuple[User, ...]]:
    """Its replicas, and the caches that share volumes of it, by cluster."""
    replicas, found = hub.find(REPLICAS), dict[str, tuple[User, ...]]()
    for replica in replicas.by("cache", cache.key) if replicas else ():
        volume = section(replica, "spec", "modelCacheRef").get("volume") or names.cache_volume(*cache.key)
        cluster = replica["spec"].get("clusterName", "")
        found[cluster] = (*found.get(cluster, ()), User(key_of(replica).name, volume))
    caches = hub.find(CACHES)
    for other in caches.by("lender", cache.key) if caches else ():
        for line in entries(other, "status", "clusters"):
            if line.get("volumeOf") == cache.key.name and line.get("volume"):
                user = User(key_of(other).name, line["volume"], ModelCache.definition.kind)
                found[line["name"]] = (*found.get(line["name"], ()), user)
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
    return [key_of(one) for one in hub.find(CACHES) or () if name in staged_on(one) or is_selected(one, cluster)]


def _on_connection(name: str, hub: Cluster) -> Iterable[Key]:
    cluster = find(hub, CLUSTERS, Key("", name))
    return _concerned(cluster, hub) if cluster else ()


def _on_replica(change: Change, hub: Cluster) -> Iterable[Key]:
    """Its cache, when there is a replica more or less that starts from it, or from another volume of it; and caches
    that may share theirs."""
    before, after = (one and (section(one, "spec", "modelCacheRef"), one["spec"].get("clusterName")) for one in change)
    if before != after:
        for one in filter(None, change):
            yield from model_replica.started_from(one)
            yield from _lent_to(one, hub) if any(_volume(one)) else ()


def _lent_to(replica: Manifest, hub: Cluster) -> Iterable[Key]:
    """The caches one of which may lend a replica the volume that it names."""
    caches = hub.find(CACHES)
    beside = caches.by("namespace", key_of(replica).namespace) if caches else ()
    return [key_of(one) for one in beside if any(line.get("users") for line in entries(one, "status", "clusters"))]


def _on_neighbour(change: Change, hub: Cluster) -> Iterable[Key]:
    """Caches that share volumes with one, or may, when that is another one to them."""
    before, after = (_lending(one) if one else None for one in change)
    if before != after:
        for one in filter(None, change):
            yield from {*_sharing(_shared(one), hub), *_lenders(one)} - {key_of(one)}


def _lending(cache: Manifest) -> tuple[object, ...]:
    """What of a cache is of interest to others: how far it is where it borrows itself is not."""
    lines = [
        [one.get(name) for name in ("name", "volume", "volumeOf")] if one.get("volumeOf") else one
        for one in entries(cache, "status", "clusters")
    ]
    return cache["spec"], lines, annotations_of(cache).get(labels.PAUSED), is_terminating(cache)


def _sharing(contents: Iterable[Key], hub: Cluster) -> Iterable[Key]:
    caches = hub.find(CACHES)
    return [key_of(one) for content in contents for one in caches.by("shared", content)] if caches else ()


def _on_pod(change: Change, hub: Cluster) -> Iterable[Key]:
    """Its cache, when it ends, or something else is the matter with it."""
    before, after = (one and (section(one, "status").get("phase"), told(symptoms([one]))) for one in change)
    return _owner(change, hub) if before != after else ()
