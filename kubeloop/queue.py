"""The work queue: which key is reconciled next, and when. A state machine without a clock of its own.

A key is in the queue at most once, however often it is added, and never runs twice at the same time. Keys that are due
take turns by namespace, and within a namespace by concurrency key. So a namespace with a thousand keys does not delay
one with a single key, and a cluster that hangs delays only the keys that depend on it. At most `limit` keys of one
concurrency key run at once; keys without one are limited by the number of workers only.

Priorities: edits of the object first, but not twice for one namespace before others have run; then events of
dependants; then routine checks after a start or at a resync, which get one take in `ROUTINE`. At most `routine` routine
runs are active, each of another concurrency key, so that events find free workers and a cluster that hangs does not
delay all other checks.

The next run of a key after the outcome of the last one:

    failed               it waits twice as long after each failure in a row; an event shortens that to
                         `QueuePace.event_delay`, unless a server has asked for a longer pause, which only an edit of
                         the object shortens;
                         `forgive` resets the count when the unreachable cluster is back
    added while it ran   it runs again after `QueuePace.min_interval`, so that a burst of events is one run
    requeue_after        it waits that long
    done                 it waits for the resync
    object deleted       it is removed
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from functools import partial
from itertools import chain
from typing import Generic, TypeAlias, TypeVar, assert_never

from kubeloop.backoff import Backoff

ROUTINE = 16

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Done:
    """The reconcile succeeded. `requeue_after`: the seconds until the key asks to run again."""

    requeue_after: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The reconcile failed.

    `at_least`: the seconds that a server asked to wait, which only an edit of the object shortens.
    """

    at_least: float | None = None
    terminal: bool = False
    """True if only a change of some object can help, so that an early retry is useless."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The object is deleted, and nothing is left to do for it."""


Outcome: TypeAlias = Done | Failed | Forgotten


@dataclass(frozen=True, slots=True)
class QueuePace:
    """The times, in seconds, that keys wait."""

    min_interval: float = 0.05
    """The minimum time between two runs of a key."""
    event_delay: float = 1.0
    """The time after a failure until an event runs the key again."""
    terminal: float = 30.0
    """The minimum time until the retry of a terminal failure."""
    resync: float = 3600.0
    """The mean time until a key without events is checked again."""
    backoff: Backoff = Backoff(first=0.25, longest=300.0)  # noqa: RUF009 - frozen, and the same for all


class _State(Enum):
    WAITING = auto()  # in the heap
    READY = auto()  # until it may run
    RUNNING = auto()


class _Priority(IntEnum):
    """The reason for which a key runs. The lowest value has priority."""

    EDITED = 0
    EVENT = 1
    ROUTINE = 2


@dataclass(slots=True)
class _Item:
    """The state of one key in the queue. Times are those that callers pass as `now`."""

    namespace: str
    concurrency_key: Hashable
    state: _State = _State.WAITING
    due: float = 0.0
    """The time at which a waiting key becomes ready."""
    failures: int = 0
    rested: float = 0.0
    """The time before which the key does not run, not even after an edit of its object."""
    free: float = 0.0
    """The time before which only an edit of the object runs the key, because it failed or a server asked for a
    pause."""
    dirty: bool = False
    """True if the key was added while it ran."""
    edited: bool = False
    """True if the key was added while it ran because its object was edited."""
    priority: _Priority = _Priority.ROUTINE
    """The reason of the next or the current run."""
    ready_since: float = 0.0


@dataclass(slots=True)
class _FairQueue(Generic[K]):
    """The keys of one priority that are due, by namespace and concurrency key, each level in round-robin order."""

    # Not plain dicts: finding the first key of a dict gets slower with each key that was removed from its front.
    _by_concurrency_key: OrderedDict[str, OrderedDict[Hashable, OrderedDict[K, None]]] = field(
        default_factory=OrderedDict[str, OrderedDict[Hashable, OrderedDict[K, None]]], init=False
    )

    def add(self, key: K, namespace: str, concurrency_key: Hashable) -> None:
        self._by_concurrency_key.setdefault(namespace, OrderedDict()).setdefault(concurrency_key, OrderedDict())[
            key
        ] = None

    def take(self, is_full: Callable[[Hashable], bool]) -> K | None:
        """Remove and return the next key whose concurrency key is not full.

        It and its namespace then move to the end.
        """
        for namespace, concurrency_keys in self._by_concurrency_key.items():
            for concurrency_key, keys in concurrency_keys.items():
                if not is_full(concurrency_key):
                    key = next(iter(keys))
                    self.remove(key, namespace, concurrency_key)
                    if concurrency_key in concurrency_keys:
                        concurrency_keys.move_to_end(concurrency_key)
                    if namespace in self._by_concurrency_key:
                        self._by_concurrency_key.move_to_end(namespace)
                    return key
        return None

    def remove(self, key: K, namespace: str, concurrency_key: Hashable) -> None:
        concurrency_keys = self._by_concurrency_key[namespace]
        del concurrency_keys[concurrency_key][key]
        if not concurrency_keys[concurrency_key]:
            del concurrency_keys[concurrency_key]
        if not concurrency_keys:
            del self._by_concurrency_key[namespace]

    @property
    def namespace(self) -> str | None:
        """The namespace whose turn is next."""
        return next(iter(self._by_concurrency_key), None)

    def __len__(self) -> int:
        return sum(
            len(keys) for concurrency_keys in self._by_concurrency_key.values() for keys in concurrency_keys.values()
        )

    def fronts(self) -> Iterator[K]:
        """Yield the key that has waited longest for each concurrency key."""
        return (
            next(iter(keys))
            for concurrency_keys in self._by_concurrency_key.values()
            for keys in concurrency_keys.values()
        )


