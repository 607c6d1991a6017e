"""Which of several pods works on which cluster: what one of them knows of it, and what follows from that.

Each pod has a Lease of its own, its member Lease, and renews it. Each cluster has a Lease that names the pod which
works on it; that one is written only when it changes hands. What a look at them showed, is told here with the time at
which it began, by this pod's own clock; `docs/sharing.md` says in words why no two pods hold one cluster.

    a pod holds a cluster     while its member Lease is its own and looks show no other holder: for as long as that was
                              last renewed, without a gap; after one it has to take the cluster anew
    a cluster can be taken    at once when its holder has given it back; else when its Lease, and the member Lease of
                              its holder, have been seen unchanged for as long as leases last
    a pod should have some    once it has been there for a while, as its member Lease says: what one leaves that ends
                              again and again has then been taken by others before its next life counts
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from modelplane_operator.api import labels
from modelplane_operator.clients.lease import MOST_TRANSITIONS, Sighting, Times, sighting
from modelplane_operator.kube.objects import Key, Manifest, annotations_of, section
from modelplane_operator.kube.resources import LEASE

BELIEVED = 4  # times as long as ours may others' Leases say that they last: a person may write any number there

GIVEN_BACK = {"holderIdentity": "", "leaseDurationSeconds": 1}
"""What a holder writes that works on a cluster no more. A person who takes a holder out leaves the duration."""


def preferred(cluster: str, members: Iterable[str]) -> str | None:
    """Who of them should have a cluster: the rest stay where they are when one comes or goes (rendezvous hashing)."""
    return max(members, key=lambda member: (_weight(member, cluster), member), default=None)


def _weight(member: str, cluster: str) -> bytes:
    return hashlib.blake2b(f"{member} {cluster}".encode(), digest_size=8).digest()


def member_lease(lease: str, identity: str) -> str:
    """The name of a pod's member Lease."""
    return f"{lease}-member-{_short(identity)}"


def cluster_lease(lease: str, cluster: str) -> str:
    """The name of a cluster's Lease."""
    return f"{lease}-cluster-{_short(cluster)}"


