"""The fleet in memory, kept up with what is observed, so that a decision touches only what matters to it.

Three things make a decision cheap. Free nodes are counters per pool, moved by each replica that comes and goes. Which
hardware fits is remembered by content (`matching`). And for each need that was asked for lately there is a view: the
answer of every cluster, sorted, of which only clusters that have changed since are asked again.

This is the one place of the package that changes; whatever it hands out is a value.
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
from modelplane_operator.scheduling.cluster import NodeShape, Pools, Profile
from modelplane_operator.scheduling.decision import Refusal
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.matching import Hosting, Hosts, OnNodes, hosts_by
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.reasons import Group, Nearness, Spare
from modelplane_operator.scheduling.requirement import Requirement
from modelplane_operator.scheduling.survey import Fit, Survey, answer
from modelplane_operator.selectors.cel import Device

# Views are kept for so many needs in any case, and for more as long as all of them together remember at most so many
# answers. An answer takes 250 bytes where clusters are alike, three times that where no two are.
LEAST_VIEWS = 64
MOST_ANSWERS = 200_000
MOST_VIEWS = 4_096  # a need has up to `SELECTOR_TEXT` characters of selectors, however small the fleet is

SORTED_AGAIN = 16  # when more than one in so many places of a view may have changed, all are sorted again

Shared = TypeVar("Shared", NodeShape, Profile)

Entry = tuple[Nearness, str]
"""A cluster's place within its group: nearness, then name."""


@dataclass(slots=True)
class _Place:
    """Where a cluster stands in a view: as it was when it was asked, and which of its pools could host a replica."""

    info: ClusterInfo
    hosting: Hosting
    group: Group
    entry: Entry

    def still_holds(self, info: ClusterInfo) -> bool:
        """Whether nothing has changed that the answer depends on: other pools than those that could host do not."""
        if info.cluster is not self.info.cluster:
            return False
        if isinstance(self.hosting, Hosts):
            now, then = info.free, self.info.free
            for pool in self.hosting.pools:  # as a loop: nothing is asked more often
                if now[pool] != then[pool]:
                    return False
        return True


@dataclass(slots=True)
class _View:
    """Every cluster's answer to one need, as of a revision of the fleet."""

    requirement: Requirement
    revision: int = 0
    places: dict[str, _Place] = field(default_factory=dict[str, _Place])
    groups: dict[Group, list[Entry]] = field(default_factory=dict[Group, list[Entry]])

    def put(self, infos: Sequence[ClusterInfo]) -> None:
        """Ask these clusters, as far as their answers may be others than before."""
        engines = [OnNodes(engine) for engine in self.requirement.engines]
        known: dict[Profile, Hosting] = {}
        sort = len(infos) > len(self.places) // SORTED_AGAIN
        for info in infos:
            name, profile = info.cluster.name, info.cluster.pools.profile
            place = self.places.get(name)
            if place is not None and place.still_holds(info):
                continue
            if place is not None and place.info.cluster.pools.profile is profile:
                hosting = place.hosting
            elif (hosting := known.get(profile)) is None:
                hosting = known[profile] = hosts_by(engines, profile)
            found = answer(self.requirement, info, hosting)
            if place is not None and not sort:
                self._leave(place)
            place = self.places[name] = _Place(info, hosting, found.group, (found.nearness, name))
            if not sort:
                insort(self.groups.setdefault(place.group, []), place.entry)
        if sort:
            self._sort()

    def _sort(self) -> None:
        """Group all places anew: when many have changed, that is quicker than one by one."""
        groups: defaultdict[Group, list[Entry]] = defaultdict(list)
        for place in self.places.values():
            groups[place.group].append(place.entry)
        for entries in groups.values():
            entries.sort()
        self.groups = dict(groups)

    def drop(self, name: str) -> None:
        """The cluster is gone."""
        place = self.places.pop(name, None)
        if place is not None:
            self._leave(place)

    def _leave(self, place: _Place) -> None:
        entries = self.groups[place.group]
        del entries[bisect_left(entries, place.entry)]
        if not entries:
            del self.groups[place.group]

    def among(self, group: Group, apart: frozenset[str]) -> Iterator[str]:
        """The clusters of a group, nearest first, but for those kept apart."""
        return (name for _, name in self.groups.get(group, ()) if name not in apart)


