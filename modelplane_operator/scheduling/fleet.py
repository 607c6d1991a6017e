"""The fleet in memory, updated by watch events, so that a decision only looks at what matters to it.

Three things make a decision cheap. Free nodes are counters per pool, updated by each replica that appears or goes.
Hardware matches are cached by content (`matching`). Each recent requirement has a view: the sorted results of all
clusters, of which only the ones of changed clusters are recomputed.

This is the only mutable part of the package. Everything that it returns is a value.
"""

from bisect import bisect_left, insort
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice, takewhile
from typing import TypeVar, cast

from kubeloop.objects import Key
from modelplane_operator.api.inference_cluster import GpuPool, InferenceCluster
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.scheduling import cluster as clusters
from modelplane_operator.scheduling import placement as placements
from modelplane_operator.scheduling.cluster import NodeShape, Pools, Profile, SharedNode
from modelplane_operator.scheduling.decision import Refusal
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.load import Load
from modelplane_operator.scheduling.matching import Hosting, Hosts, OnNodes, hosts_by
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.reasons import Distance, Group
from modelplane_operator.scheduling.requirement import Requirement
from modelplane_operator.scheduling.room import PodsOn
from modelplane_operator.scheduling.survey import Fit, Survey, answer, measure_distance, refuse
from modelplane_operator.selectors.cel import Device

# Views of this many requirements are always kept, and of more while all of them together hold at most `MOST_ANSWERS`
# results. A result takes 250 bytes where clusters are alike, three times that where all differ.
LEAST_VIEWS = 64
MOST_ANSWERS = 200_000
MOST_VIEWS = 4_096  # a requirement has up to `SELECTOR_TEXT` characters of selectors, however small the fleet is

SORTED_AGAIN = 16  # if more than this fraction of a view may have changed, the whole view is sorted

Shared = TypeVar("Shared", NodeShape, Profile, SharedNode)
K = TypeVar("K", str, PodsOn)

Entry = tuple[Distance, str]
"""Sort key of a cluster within its group: nearness, then name."""


@dataclass(slots=True)
class _CachedResult:
    """The result of a cluster in a view, with the state that it was computed from and the pools that can host a
    replica.
    """

    info: ClusterInfo
    """State that the result was computed from."""
    hosting: Hosting
    """Pools that can host the engines."""
    group: Group
    """Group of the result."""
    entry: Entry
    """Sort key within the group."""

    def still_holds(self, info: ClusterInfo) -> bool:
        """True if nothing that the result depends on has changed. Changes of pools that cannot host do not matter."""
        if info.cluster is not self.info.cluster:
            return False
        if isinstance(self.hosting, Hosts):
            free_now, free_then = info.free, self.info.free
            for pool in self.hosting.pools:  # a loop for speed: this runs more often than anything else
                if free_now[pool] != free_then[pool]:
                    return False
            if info.rooms and any(info.rooms[pool] != self.info.rooms[pool] for pool in self.hosting.pools):
                return False
        return True


@dataclass(slots=True)
class _View:
    """The result of every cluster for one requirement, at a revision of the fleet."""

    requirement: Requirement
    """Requirement that the results are for."""
    revision: int = 0
    """Revision of the fleet up to which the view is current."""
    places: dict[str, _CachedResult] = field(default_factory=dict[str, _CachedResult])
    """Results by cluster."""
    groups: dict[Group, list[Entry]] = field(default_factory=dict[Group, list[Entry]])
    """Sort keys of the clusters in each group, in order."""

    def put(self, infos: Sequence[ClusterInfo]) -> None:
        """Recompute the results of these clusters, as far as they may have changed."""
        engines = [OnNodes(engine) for engine in self.requirement.engines]
        by_profile: dict[Profile, Hosting] = {}
        sort = len(infos) > len(self.places) // SORTED_AGAIN
        for info in infos:
            name, profile = info.cluster.name, info.cluster.pools.profile
            cached = self.places.get(name)
            if cached is not None and cached.still_holds(info):
                continue
            if cached is not None and cached.info.cluster.pools.profile is profile:
                hosting = cached.hosting
            elif (hosting := by_profile.get(profile)) is None:
                hosting = by_profile[profile] = hosts_by(engines, profile)
            result = answer(self.requirement, info, hosting)
            if cached is not None and not sort:
                self._remove(cached)
            cached = self.places[name] = _CachedResult(
                info, hosting, result.group, (measure_distance(info, result), name)
            )
            if not sort:
                insort(self.groups.setdefault(cached.group, []), cached.entry)
        if sort:
            self._rebuild()

    def _rebuild(self) -> None:
        """Rebuild the groups. After many changes this is faster than single insertions."""
        groups: defaultdict[Group, list[Entry]] = defaultdict(list)
        for cached in self.places.values():
            groups[cached.group].append(cached.entry)
        for entries in groups.values():
            entries.sort()
        self.groups = dict(groups)

    def drop(self, name: str) -> None:
        """Remove a deleted cluster."""
        cached = self.places.pop(name, None)
        if cached is not None:
            self._remove(cached)

    def _remove(self, cached: _CachedResult) -> None:
        """Remove a result from its group."""
        entries = self.groups[cached.group]
        del entries[bisect_left(entries, cached.entry)]
        if not entries:
            del self.groups[cached.group]

    def among(self, group: Group, apart: frozenset[str]) -> Iterator[str]:
        """Yield the clusters of a group, nearest first, without the ones in `apart`."""
        return (name for _, name in self.groups.get(group, ()) if name not in apart)