@dataclass(slots=True)
class Queue(Generic[K]):
    """The work queue of one kind.

    `place` returns the namespace and concurrency key of a key, and `jitter` a random number from 0 to 1. There are
    `workers` workers. Up to `limit` of them run keys of one concurrency key, and only one once half of the workers are
    busy. Otherwise a few clusters that hang would occupy all of them.
    """

    place: Callable[[K], tuple[str, Hashable]]
    jitter: Callable[[], float]
    limit: int = 4
    workers: int = 16
    pace: QueuePace = field(default_factory=QueuePace)
    routine: int = 12
    _items: dict[K, _Item] = field(default_factory=dict[K, _Item], init=False)
    _heap: list[tuple[float, int, K]] = field(default_factory=list[tuple[float, int, K]], init=False)
    _serial: int = field(default=0, init=False)
    _due: tuple[_FairQueue[K], ...] = field(
        default_factory=lambda: tuple(_FairQueue[K]() for _ in _Priority), init=False
    )
    """The keys that are due, one queue for each priority."""
    _takes: int = field(default=0, init=False)
    """The number of calls of `take`."""
    _overtook: set[str] = field(default_factory=set[str], init=False)
    """The namespaces whose edits have overtaken others since these had a turn."""
    _running: dict[Hashable, int] = field(default_factory=dict[Hashable, int], init=False)
    """The number of running keys by concurrency key."""
    _looking_again: int = field(default=0, init=False)
    """The number of routine runs that are active."""

    def add(self, key: K, now: float, *, is_event: bool = True, edited: bool = False) -> None:
        """Enqueue a key.

        `is_event` is False for a routine check; `edited` is True if its object was edited by a person or client.
        """
        item, why = (
            self._items.get(key),
            (_Priority.EDITED if edited else _Priority.EVENT) if is_event else _Priority.ROUTINE,
        )
        if item is None:
            item = self._items[key] = _Item(*self.place(key), priority=why)
            self._make_ready(key, item, now)
        elif item.state is _State.RUNNING:
            item.dirty = True
            item.edited = item.edited or edited
        elif item.state is _State.WAITING:
            item.priority = min(why, item.priority)
            soonest = max(now, item.rested if edited else item.free)
            if soonest <= now:
                self._make_ready(key, item, now)
            elif soonest < item.due:
                self._wait(key, item, soonest)
        elif why < item.priority:
            self._due[item.priority].remove(key, item.namespace, item.concurrency_key)
            item.priority = why
            self._due[why].add(key, item.namespace, item.concurrency_key)

    def forgive(self, key: K) -> None:
        """Reset the failure count of a key, because the cause of its failures is gone."""
        if item := self._items.get(key):
            item.failures = 0

    def take(self, now: float) -> K | None:
        """Return the next key, which counts as running until `finish`; None if no key may run now."""
        while (due := self.next_due()) is not None and due <= now:
            due_key = heapq.heappop(self._heap)[2]
            self._make_ready(due_key, self._items[due_key], now)
        self._takes += 1
        scarce = 2 * self.running >= self.workers
        for priority in self._priorities():
            if priority is _Priority.ROUTINE and self._looking_again >= self.routine:
                continue
            limit = 1 if scarce or priority is _Priority.ROUTINE else self.limit
            if (key := self._due[priority].take(partial(self._is_full, limit=limit))) is not None:
                item = self._items[key]
                self._running[item.concurrency_key] = self._running.get(item.concurrency_key, 0) + 1
                self._looking_again += priority is _Priority.ROUTINE
                self._overtook.add(item.namespace) if priority is _Priority.EDITED else self._overtook.clear()
                item.state = _State.RUNNING
                return key
        return None

    def _priorities(self) -> Sequence[_Priority]:
        """Return the priorities in the order in which `take` tries them this time."""
        if self._takes % ROUTINE == 0:
            return _Priority.ROUTINE, _Priority.EDITED, _Priority.EVENT
        if self._due[_Priority.EDITED].namespace in self._overtook:
            return _Priority.EVENT, _Priority.EDITED, _Priority.ROUTINE
        return _Priority.EDITED, _Priority.EVENT, _Priority.ROUTINE

    def finish(self, key: K, outcome: Outcome, now: float) -> None:
        """Record the outcome of a key that has run, and schedule its next run."""
        item = self._items[key]
        self._running[item.concurrency_key] -= 1
        if not self._running[item.concurrency_key]:
            del self._running[item.concurrency_key]
        self._looking_again -= item.priority is _Priority.ROUTINE
        item.namespace, item.concurrency_key = self.place(key)
        dirty, item.dirty = item.dirty, False
        edited, item.edited = item.edited, False
        has_cause = dirty or not isinstance(outcome, Done) or outcome.requeue_after is not None
        item.priority = _Priority.EDITED if edited else _Priority.EVENT if has_cause else _Priority.ROUTINE
        item.failures = item.failures + 1 if isinstance(outcome, Failed) else 0
        match outcome:
            case Failed(at_least, terminal):
                delay = self.pace.backoff.delay(item.failures, self.jitter(), at_least=at_least)
                delay = max(delay, self.pace.terminal) if terminal else delay
                item.rested = now + min(delay, self.pace.event_delay)
                item.free = now + min(delay, max(self.pace.event_delay, at_least or 0.0))
            case Done(requeue_after):
                resync = self.pace.resync * (0.75 + self.jitter() / 2)  # jitter separates keys that began together
                delay = min(resync, max(requeue_after, 0.0)) if requeue_after is not None else resync
                item.rested = item.free = now + self.pace.min_interval
            case Forgotten():
                if not dirty:
                    del self._items[key]
                    return
                delay = item.rested = item.free = 0.0
            case _:
                assert_never(outcome)
        soonest = item.rested if edited else item.free
        self._wait(key, item, soonest if dirty else max(now + delay, soonest))

    def is_due(self, key: K, now: float) -> bool:
        """True if the key will run soon anyway, and will then observe everything that has happened until then."""
        item = self._items.get(key)
        if item is None:
            return False
        return (
            item.state is _State.READY
            or item.dirty
            or (item.state is _State.WAITING and item.due <= now + self.pace.min_interval)
        )

    def failures(self, key: K) -> int:
        """Return how many times in a row the key has failed."""
        item = self._items.get(key)
        return item.failures if item else 0

    def next_due(self) -> float | None:
        """Return the time at which the next waiting key is due. Keys that wait for their concurrency key have none."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    @property
    def depth(self) -> int:
        """The number of keys that are due and not running."""
        return sum(map(len, self._due))

    @property
    def running(self) -> int:
        return sum(self._running.values())

    def __len__(self) -> int:
        return len(self._items)

    def oldest(self, now: float) -> float:
        """Return the seconds for which the longest waiting key has been due."""
        fronts = chain.from_iterable(due.fronts() for due in self._due)
        return max((now - self._items[key].ready_since for key in fronts), default=0.0)

    def _make_ready(self, key: K, item: _Item, now: float) -> None:
        """Move a key to the queue of its priority."""
        item.state, item.ready_since = _State.READY, now
        self._due[item.priority].add(key, item.namespace, item.concurrency_key)

    def _wait(self, key: K, item: _Item, due: float) -> None:
        """Let a key wait until a time, and compact the heap when most of its entries are stale."""
        item.state, item.due = _State.WAITING, due
        self._serial += 1
        heapq.heappush(self._heap, (due, self._serial, key))
        if len(self._heap) > 2 * len(self._items) + 64:  # stale entries of keys that became ready earlier
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def _is_current(self, entry: tuple[float, int, K]) -> bool:
        """True if an entry of the heap still says when its key is due.

        Entries are not removed when a key is rescheduled.
        """
        item = self._items.get(entry[2])
        return item is not None and item.state is _State.WAITING and item.due == entry[0]

    def _is_full(self, concurrency_key: Hashable, limit: int) -> bool:
        """True if no further key of a concurrency key may run."""
        return bool(concurrency_key) and self._running.get(concurrency_key, 0) >= limit
