"""The liveness of the operator: reports what is stuck and would need a restart.

An unreachable cluster or hub is no reason, since a restart would not help.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from kubeloop.cache.connection import Connection
from kubeloop.client.kube import SILENCE
from kubeloop.errors import Defect
from kubeloop.wiring import Runner

# Seconds after which each counts as stuck.
STUCK_WATCH = SILENCE + 60.0  # at SILENCE a watch is given up, and started again at most half a minute later
STUCK_LOOP = 10.0
STUCK_QUEUE = 60.0
STUCK_RUN = 300.0  # every request ends within seconds, and a reconcile on a cluster after strands.OF_A_CLUSTER
FAILING_WATCH = 60.0  # of the hub: its objects are then outdated, and this process is not ready to lead
STUCK_FAILING = 600.0  # with an internal error, which a new process may not have; a restart helps against no other

PROBE_INTERVAL = 1.0


@dataclass(slots=True)
class LoopProbe:
    """Measures how late the event loop is. `now` is the process's monotonic clock."""

    now: Callable[[], float]
    _due: float | None = field(default=None, init=False)
    _lags: deque[float] = field(default_factory=lambda: deque[float](maxlen=60), init=False)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._due = self.now() + PROBE_INTERVAL
            await asyncio.sleep(PROBE_INTERVAL)
            self._lags.append(self.lag)

    @property
    def lag(self) -> float:
        """The current delay in seconds."""
        return max(0.0, self.now() - self._due) if self._due is not None else 0.0

    @property
    def worst(self) -> float:
        """The largest delay within the last minute, in seconds."""
        return max(self._lags, default=0.0)


def blind(hub: Connection, now: float) -> Iterator[str]:
    """Yield a message for each watch of the hub that has been failing although the hub answers."""
    for watch in hub.watches if hub.health.answers else ():
        if watch.failing and (failing := watch.seconds_failing(now)) > FAILING_WATCH:
            yield f"the watch of {watch.informer.type} has been failing for {failing:.0f} s: {watch.failing}"


def find_stuck(loop_probe: LoopProbe, hub: Connection, runners: Iterable[Runner], *, leading: bool) -> Iterator[str]:
    """Yield a message for everything that is stuck."""
    now = loop_probe.now()
    if loop_probe.lag > STUCK_LOOP:
        yield f"the event loop is {loop_probe.lag:.0f} s late"
    if hub.health.answers:
        for watch in hub.watches:
            last_event_at = watch.informer.last_event_at
            if watch.failing is None and last_event_at is not None and now - last_event_at > STUCK_WATCH:
                yield f"the watch of {watch.informer.type} has said nothing for {now - last_event_at:.0f} s"
            if isinstance(watch.failing, Defect) and (failing := watch.seconds_failing(now)) > STUCK_FAILING:
                yield f"the watch of {watch.informer.type} has been failing for {failing:.0f} s: {watch.failing}"
    for runner in runners if leading else ():
        kind, workers = runner.controller.type.kind, runner.workers
        if (longest := workers.longest(now)) > STUCK_RUN:
            yield f"a reconcile of {kind} has been running for {longest:.0f} s"
        if not workers.queue.running and (oldest := workers.queue.oldest(now)) > STUCK_QUEUE:
            yield f"an object of {kind} has been due for {oldest:.0f} s and nobody takes it"