def _short(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def holder_of(lease: Manifest) -> str:
    return section(lease, "spec").get("holderIdentity") or ""


def is_given_back(lease: Manifest) -> bool:
    return not holder_of(lease) and section(lease, "spec").get("leaseDurationSeconds") == 1


@dataclass(slots=True)
class Shares:
    """What one pod knows. `lease`: what its leader holds; `me`: another for every process that ever was."""

    lease: Key
    me: str
    times: Times
    leases: dict[str, Manifest] = field(default_factory=dict[str, Manifest], init=False)
    """The Leases of clusters as they were last seen, by cluster."""
    members: Mapping[str, Manifest] = field(default_factory=dict[str, Manifest], init=False)
    """The member Leases, by who has them."""
    sharing: frozenset[str] = field(default=frozenset(), init=False)
    """Those that should have clusters: of the pods that are there, those that did not come long after others."""
    asked: float = field(default=-math.inf, init=False)
    """When the last look began of which what it has shown was no older."""
    _pods: Mapping[str, Sighting] = field(default_factory=dict[str, Sighting], init=False)
    _states: Mapping[str, Sighting] = field(default_factory=dict[str, Sighting], init=False)
    _until: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """Until when we hold a cluster, unless that is confirmed before."""
    _wrote: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """The acquireTime with which we have taken a cluster last, or tried to."""
    _doubted: float = field(default=-math.inf, init=False)
    """When what is free or ours was last not to be believed."""

    # What is seen -----------------------------------------------------------------------------------------------------

    def see(
        self, found: Iterable[Manifest], clusters: Iterable[str], *, asked: float, now: float, until: float
    ) -> None:
        """Take in all Leases of a look. `clusters`: those that should have one; `until`: how long our own lasts."""
        members, leases = dict[str, Manifest](), dict[str, Manifest]()
        for one in found:
            name, cluster, holder = one["metadata"]["name"], annotations_of(one).get(labels.CLUSTER), holder_of(one)
            if cluster is not None and name == cluster_lease(self.lease.name, cluster):
                leases[cluster] = one
            elif holder and name == member_lease(self.lease.name, holder):
                members[holder] = one
        holders = {*members, *map(holder_of, leases.values())} - {""}
        if asked - self.asked > self.times.deadline:  # the hub was away, from others too: who lives is to be seen anew
            self._pods, self._states = {}, {}
        if now - self.asked >= self.times.duration:  # or never before
            self.invalidate(now)  # others may have taken what is free or ours, and a backup would not say so
        self._pods = {who: _again(self._pods.get(who), members.get(who), now) for who in holders}
        self._states = {
            one: _again(self._states.get(one), leases.get(one), now) for one in dict.fromkeys((*leases, *clusters))
        }
        self.members, self.leases, self.asked = members, leases, asked
        ages = {who: _age(members.get(who)) for who in self.live}
        enough = min(self.times.settled, max(ages.values()) - self.times.duration)
        self.sharing = frozenset(who for who, age in ages.items() if age >= enough or who in self.sharing)
        self._until = {
            cluster: min(asked + self.times.deadline, until)
            for cluster, before in self._until.items()
            if now < before and cluster in leases and holder_of(leases[cluster]) == self.me
        }

    def took(self, cluster: str, stored: Manifest, *, asked: float, until: float) -> None:
        """Our write has been stored by which we take a cluster."""
        self.leases[cluster] = stored
        self._until[cluster] = min(asked + self.times.deadline, until)

    def gave(self, cluster: str, stored: Manifest | None) -> None:
        """A cluster's Lease is as we left it: given back, new, or gone."""
        self.leases.pop(cluster, None)
        if stored:
            self.leases[cluster] = stored

    def invalidate(self, now: float) -> None:
        """The Leases may be those of a backup: others may hold clusters that these call free or ours."""
        self._doubted = now

    def cease(self, cluster: str) -> None:
        """Hold a cluster no longer."""
        self._until.pop(cluster, None)

    # What follows -----------------------------------------------------------------------------------------------------

    @property
    def held(self) -> Collection[str]:
        """The clusters that we hold, or held until a moment ago."""
        return self._until.keys()

    def holds(self, cluster: str, now: float) -> bool:
        """Whether nobody else can; our member Lease has to be ours, too."""
        return now < self._until.get(cluster, now)

    @property
    def live(self) -> frozenset[str]:
        """The pods that are there, and we ourselves."""
        return frozenset({self.me, *(who for who in self.members if not self._is_over(self._pods[who]))})

    def is_over(self, member: str) -> bool:
        """Whether a pod is no more, as far as its member Lease tells."""
        return self._is_over(self._pods[member])

    def is_ours(self, cluster: str) -> bool:
        """Whether a cluster's Lease names us by our own doing, whether we hold it or no longer."""
        spec, wrote = section(self.leases.get(cluster, {}), "spec"), self._wrote.get(cluster)
        return wrote is not None and spec.get("holderIdentity") == self.me and spec.get("acquireTime") == wrote

    def is_free(self, cluster: str) -> bool:
        """Whether a cluster can be taken."""
        lease = self.leases.get(cluster)
        if lease is None or self.asked < self._doubted + self.times.duration:
            return False
        if is_given_back(lease) or self.is_ours(cluster):
            return True
        holder = holder_of(lease)
        return self._is_over(self._states[cluster]) and (holder in {"", self.me} or self.is_over(holder))

    def was_missing(self, cluster: str) -> bool:
        """Whether there has been no Lease for so long that whoever held it no longer does."""
        state = self._states.get(cluster)
        return cluster not in self.leases and state is not None and self._is_over(state)

    def free(self) -> Iterator[tuple[str, Manifest]]:
        """The clusters that can be taken, whomever their Leases name."""
        for cluster, lease in self.leases.items():
            if cluster not in self._until and self.is_free(cluster):
                yield cluster, lease

    # What is written --------------------------------------------------------------------------------------------------

    def taken(self, cluster: str, wall: str) -> Manifest:
        """A cluster's Lease as we take it; `wall` is the time, for people, and in no other write the same."""
        lease, self._wrote[cluster] = self.leases[cluster], wall
        spec = {
            "holderIdentity": self.me,
            "leaseDurationSeconds": int(-(-self.times.duration // 1)),
            "acquireTime": wall,
            "leaseTransitions": min(int(section(lease, "spec").get("leaseTransitions") or 0) + 1, MOST_TRANSITIONS),
        }
        return {**lease, "spec": spec}

    def given_back(self, cluster: str) -> Manifest:
        lease = self.leases[cluster]
        return {**lease, "spec": {**section(lease, "spec"), **GIVEN_BACK}}

    def new(self, cluster: str) -> Manifest:
        """A cluster's Lease that nobody has held yet."""
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {
                "namespace": self.lease.namespace,
                "name": cluster_lease(self.lease.name, cluster),
                "labels": {labels.SHARING: self.lease.name},
                "annotations": {labels.CLUSTER: cluster},
            },
            "spec": dict(GIVEN_BACK),
        }

    def _is_over(self, seen: Sighting) -> bool:
        """Whether a look that began late enough still shows what was first seen then."""
        ours = self.times.duration
        return self.asked >= seen.since + min(max(seen.duration, ours), BELIEVED * ours)


def _age(member: Manifest | None) -> float:
    """For how many seconds a pod has been there, by its own clock; one whose clock was set, or whose Lease somebody
    has written, counts."""
    spec = section(member or {}, "spec")
    try:
        renewed, acquired = (datetime.fromisoformat(spec[name]) for name in ("renewTime", "acquireTime"))
        age = (renewed - acquired).total_seconds()
    except (KeyError, TypeError, ValueError):
        return 0.0 if member is None else math.inf
    return age if age >= 0 else math.inf


def _again(before: Sighting | None, lease: Manifest | None, now: float) -> Sighting:
    if lease is None:
        return before if before and not before.version else Sighting("", "", 0.0, now)
    return before.after(lease, now) if before else sighting(lease, now)
