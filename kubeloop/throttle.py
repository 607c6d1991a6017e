"""The rate limit for events of workload clusters, so that none of them can keep the workers busy for itself.

Changes by users of the hub are not limited, nor is normal activity of clusters: bursts of thousands of events pass. A
cluster that sends events continuously is limited to a number of keys per second, and to one event per second for each
key, which also limits the status writes that it can cause.
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

PRUNED_AT = 2_000  # keys above which full buckets are removed


@dataclass(frozen=True, slots=True)
class Rates:
    """The burst and the events per second."""

    of_key: tuple[float, float] = (30.0, 1.0)
    of_cluster: tuple[float, float] = (5000.0, 50.0)  # the burst covers the start of 300 deployments


@dataclass(slots=True)
class Throttle(Generic[K]):
    """Passes events of workload clusters on to workers. The limit of one cluster delays no events of others."""

    workers: Workers[K]
    rates: Rates = field(default_factory=Rates)
    _of_key: dict[tuple[K, str], Bucket] = field(default_factory=dict[tuple[K, str], Bucket], init=False)
    _of_cluster: dict[str, Bucket] = field(default_factory=dict[str, Bucket], init=False)
    _delayed: dict[tuple[K, str], bool] = field(default_factory=dict[tuple[K, str], bool], init=False)
    """The delayed events, and whether each resets the failure count of its key."""
    _prune_at: int = field(default=PRUNED_AT, init=False)

    def wake(self, key: K, cluster: str, *, forgiven: bool = False) -> None:
        """Enqueue a key after an event of a workload cluster, now or later.

        A key that will run soon anyway costs nothing.
        """
        wake = (key, cluster)
        if wake in self._delayed:
            self._delayed[wake] |= forgiven
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self.workers.queue.is_due(key, now):
            self.workers.add(key, forgiven=forgiven)
            return
        at = max(
            _get_bucket(self._of_key, wake, self.rates.of_key).take(now),
            _get_bucket(self._of_cluster, cluster, self.rates.of_cluster).take(now),
        )
        if at <= now:
            self.workers.add(key, forgiven=forgiven)
        else:
            self._delayed[wake] = forgiven
            loop.call_at(at, self._enqueue_delayed, wake)
        if len(self._of_key) > self._prune_at:
            self._of_key = {
                key_and_cluster: bucket for key_and_cluster, bucket in self._of_key.items() if not bucket.is_full(now)
            }
            self._prune_at = max(PRUNED_AT, 2 * len(self._of_key))

    def _enqueue_delayed(self, wake: tuple[K, str]) -> None:
        """Enqueue the key of a delayed event."""
        self.workers.add(wake[0], forgiven=self._delayed.pop(wake))


def _get_bucket(buckets: dict[N, Bucket], name: N, rate: tuple[float, float]) -> Bucket:
    """Return the bucket of a name, and create it if there is none."""
    burst, rate_per_second = rate
    return buckets.setdefault(name, Bucket(rate_per_second, burst))