class FleetModel:
    """What was observed last of every cluster and replica. Our own writes are observed at once.

    Replicas take nodes whether or not their cluster is known, so that it does not matter which is observed first.
    """

    def __init__(self) -> None:
        self._clusters: dict[str, ClusterInfo] = {}
        self._published: dict[str, tuple[tuple[GpuPool, ...], Pools]] = {}
        self._interned: dict[NodeShape | Profile, NodeShape | Profile] = {}
        self._contents = 0  # offers and profiles that are published, each as often as it is
        self._used: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._observed: dict[Key, Replica] = {}
        self._named: defaultdict[tuple[str, str], dict[Key, Replica]] = defaultdict(dict)
        self._views: OrderedDict[Requirement, _View] = OrderedDict()
        self._changes: OrderedDict[str, int] = OrderedDict()  # clusters by when they changed last, oldest first
        self._revision = 0
        self._devices: frozenset[Device] | None = None  # None: pools have changed since somebody asked

    def copy(self) -> "FleetModel":
        """Another model that has seen the same, and changes apart from this one. Views are not copied."""
        found = FleetModel()
        found._clusters, found._published = dict(self._clusters), dict(self._published)
        found._interned, found._contents = dict(self._interned), self._contents
        found._used.update((name, Counter(used)) for name, used in self._used.items())
        found._observed = dict(self._observed)
        found._named.update((name, dict(named)) for name, named in self._named.items())
        found._changes, found._revision = OrderedDict(self._changes), self._revision
        found._devices = self._devices
        return found

    # What is seen --------------------------------------------------------------------------------------------------

    def observe_cluster(self, cluster: InferenceCluster, *, unreachable_since: datetime | None = None) -> None:
        """This is how the cluster is now, and since when, if so, it has not answered."""
        name = cluster.metadata.name
        pools = self._pools(name, cluster.status.gpu_pools if cluster.status else ())
        seen = clusters.read(cluster, pools=pools, unreachable_since=unreachable_since)
        known = self._clusters.get(name)
        if known is None or known.cluster != seen:
            self._put(ClusterInfo.of(seen, self._used.get(name, {})))

    def forget_cluster(self, name: str) -> None:
        """The cluster does not exist any more."""
        if self._clusters.pop(name, None) is None:
            return
        self._contents -= _contents(self._published.pop(name)[1])
        self._devices = None
        del self._changes[name]
        for view in self._views.values():
            view.drop(name)

    def observe_replica(self, replica: ModelReplica) -> None:
        """This is how the replica is now."""
        self.observe_placed(placements.read(replica))

    def observe_placed(self, replica: Replica) -> None:
        """The same, of one that was read already."""
        self._recharge(replica.key, replica)

    def forget_replica(self, key: Key) -> None:
        """The replica does not exist any more: its nodes are free."""
        self._recharge(key, None)

    # What the scheduler asks ---------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return len(self._clusters)

    @property
    def devices(self) -> frozenset[Device]:
        """All different devices of the fleet."""
        if self._devices is None:
            offers = {offer for _, pools in self._published.values() for offer in pools.profile.offers}
            self._devices = frozenset(offered.device for offer in offers for offered in offer.devices)
        return self._devices

    def info(self, cluster: str) -> ClusterInfo | None:
        return self._clusters.get(cluster)

    def replicas(self, namespace: str, deployment: str) -> tuple[Replica, ...]:
        named = self._named.get((namespace, deployment), {})
        return tuple(named[key] for key in sorted(named))

    def owners(self, cluster: str) -> frozenset[Key]:
        """The deployments that have replicas there."""
        there = (one.owner for one in self._observed.values() if one.cluster == cluster)
        return frozenset(Key(owner.namespace, owner.name) for owner in there)

    def survey(self, requirement: Requirement, *, limit: int, apart: frozenset[str]) -> Survey:
        view = self._view(requirement)
        kept_apart = Counter(view.places[name].group for name in apart if name in view.places)
        fitting = view.among(Fit.group, apart)
        return Survey(
            candidates=tuple(self._clusters[name] for name in islice(fitting, limit)),
            fitting=len(view.groups.get(Fit.group, ())) - kept_apart[Fit.group],
            refusals=tuple(
                self._refusal(requirement, next(view.among(group, apart)), count)
                for group in sorted(view.groups)
                if group != Fit.group and (count := len(view.groups[group]) - kept_apart[group])
            ),
        )

    def _refusal(self, requirement: Requirement, nearest: str, count: int) -> Refusal:
        found = answer(requirement, self._clusters[nearest])
        return Refusal(count, nearest, Spare() if isinstance(found, Fit) else found)

    # How it is kept ------------------------------------------------------------------------------------------------

    def _view(self, requirement: Requirement) -> _View:
        view = self._views.get(requirement)
        if view is None:
            view = self._views[requirement] = _View(requirement)
            view.put(tuple(self._clusters.values()))
            while len(self._views) > min(max(LEAST_VIEWS, MOST_ANSWERS // max(self.size, 1)), MOST_VIEWS):
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(requirement)
            since = takewhile(lambda change: change[1] > view.revision, reversed(self._changes.items()))
            view.put([self._clusters[name] for name, _ in since])
        view.revision = self._revision
        return view

    def _put(self, info: ClusterInfo) -> None:
        name = info.cluster.name
        self._clusters[name] = info
        self._revision += 1
        self._changes[name] = self._revision
        self._changes.move_to_end(name)

    def _recharge(self, key: Key, after: Replica | None) -> None:
        before = self._observed.pop(key, None)
        if after is not None:
            self._observed[key] = after
        if before == after:
            return
        for replica, keep in ((before, False), (after, True)):
            if replica is not None:
                self._name(replica, keep=keep)
        taken = (before.cluster, before.charges) if before else None
        takes = (after.cluster, after.charges) if after else None
        if taken != takes:
            for change, sign in ((taken, -1), (takes, 1)):
                if change is not None:
                    self._charge(*change, sign)

    def _name(self, replica: Replica, *, keep: bool) -> None:
        name = (replica.owner.namespace, replica.owner.name)
        if keep:
            self._named[name][replica.key] = replica
            return
        del self._named[name][replica.key]
        if not self._named[name]:
            del self._named[name]

    def _charge(self, cluster: str, nodes: Mapping[str, int], sign: int) -> None:
        used = self._used[cluster]
        for pool, count in nodes.items():
            used[pool] += sign * count
            if not used[pool]:
                del used[pool]
        if not used:
            del self._used[cluster]
        if (info := self._clusters.get(cluster)) is not None:
            self._put(ClusterInfo.of(info.cluster, used))

    def _pools(self, name: str, published: tuple[GpuPool, ...]) -> Pools:
        """The pools as read before, while the same are published: most events of a cluster leave them alone."""
        known = self._published.get(name)
        if known is not None and known[0] == published:
            return known[1]
        self._devices = None
        read = clusters.read_pools(published)
        self._contents += _contents(read) - (_contents(known[1]) if known else 0)
        if len(self._interned) > 2 * self._contents + 64:
            self._interned.clear()  # the contents that are gone go with it; those in use come back as they are read
        profile = self._intern(Profile(tuple(map(self._intern, read.profile.offers))))
        pools = replace(read, profile=profile)
        self._published[name] = (published, pools)
        return pools

    def _intern(self, content: Shared) -> Shared:
        """The one value for this content: equal contents are then found equal at a glance, and held once."""
        return cast("Shared", self._interned.setdefault(content, content))


def _contents(pools: Pools) -> int:
    return len(pools.profile.offers) + 1
