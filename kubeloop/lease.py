"""Leader election by a Lease, so that only one process writes.

The holder renews it every `retry` seconds, and stops writing after `deadline` seconds without a successful renewal.
Others take it after it has not changed for `duration` seconds on their own monotonic clocks, so no wall clocks are
compared. The deadline is shorter than the duration, so the holder has stopped before another process begins.

A lease saves work and conflicts, but does not guarantee correctness: a process may be suspended between the check and
the write. Preconditions of writes do.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError, NotLeading
from kubeloop.objects import Key, Manifest
from kubeloop.types import LEASE

MOST_TRANSITIONS = 2**31 - 1  # the maximum that API servers accept; a person may have written it
RELEASE_SECONDS = 2.0  # maximum time for the release at shutdown; without it the others wait for `duration`

log = structlog.get_logger()


def wall_clock() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """Return a time in the format of Leases."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class Times:
    """The times of the election, in seconds. A killed holder is replaced after `duration` plus at most two `retry`."""

    duration: float = 15.0
    """The time without renewals after which others take the lease."""
    deadline: float = 10.0
    """The time without a successful renewal after which the holder stops writing."""
    retry: float = 2.0
    """The interval of renewals."""

    @property
    def warm_up(self) -> float:
        """The seconds after which a newly joined pod counts; longer than its lease from an earlier life can last."""
        return self.duration + 3 * self.retry

    def __post_init__(self) -> None:
        if not self.retry < self.deadline < self.duration:
            raise ValueError("a lease is retried more often than its deadline, and that ends before the lease does")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A state of the lease, and the time on our own clock at which we first observed it."""

    version: str
    holder: str
    duration: float
    since: float

    def after(self, lease: Manifest, now: float) -> Sighting:
        """Return the state after observing the lease now: the same if it has not changed."""
        return self if lease["metadata"]["resourceVersion"] == self.version else observe_lease(lease, now)

    def is_free(self, now: float, identity: str) -> bool:
        """True if the lease may be taken: it has no holder, the holder is ourselves, or it has expired."""
        return self.holder in {"", identity} or now >= self.since + self.duration


def observe_lease(lease: Manifest, now: float) -> Sighting:
    """Return the state of a lease that is first observed now."""
    spec: Manifest = lease.get("spec") or {}
    duration = float(spec.get("leaseDurationSeconds") or 0)
    return Sighting(lease["metadata"]["resourceVersion"], spec.get("holderIdentity") or "", duration, now)


@dataclass(slots=True)
class Lease:
    """One process's part in the election. `identity` must be unique among all processes that ever run."""

    kube: Callable[[], Kube]
    key: Key
    identity: str
    now: Callable[[], float]
    jitter: Callable[[], float]
    times: Times = field(default_factory=Times)
    _until: float = field(default=-math.inf, init=False)
    """The time until which we hold the lease."""
    _sighting: Sighting | None = field(default=None, init=False)
    _stored: Manifest | None = field(default=None, init=False)
    _taken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the lease is taken."""
    _failing: bool = field(default=False, init=False)
    """True if the last attempt failed."""

    @property
    def is_held(self) -> bool:
        """True if no other process can be writing now."""
        return self.now() < self._until

    @property
    def until(self) -> float:
        """The time at which the lease is lost unless it is renewed."""
        return self._until

    @property
    def stored(self) -> Manifest | None:
        """The Lease as we last wrote it, unless it may have been written since."""
        return self._stored

    def check(self) -> None:
        """Raise NotLeading if we do not hold the lease."""
        if not self.is_held:
            raise NotLeading("another operator may hold the lease")

    async def run(self) -> None:
        """Take the lease when it is free and renew it until cancelled; then release it."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self.times.deadline / 2):
                        await self.renew()
                    self._failing = False
                except (ClientError, TimeoutError) as error:
                    self.invalidate()
                    log_at_level = log.debug if self._failing else log.info
                    log_at_level("lease not renewed", held=self.is_held, error=str(error) or type(error).__name__)
                    self._failing = True
                await asyncio.sleep(self.times.retry * (1 + self.jitter() / 5))
        finally:
            await self._release()

    async def renew(self) -> None:
        """Take the lease if it is free, or renew it; raises ClientError."""
        await self._attempt()

    def invalidate(self) -> None:
        """Read the Lease again before the next write, because the last one may or may not have succeeded."""
        self._stored = None

    def lose(self) -> None:
        """Stop holding the lease, without writing."""
        self._until = -math.inf

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` while we hold the lease, and cancel it when the lease is lost.

        Returns when the work ends by itself.
        """
        while True:
            await self._taken.wait()
            if not self.is_held:
                self._taken.clear()
                continue
            log.info("leading", identity=self.identity)
            async with asyncio.TaskGroup() as group:
                working, losing = group.create_task(work()), group.create_task(self._wait_until_lost())
                await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
                finished = working.done()
                for task in (working, losing):
                    task.cancel()
            if finished:
                return
            log.warning("lease lost", identity=self.identity)

    async def _wait_until_lost(self) -> None:
        """Wait until the lease is lost."""
        while (remaining := self._until - self.now()) > 0:  # noqa: ASYNC110 - time alone loses a lease
            await asyncio.sleep(remaining)

    async def _attempt(self) -> None:
        """Take or renew the lease, unless another process holds it."""
        kube, started_at = self.kube(), self.now()
        lease = self._stored or await kube.find(LEASE, self.key)
        if lease is None:
            self._stored = await kube.create(self._build_lease(None))
        else:
            self._sighting = (
                self._sighting.after(lease, started_at) if self._sighting else observe_lease(lease, started_at)
            )
            if not self._sighting.is_free(self.now(), self.identity):
                return
            self._stored = await kube.replace(self._build_lease(lease))
        # Counted from before the request: others observe its effect later, so they wait longer than we hold the lease.
        self._sighting, self._until = observe_lease(self._stored, started_at), started_at + self.times.deadline
        self._taken.set()

    async def _release(self) -> None:
        """Release the lease if we hold it, so that another process can take it at once."""
        was_held, lease, self._until, self._stored = self.is_held, self._stored, -math.inf, None
        if was_held and lease is not None:
            released_spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self.kube().replace({**lease, "spec": released_spec})
            except (ClientError, TimeoutError) as error:
                log.info("lease not given back", error=str(error))

    def _build_lease(self, lease: Manifest | None) -> Manifest:
        """Return the Lease to write, with ourselves as the holder."""
        old_spec: Manifest = (lease or {}).get("spec") or {}
        now = stamp(wall_clock())
        is_renewal = old_spec.get("holderIdentity") == self.identity
        metadata: Manifest = lease["metadata"] if lease else {"namespace": self.key.namespace, "name": self.key.name}
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": math.ceil(self.times.duration),
                "acquireTime": old_spec.get("acquireTime", now) if is_renewal else now,
                "renewTime": now,
                "leaseTransitions": min(
                    int(old_spec.get("leaseTransitions") or 0) + (not is_renewal and lease is not None),
                    MOST_TRANSITIONS,
                ),
            },
        }
