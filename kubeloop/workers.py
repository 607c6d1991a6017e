"""What runs the keys of a queue: so many at once, each in a task of its own that nobody else has to look after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kubeloop.queue import Failed, Outcome, Queue

K = TypeVar("K", bound=Hashable)


def _nobody() -> None:
    """Nobody is told."""


@dataclass(slots=True)
class Serial:
    """A lock for what runs take turns at; `on_free` is told when somebody has had it."""

    waiting: int = field(default=0, init=False)
    on_free: Callable[[], None] = field(default=_nobody, init=False)
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
    """Runs `reconcile` for the keys of a queue, `count` at once. It must not raise: it answers `Failed`.

    Where runs take turns, one waits; the others are still in the queue, where what comes before them overtakes them.
    """

    queue: Queue[K]
    reconcile: Callable[[K], Awaitable[Outcome]]
    count: int
    serial: Serial | None = None
    _began: dict[K, float] = field(default_factory=dict[K, float], init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    at_work: bool = field(default=False, init=False)
    """Whether there is somebody to run them."""
    _stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.serial:
            self.serial.on_free = self._news.set

    def add(self, key: K, *, edited: bool = False, forgiven: bool = False) -> None:
        """There is news of this key; what there was before the work began, only has to be looked at again.

        `forgiven`: what it has failed by is over.
        """
        if forgiven:
            self.queue.forgive(key)
        self.queue.add(key, _now(), news=self.at_work, edited=edited)
        self._news.set()

    def look_at(self, keys: Iterable[K]) -> None:
        """All that there is, is to be looked at, and news count from now on."""
        for key in keys:
            self.add(key)
        self.at_work = True

    def stop(self) -> None:
        """Begin no more runs; `run` ends after those that are under way."""
        self._stopping = True
        self._news.set()

    def longest(self, now: float) -> float:
        """For how many seconds the run that has taken longest so far goes on."""
        return now - min(self._began.values(), default=now)

    async def run(self) -> None:
        """Go on until stopped; cancelled, it cancels what is under way."""
        self.at_work = True
        try:
            async with asyncio.TaskGroup() as group:
                while not self._stopping:
                    self._news.clear()
                    if self._has_room() and (key := self.queue.take(_now())) is not None:
                        self._began[key] = _now()
                        group.create_task(self._run(key), name=f"reconcile {key}")
                        await asyncio.sleep(0)  # kinds take turns: one whose keys run one at a time is not left behind
                        continue
                    with suppress(TimeoutError):
                        due = self.queue.next_due() if self._has_room() else None
                        async with asyncio.timeout_at(due):
                            await self._news.wait()
        finally:
            self.at_work = False
            for key in tuple(self._began):  # cancelled before they began: whoever runs them next tries again
                self._finish(key, Failed())

    def _has_room(self) -> bool:
        return self.queue.running < self.count and not (self.serial and self.serial.waiting)

    async def _run(self, key: K) -> None:
        outcome: Outcome = Failed()
        try:
            outcome = await self.reconcile(key)
        finally:  # however it ends: a key that is not done never runs again
            self._finish(key, outcome)
            self._news.set()

    def _finish(self, key: K, outcome: Outcome) -> None:
        del self._began[key]
        self.queue.done(key, outcome, _now())


def _now() -> float:
    return asyncio.get_running_loop().time()
