"""How often workload clusters may wake reconciles: whatever one of them does, others and the hub get their turn.

What a user of the hub changes is never held up here, and neither is what a cluster usually does: thousands of wakes
pass at once. A cluster that goes on and on wakes so many keys a second, each of them once a second, whatever happened
in between: so many statuses it may have us write, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kubeloop.client.limits import Bucket
from kubeloop.workers import Workers

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=Hashable)

PRUNED_AT = 2_000


@dataclass(frozen=True, slots=True)
class Rates:
    """How many wakes at once, and how many a second after them."""

    of_key: tuple[float, float] = (30.0, 1.0)
    of_cluster: tuple[float, float] = (5000.0, 50.0)  # at once: all that three hundred deployments do when they start


@dataclass(slots=True)
class Throttle(Generic[K]):
    """Passes wakes on to workers. A cluster may name the objects of others; what holds it up does not hold up them."""

    workers: Workers[K]
    rates: Rates = field(default_factory=Rates)
    _of_key: dict[tuple[K, str], Bucket] = field(default_factory=dict[tuple[K, str], Bucket], init=False)
    _of_cluster: dict[str, Bucket] = field(default_factory=dict[str, Bucket], init=False)
    _held: dict[tuple[K, str], bool] = field(default_factory=dict[tuple[K, str], bool], init=False)
    """The wakes that wait for their time, and whether what their key has failed by is over."""
    _prune_at: int = field(default=PRUNED_AT, init=False)

    def wake(self, key: K, cluster: str, *, forgiven: bool = False) -> None:
        """A workload cluster has news of a key. One that will run soon anyway costs nothing."""
        wake = (key, cluster)
        if wake in self._held:
            self._held[wake] |= forgiven
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self.workers.queue.is_due(key, now):
            self.workers.add(key, forgiven=forgiven)
            return
        due = max(
            _bucket(self._of_key, wake, self.rates.of_key).take(now),
            _bucket(self._of_cluster, cluster, self.rates.of_cluster).take(now),
        )
        if due <= now:
            self.workers.add(key, forgiven=forgiven)
        else:
            self._held[wake] = forgiven
            loop.call_at(due, self._pass_on, wake)
        if len(self._of_key) > self._prune_at:
            self._of_key = {one: bucket for one, bucket in self._of_key.items() if not bucket.is_full(now)}
            self._prune_at = max(PRUNED_AT, 2 * len(self._of_key))

    def _pass_on(self, wake: tuple[K, str]) -> None:
        self.workers.add(wake[0], forgiven=self._held.pop(wake))


def _bucket(known: dict[N, Bucket], name: N, rate: tuple[float, float]) -> Bucket:
    burst, a_second = rate
    return known.setdefault(name, Bucket(a_second, burst))