class FleetModel:
    """The last observed state of every cluster and replica. The operator's own writes count at once.

    Replicas take nodes even if their cluster is unknown, so the order of observations does not matter.
    """

    def __init__(self) -> None:
        """Create an empty fleet."""
        self._clusters: dict[str, ClusterInfo] = {}
        self._published: dict[str, tuple[tuple[GpuPool, ...], Pools]] = {}
        self._interned: dict[NodeShape | Profile | SharedNode, NodeShape | Profile | SharedNode] = {}
        self._size_of = 0  # node shapes and profiles in use, counted with repetitions
        self._used: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._pods: defaultdict[str, Counter[PodsOn]] = defaultdict(Counter)
        self._observed: dict[Key, Replica] = {}
        self._replicas_by_deployment: defaultdict[tuple[str, str], dict[Key, Replica]] = defaultdict(dict)
        self._views: OrderedDict[Requirement, _View] = OrderedDict()
        self._changes: OrderedDict[str, int] = OrderedDict()  # clusters by their last change, oldest first
        self._revision = 0
        self._devices: frozenset[Device] | None = None  # None: pools have changed since the last request

    def copy(self) -> "FleetModel":
        """Return an independent model with the same observations. Views are not copied."""
        copied = FleetModel()
        copied._clusters, copied._published = dict(self._clusters), dict(self._published)
        copied._interned, copied._size_of = dict(self._interned), self._size_of
        copied._used.update((name, Counter(used)) for name, used in self._used.items())
        copied._pods.update((name, Counter(pods)) for name, pods in self._pods.items())
        copied._observed = dict(self._observed)
        copied._replicas_by_deployment.update(
            (name, dict(by_key)) for name, by_key in self._replicas_by_deployment.items()
        )
        copied._changes, copied._revision = OrderedDict(self._changes), self._revision
        copied._devices = self._devices
        return copied

    # Observations --------------------------------------------------------------------------------------------------

    def observe_cluster(self, cluster: InferenceCluster, *, unreachable_since: datetime | None = None) -> None:
        """Store the current state of a cluster, and since when it has been unreachable, if it is."""
        name = cluster.metadata.name
        pools = self._parse_pools(name, cluster.status.gpu_pools if cluster.status else ())
        observed = clusters.read(cluster, pools=pools, unreachable_since=unreachable_since)
        previous = self._clusters.get(name)
        if previous is None or previous.cluster != observed:
            self._store(ClusterInfo.of(observed, Load(self._used.get(name, {}), self._pods.get(name, {}))))

    def forget_cluster(self, name: str) -> None:
        """Remove a deleted cluster."""
        if self._clusters.pop(name, None) is None:
            return
        self._size_of -= _size_of(self._published.pop(name)[1])
        self._devices = None
        del self._changes[name]
        for view in self._views.values():
            view.drop(name)

    def observe_replica(self, replica: ModelReplica) -> None:
        """Store the current state of a replica."""
        self.observe_replicas(placements.read(replica))

    def observe_replicas(self, replica: Replica) -> None:
        """Store the current state of a replica that was parsed before."""
        self._replace_replica(replica.key, replica)

    def forget_replica(self, key: Key) -> None:
        """Remove a deleted replica, which frees its nodes."""
        self._replace_replica(key, None)

    # Queries of the scheduler --------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of clusters."""
        return len(self._clusters)

    @property
    def devices(self) -> frozenset[Device]:
        """Return all distinct devices of the fleet."""
        if self._devices is None:
            offers = {offer for _, pools in self._published.values() for offer in pools.profile.offers}
            self._devices = frozenset(offered.device for offer in offers for offered in offer.devices)
        return self._devices

    def info(self, cluster: str) -> ClusterInfo | None:
        """Return a cluster and its free nodes; None if it is not in the fleet."""
        return self._clusters.get(cluster)

    def replicas(self, namespace: str, deployment: str) -> tuple[Replica, ...]:
        """Return the replicas under a deployment's name, sorted by their own names."""
        by_key = self._replicas_by_deployment.get((namespace, deployment), {})
        return tuple(by_key[key] for key in sorted(by_key))

    def owners(self, cluster: str) -> frozenset[Key]:
        """Return the deployments that have replicas on a cluster."""
        keys = (replica.owner for replica in self._observed.values() if replica.cluster == cluster)
        return frozenset(Key(owner.namespace, owner.name) for owner in keys)

    def survey(self, requirement: Requirement, *, limit: int, apart: frozenset[str]) -> Survey:
        """Return the results of all clusters but those in `apart`, with at most `limit` candidates."""
        view = self._view(requirement)
        apart_by_group = Counter(view.places[name].group for name in apart if name in view.places)
        fitting = view.among(Fit.group, apart)
        return Survey(
            candidates=tuple(self._clusters[name] for name in islice(fitting, limit)),
            fitting=len(view.groups.get(Fit.group, ())) - apart_by_group[Fit.group],
            refusals=tuple(
                self._refusal(requirement, next(view.among(group, apart)), count)
                for group in sorted(view.groups)
                if group != Fit.group and (count := len(view.groups[group]) - apart_by_group[group])
            ),
        )

    def _refusal(self, requirement: Requirement, nearest: str, count: int) -> Refusal:
        """Return a refusal with the reason of its nearest cluster."""
        # Views store no reasons, to save memory.
        info = self._clusters[nearest]
        return refuse(info, answer(requirement, info), count)

    # Bookkeeping ---------------------------------------------------------------------------------------------------

    def _view(self, requirement: Requirement) -> _View:
        """Return the up-to-date view of a requirement, and evict the least recently used ones."""
        view = self._views.get(requirement)
        if view is None:
            view = self._views[requirement] = _View(requirement)
            view.put(tuple(self._clusters.values()))
            while len(self._views) > min(max(LEAST_VIEWS, MOST_ANSWERS // max(self.size, 1)), MOST_VIEWS):
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(requirement)
            changed = takewhile(lambda change: change[1] > view.revision, reversed(self._changes.items()))
            view.put([self._clusters[name] for name, _ in changed])
        view.revision = self._revision
        return view

    def _store(self, info: ClusterInfo) -> None:
        """Store a cluster's free nodes as a new revision."""
        name = info.cluster.name
        self._clusters[name] = info
        self._revision += 1
        self._changes[name] = self._revision
        self._changes.move_to_end(name)

    def _replace_replica(self, key: Key, new: Replica | None) -> None:
        """Replace a replica, and move its nodes when they differ."""
        old = self._observed.pop(key, None)
        if new is not None:
            self._observed[key] = new
        if old == new:
            return
        for replica, keep in ((old, False), (new, True)):
            if replica is not None:
                self._index(replica, keep=keep)
        taken = (old.cluster, old.load) if old else None
        takes = (new.cluster, new.load) if new else None
        if taken != takes:
            for change, sign in ((taken, -1), (takes, 1)):
                if change is not None:
                    self._charge(*change, sign)

    def _index(self, replica: Replica, *, keep: bool) -> None:
        """Add a replica to the index by deployment, or remove it."""
        name = (replica.owner.namespace, replica.owner.name)
        if keep:
            self._replicas_by_deployment[name][replica.key] = replica
            return
        del self._replicas_by_deployment[name][replica.key]
        if not self._replicas_by_deployment[name]:
            del self._replicas_by_deployment[name]

    def _charge(self, cluster: str, load: Load, sign: int) -> None:
        """Change the load of a cluster, and what is free there if the cluster is known."""
        # Counters are kept for unknown clusters, too: a replica can be observed before its cluster.
        _add(self._used, cluster, load.nodes, sign)
        _add(self._pods, cluster, load.pods, sign)
        if (info := self._clusters.get(cluster)) is not None:
            self._store(info.charge(load) if sign > 0 else info.release(load))

    def _parse_pools(self, name: str, published: tuple[GpuPool, ...]) -> Pools:
        """Return the pools as parsed before if the same are published, as in most events of a cluster."""
        previous = self._published.get(name)
        if previous is not None and previous[0] == published:
            return previous[1]
        self._devices = None
        parsed = clusters.read_pools(published)
        self._size_of += _size_of(parsed) - (_size_of(previous[1]) if previous else 0)
        if len(self._interned) > 2 * self._size_of + 64:
            self._interned.clear()  # unused contents go with it; used ones return as they are parsed
        profile = self._intern(Profile(tuple(map(self._intern, parsed.profile.offers))))
        pools = replace(parsed, profile=profile, shared=tuple(node and self._intern(node) for node in parsed.shared))
        self._published[name] = (published, pools)
        return pools

    def _intern(self, content: Shared) -> Shared:
        """Return the one shared instance of this content, so that comparisons are fast and memory is saved."""
        return cast("Shared", self._interned.setdefault(content, content))


def _add(counters: defaultdict[str, Counter[K]], name: str, numbers: Mapping[K, int], sign: int) -> None:
    """Add the numbers to the counter of this name, or subtract them; drop what becomes zero."""
    counter = counters[name]
    for key, number in numbers.items():
        counter[key] += sign * number
        if not counter[key]:
            del counter[key]
    if not counter:
        del counters[name]


def _size_of(pools: Pools) -> int:
    """Return the number of contents of a cluster's pools: its node shapes, its profile and its shared nodes."""
    return len(pools.profile.offers) + 1 + len(pools.shared)
