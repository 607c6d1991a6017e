"""Who of several operators writes: a Lease that one of them holds.

The holder renews it every `retry` seconds, and stops writing when that has not worked for `deadline` seconds. The
others take it when it has not changed for `duration` seconds, by their own clocks since they saw it: nobody's wall
clock is compared with anybody else's. As the deadline is shorter, the holder has stopped before another begins.

A lease saves work and conflicts. It cannot carry correctness: a process may be stopped between asking and writing. That
rests on the preconditions of the writes.
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

MOST_TRANSITIONS = 2**31 - 1  # more is refused, and a person may have written that
RELEASE_SECONDS = 2.0  # a stop waits no longer than that for the release; without one the others wait for `duration`

log = structlog.get_logger()


def wall_clock() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """A time as Leases tell it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class Times:
    """In seconds. A killed holder is replaced after `duration` and at most two times `retry`."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0

    @property
    def settled(self) -> float:
        """After so long a pod counts that comes to others: later than what it left in a life before is free."""
        return self.duration + 3 * self.retry

    def __post_init__(self) -> None:
        if not self.retry < self.deadline < self.duration:
            raise ValueError("a lease is retried more often than its deadline, and that ends before the lease does")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A state of the lease, and when, by our own clock, we first saw it."""

    version: str
    holder: str
    duration: float
    since: float

    def after(self, lease: Manifest, now: float) -> Sighting:
        """What we know after seeing the lease now."""
        return self if lease["metadata"]["resourceVersion"] == self.version else sighting(lease, now)

    def is_free(self, now: float, identity: str) -> bool:
        """Whether one may take it: nobody's, one's own, or not renewed for as long as it lasts."""
        return self.holder in {"", identity} or now >= self.since + self.duration


def sighting(lease: Manifest, now: float) -> Sighting:
    """A state of the lease that is first seen now."""
    spec: Manifest = lease.get("spec") or {}
    duration = float(spec.get("leaseDurationSeconds") or 0)
    return Sighting(lease["metadata"]["resourceVersion"], spec.get("holderIdentity") or "", duration, now)


@dataclass(slots=True)
class Lease:
    """One operator's part in the election. `identity` must be another for every process that ever was."""

    kube: Callable[[], Kube]
    key: Key
    identity: str
    now: Callable[[], float]
    chance: Callable[[], float]
    times: Times = field(default_factory=Times)
    _until: float = field(default=-math.inf, init=False)
    _seen: Sighting | None = field(default=None, init=False)
    _mine: Manifest | None = field(default=None, init=False)
    _taken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _failing: bool = field(default=False, init=False)

    @property
    def held(self) -> bool:
        """Whether no other operator can be writing now."""
        return self.now() < self._until

    @property
    def until(self) -> float:
        """When that ends, unless it is renewed before."""
        return self._until

    @property
    def stored(self) -> Manifest | None:
        """What we wrote last, while nobody is known to have written since."""
        return self._mine

    def check(self) -> None:
        """Raise NotLeading when the lease is not ours, or no longer."""
        if not self.held:
            raise NotLeading("another operator may hold the lease")

    async def run(self) -> None:
        """Take the lease when it is free and keep it, until cancelled; then give it back."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self.times.deadline / 2):
                        await self.renew()
                    self._failing = False
                except (ClientError, TimeoutError) as error:
                    self.invalidate()
                    tell = log.debug if self._failing else log.info
                    tell("lease not renewed", held=self.held, error=str(error) or type(error).__name__)
                    self._failing = True
                await asyncio.sleep(self.times.retry * (1 + self.chance() / 5))
        finally:
            await self._release()

    async def renew(self) -> None:
        """Take the lease if it is free, or keep it; raises ClientError."""
        await self._attempt()

    def invalidate(self) -> None:
        """Whether it was written, the next look is to tell."""
        self._mine = None

    def lose(self) -> None:
        """It is not ours any more, as far as we are concerned."""
        self._until = -math.inf

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` whenever the lease is ours; it is cancelled when the lease is lost. Ends when the work does."""
        while True:
            await self._taken.wait()
            if not self.held:
                self._taken.clear()
                continue
            log.info("leading", identity=self.identity)
            async with asyncio.TaskGroup() as group:
                working, losing = group.create_task(work()), group.create_task(self._lost())
                await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
                finished = working.done()
                for task in (working, losing):
                    task.cancel()
            if finished:
                return
            log.warning("lease lost", identity=self.identity)

    async def _lost(self) -> None:
        while (left := self._until - self.now()) > 0:  # noqa: ASYNC110 - time alone loses a lease
            await asyncio.sleep(left)

    async def _attempt(self) -> None:
        kube, began = self.kube(), self.now()
        lease = self._mine or await kube.find(LEASE, self.key)
        if lease is None:
            self._mine = await kube.create(self._wanted(None))
        else:
            self._seen = self._seen.after(lease, began) if self._seen else sighting(lease, began)
            if not self._seen.is_free(self.now(), self.identity):
                return
            self._mine = await kube.replace(self._wanted(lease))
        # From before the request: whoever sees its effect sees it later, and waits longer than we hold it.
        self._seen, self._until = sighting(self._mine, began), began + self.times.deadline
        self._taken.set()

    async def _release(self) -> None:
        held, lease, self._until, self._mine = self.held, self._mine, -math.inf, None
        if held and lease is not None:
            given_back = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self.kube().replace({**lease, "spec": given_back})
            except (ClientError, TimeoutError) as error:
                log.info("lease not given back", error=str(error))

    def _wanted(self, lease: Manifest | None) -> Manifest:
        before: Manifest = (lease or {}).get("spec") or {}
        wall = stamp(wall_clock())
        same = before.get("holderIdentity") == self.identity
        metadata: Manifest = lease["metadata"] if lease else {"namespace": self.key.namespace, "name": self.key.name}
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": math.ceil(self.times.duration),
                "acquireTime": before.get("acquireTime", wall) if same else wall,
                "renewTime": wall,
                "leaseTransitions": min(
                    int(before.get("leaseTransitions") or 0) + (not same and lease is not None), MOST_TRANSITIONS
                ),
            },
        }
