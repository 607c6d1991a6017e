"""Reads from clusters of data that no watch covers, with a deadline and a short-lived cache.

A reconcile that has written something observes a second time, and events come in bursts, so a recent result is reused.
The key of a read therefore includes everything known that its result depends on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError, Unreachable
from kubeloop.reading import Cluster

A_MOMENT: Final = timedelta(seconds=3)  # shorter than any polling interval
LEAST: Final = 64  # results that are cached before expired ones are removed
DEADLINE: Final = 30.0  # seconds for one read, all pages of a list included

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Result:
    """A cached result and the time at which it expires."""

    until: datetime
    value: Any


@dataclass(slots=True)
class _PendingRead:
    """A read in progress, and the error of the last attempt."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    error: ClientError | None = None


@dataclass(slots=True)
class Reads:
    """The recent results of reads from all clusters."""

    deadline: float = DEADLINE
    _cached: dict[Hashable, _Result] = field(default_factory=dict[Hashable, _Result], init=False)
    _most: int = field(default=LEAST, init=False)
    """The number of cached results above which expired ones are removed."""
    _asking: dict[Hashable, _PendingRead] = field(default_factory=dict[Hashable, _PendingRead], init=False)

    async def of(
        self,
        cluster: Cluster,
        question: tuple[Hashable, ...],
        ask: Callable[[Kube], Awaitable[T]],
        now: datetime,
        *,
        lasts: timedelta = A_MOMENT,
        nothing_lasts: timedelta | None = None,
    ) -> T:
        """Return the cached result of a read, or call `ask` and cache its result for `lasts`.

        Concurrent callers share one read; its ClientError is raised to all of them. `question` identifies the read, and
        includes everything that the result depends on. `nothing_lasts` is the lifetime of an empty result, if it
        differs.
        """
        cache_key = (cluster.name, cluster.server, *question)
        pending = self._asking.setdefault(cache_key, _PendingRead())
        is_waiting = pending.lock.locked()
        try:
            async with pending.lock:  # concurrent callers share one read
                if is_waiting and pending.error:  # else each waiting caller would add a deadline of its own
                    raise pending.error.without_details()
                cached = self._cached.get(cache_key)
                if cached is None or now >= cached.until:
                    value = await self._read(pending, cluster, ask)
                    lifetime = lasts if value or nothing_lasts is None else nothing_lasts
                    if len(self._cached) > self._most:  # not each time, as there may be thousands of results
                        self._cached = {
                            cached_key: result for cached_key, result in self._cached.items() if now < result.until
                        }
                        self._most = 2 * len(self._cached) + LEAST
                    cached = self._cached[cache_key] = _Result(now + lifetime, value)
                return cached.value
        finally:
            if not pending.lock.locked():
                self._asking.pop(cache_key, None)

    async def _read(self, pending: _PendingRead, cluster: Cluster, ask: Callable[[Kube], Awaitable[T]]) -> T:
        """Read for all callers that wait, and remember a ClientError for them; Unreachable when the deadline passes."""
        pending.error = None
        deadline = asyncio.timeout(self.deadline)
        try:
            async with deadline:
                return await ask(cluster.kube)
        except ClientError as error:
            pending.error = error
            raise
        except TimeoutError as error:
            if deadline.expired():
                message = f"Cluster {cluster.name or 'hub'} did not answer a question within {self.deadline:g} s"
                pending.error = Unreachable(message)
                raise pending.error from error
            raise
