"""Limit how many replicas are out of service at a time through changes that the operator makes by itself.

There is one budget: the fleet has a limit, and so has each cluster and each of its pools. A replica that is changed
counts towards its pools, its cluster and the fleet until it answers again. The oldest replicas come first. Which ones
may begin depends only on what is stored, so two operators that run at the same time choose the same ones.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeloop.objects import Key

FLEET_LIMIT, CLUSTER_LIMIT = "5%", "10%"
"""Limits of fleets and clusters that have no other."""


class DisruptionScope(NamedTuple):
    """A pool, a cluster, or the fleet, in which disruptions count together."""

    cluster: str = ""
    """Cluster; empty for the fleet."""
    pool: str = ""
    """Pool of the cluster; empty for all of it."""

    def __str__(self) -> str:
        if self.pool:
            return f"on pool {self.pool} of {self.cluster}"
        return f"on {self.cluster}" if self.cluster else "in the fleet"


FLEET = DisruptionScope()


@dataclass(frozen=True, slots=True, order=True)
class Disruption:
    """The change of a replica that makes it unable to answer for a while. Older replicas come first."""

    created: str
    """Creation time of the replica."""
    key: Key
    """Key of the replica."""
    cluster: str
    """Cluster of the replica."""
    pools: tuple[str, ...]
    """Pools of the cluster that the replica uses."""

    @property
    def scopes(self) -> tuple[DisruptionScope, ...]:
        """Return where it counts."""
        return (FLEET, DisruptionScope(self.cluster), *(DisruptionScope(self.cluster, pool) for pool in self.pools))


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """The limits, and what counts towards them."""

    fleet: str = FLEET_LIMIT
    """Limit of the fleet: a number, or a percentage of its replicas."""
    clusters: Mapping[str, str] = field(default_factory=dict[str, str])
    """Limits of clusters, and of each of their pools."""
    replicas: Mapping[DisruptionScope, int] = field(default_factory=dict[DisruptionScope, int])
    """Number of replicas in each scope."""
    active: tuple[Disruption, ...] = ()
    """Disruptions that have begun and have not ended."""
    waiting: tuple[Disruption, ...] = ()
    """Disruptions that could begin, the oldest first."""

    def limit(self, scope: DisruptionScope) -> int:
        """Return how many replicas may be disrupted in a scope at a time."""
        amount = self.clusters.get(scope.cluster, CLUSTER_LIMIT) if scope.cluster else self.fleet
        return _count(amount, self.replicas.get(scope, 0))

    def find_full(self, candidates: Iterable[Disruption]) -> Mapping[Key, DisruptionScope | None]:
        """Return None for each of the candidates that may begin now, and a full scope for each of the others.

        Waiting disruptions that are older come first. `candidates` replace those with the same keys.
        """
        own = sorted(candidates)
        keys = {candidate.key for candidate in own}
        active = {disruption.key for disruption in self.active}
        others = (item for item in self.waiting if item.key not in keys and item.key not in active)
        return dict(self._allot(heapq.merge(own, others), keys))

    def _allot(
        self, in_order: Iterable[Disruption], keys: Collection[Key]
    ) -> Iterable[tuple[Key, DisruptionScope | None]]:
        """Yield the keys with a full scope, or None, in the order in which disruptions may begin."""
        room = dict[DisruptionScope, int]()
        for disruption in self.active:
            for scope in disruption.scopes:
                room[scope] = room.get(scope, self.limit(scope)) - 1
        remaining = set(keys)
        for disruption in in_order:
            if not remaining or room.get(FLEET, 1) <= 0:
                break
            scopes = disruption.scopes
            for scope in scopes:
                if scope not in room:
                    room[scope] = self.limit(scope)
            full = next((scope for scope in scopes if room[scope] <= 0), None)
            if full is None:
                for scope in scopes:
                    room[scope] -= 1
            if disruption.key in remaining:
                remaining.remove(disruption.key)
                yield disruption.key, full
        yield from ((key, FLEET) for key in sorted(remaining))


_PERCENT = re.compile(r"(\d{1,3})%", re.ASCII)
_NUMBER = re.compile(r"\d{1,4}", re.ASCII)


def _count(amount: str, replicas: int) -> int:
    """Return an amount as a number. A percentage is rounded down, and at least one; anything else is one."""
    if _NUMBER.fullmatch(amount):
        return int(amount)
    percentage = _PERCENT.fullmatch(amount)
    return max(replicas * int(percentage[1]) // 100, 1) if percentage else 1
