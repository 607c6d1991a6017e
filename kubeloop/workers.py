"""The workers of one kind: they run the keys of its queue, a limited number at once, each in its own task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kubeloop.queue import Failed, Outcome, Queue

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Serial:
    """A lock for reconciles that run one at a time. `on_free` is called whenever it is released."""

    waiting: int = field(default=0, init=False)
    """The number of tasks that wait for the lock."""
    on_free: Callable[[], None] = field(default=lambda: None, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def __aenter__(self) -> None:
        self.waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self.on_free()


@dataclass(slots=True)
class Workers(Generic[K]):
    """Runs `reconcile` for the keys of a queue, `count` at once. It must not raise, but return `Failed`.

    With a `serial` lock, at most one run waits for it. The other keys stay in the queue, where priorities still apply.
    """

    queue: Queue[K]
    reconcile: Callable[[K], Awaitable[Outcome]]
    count: int
    serial: Serial | None = None
    _began: dict[K, float] = field(default_factory=dict[K, float], init=False)
    """The start times of the running keys."""
    _wake_up: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when there may be a key to run."""
    at_work: bool = field(default=False, init=False)
    """True once the keys are run, so that later additions count as events."""
    _stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.serial:
            self.serial.on_free = self._wake_up.set

    def add(self, key: K, *, edited: bool = False, forgiven: bool = False) -> None:
        """Enqueue a key. Before the work begins, it only counts as a routine check.

        `forgiven` resets the key's failure count, because the cause of its failures is gone.
        """
        if forgiven:
            self.queue.forgive(key)
        self.queue.add(key, _now(), is_event=self.at_work, edited=edited)
        self._wake_up.set()

    def enqueue_all(self, keys: Iterable[K]) -> None:
        """Enqueue all keys for a routine check. Keys that are added later count as events."""
        for key in keys:
            self.add(key)
        self.at_work = True

    def stop(self) -> None:
        """Start no more runs. `run` returns when the current ones have ended."""
        self._stopping = True
        self._wake_up.set()

    def longest(self, now: float) -> float:
        """Return the seconds for which the longest current run has lasted."""
        return now - min(self._began.values(), default=now)

    async def run(self) -> None:
        """Run keys until stopped. A cancellation cancels the current runs."""
        self.at_work = True
        try:
            async with asyncio.TaskGroup() as group:
                while not self._stopping:
                    self._wake_up.clear()
                    if self._has_room() and (key := self.queue.take(_now())) is not None:
                        self._began[key] = _now()
                        group.create_task(self._run(key), name=f"reconcile {key}")
                        await asyncio.sleep(0)  # yield to the workers of other kinds, so that serial kinds get a turn
                        continue
                    with suppress(TimeoutError):
                        due = self.queue.next_due() if self._has_room() else None
                        async with asyncio.timeout_at(due):
                            await self._wake_up.wait()
        finally:
            self.at_work = False
            for key in tuple(self._began):  # tasks cancelled before their first step: the keys stay queued for a retry
                self._finish(key, Failed())

    def _has_room(self) -> bool:
        """True if another run may start."""
        return self.queue.running < self.count and not (self.serial and self.serial.waiting)

    async def _run(self, key: K) -> None:
        """Reconcile one key, and mark it as done in every case: a key that is not done would never run again."""
        outcome: Outcome = Failed()
        try:
            outcome = await self.reconcile(key)
        finally:  # however it ends: a key that is not done never runs again
            self._finish(key, outcome)
            self._wake_up.set()

    def _finish(self, key: K, outcome: Outcome) -> None:
        """Record that a run has ended."""
        del self._began[key]
        self.queue.finish(key, outcome, _now())


def _now() -> float:
    return asyncio.get_running_loop().time()
