"""Which key is reconciled next, and when: a state machine without a clock of its own.

A key is in the queue once, however often it is added, and runs once at a time. Those that are due take turns: namespace
by namespace, and within one by concurrency key. So a namespace with a thousand keys does not hold up one with a single
key, and a cluster that hangs holds up only what concerns it. `limit` keys of one concurrency key run at once, and as
many as there are workers of those that have none. What somebody has just changed comes before what has heard of others,
once for each namespace before others have a turn, and both before what is only looked at again, after a start or in a
resync, which has one turn in `ROUTINE`. Of that `routine` run at once, of different concurrency keys: news find workers
that are free, and a cluster that hangs does not hold up all the rest.

What becomes of a key after its run:

    it failed            it waits, twice as long after each failure in a row; news shorten that to `QueuePace.news`,
                         unless a server has asked for a longer pause: only an edit of the object itself shortens that
                         too; what has failed because a cluster was away, is forgiven when that is back
    it was added while   it runs again, `QueuePace.rest` later, so that a burst of events is one run
      it ran
    it wants to          it waits as long as it asked for
    else                 it waits for the slow resync
    its object is gone   it is forgotten
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from itertools import chain
from typing import Generic, TypeAlias, TypeVar, assert_never

from kubeloop.backoff import Backoff

ROUTINE = 16

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Done:
    """All went through; the key wants another look after so many seconds, if it says so."""

    requeue_after: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """It did not go through. `at_least`: the seconds that a server asked for, whatever the news but an edit."""

    at_least: float | None = None
    terminal: bool = False
    """Only a change of something can help: nothing is gained by trying soon."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The object is gone, and nothing is left to do for it."""


Outcome: TypeAlias = Done | Failed | Forgotten


@dataclass(frozen=True, slots=True)
class QueuePace:
    """How long keys wait."""

    rest: float = 0.05
    news: float = 1.0
    terminal: float = 30.0
    resync: float = 3600.0
    backoff: Backoff = Backoff(first=0.25, longest=300.0)  # noqa: RUF009 - frozen, and the same for all


class _State(Enum):
    WAITING = auto()  # in the heap
    READY = auto()  # until it may run
    RUNNING = auto()


class _Why(IntEnum):
    """Why a key is to run; the least comes first."""

    EDITED = 0
    NEWS = 1
    ROUTINE = 2


@dataclass(slots=True)
class _Item:
    namespace: str
    concurrency_key: Hashable
    state: _State = _State.WAITING
    due: float = 0.0
    failures: int = 0
    rested: float = 0.0
    """Not before this moment."""
    free: float = 0.0
    """Not before this moment, unless its object is edited: until then a server wants to be left alone."""
    dirty: bool = False
    """Added while it ran."""
    edited: bool = False
    """And that by an edit of its object."""
    why: _Why = _Why.ROUTINE
    ready_since: float = 0.0


@dataclass(slots=True)
class _FairQueue(Generic[K]):
    """Keys that are due, by namespace and concurrency key, each of the three in the order of their turns."""

    # Not plain dicts: to find the first of one costs more with each that was removed before it.
    _by_concurrency_key: OrderedDict[str, OrderedDict[Hashable, OrderedDict[K, None]]] = field(
        default_factory=OrderedDict[str, OrderedDict[Hashable, OrderedDict[K, None]]], init=False
    )

    def add(self, key: K, namespace: str, concurrency_key: Hashable) -> None:
        self._by_concurrency_key.setdefault(namespace, OrderedDict()).setdefault(concurrency_key, OrderedDict())[
            key
        ] = None

    def take(self, is_full: Callable[[Hashable], bool]) -> K | None:
        """The next key whose concurrency key has room; that and its namespace have had their turn then."""
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
        """Whose turn it is."""
        return next(iter(self._by_concurrency_key), None)

    def __len__(self) -> int:
        return sum(
            len(keys) for concurrency_keys in self._by_concurrency_key.values() for keys in concurrency_keys.values()
        )

    def fronts(self) -> Iterator[K]:
        """Of each concurrency key, the one that has waited longest."""
        return (
            next(iter(keys))
            for concurrency_keys in self._by_concurrency_key.values()
            for keys in concurrency_keys.values()
        )


@dataclass(slots=True)
class Queue(Generic[K]):
    """The keys of one kind. `place` tells a key's namespace and concurrency key, `chance` gives numbers from 0 to 1.

    So many `workers` run them, of which one concurrency key takes up to `limit`: one alone when half of them are taken,
    or a few clusters that hang would have them all.
    """

    place: Callable[[K], tuple[str, Hashable]]
    chance: Callable[[], float]
    limit: int = 4
    workers: int = 16
    pace: QueuePace = field(default_factory=QueuePace)
    routine: int = 12
    _items: dict[K, _Item] = field(default_factory=dict[K, _Item], init=False)
    _heap: list[tuple[float, int, K]] = field(default_factory=list[tuple[float, int, K]], init=False)
    _serial: int = field(default=0, init=False)
    _due: tuple[_FairQueue[K], ...] = field(default_factory=lambda: tuple(_FairQueue[K]() for _ in _Why), init=False)
    _asked: int = field(default=0, init=False)
    _overtook: set[str] = field(default_factory=set[str], init=False)
    """The namespaces of which something overtook others since these had a turn."""
    _running: dict[Hashable, int] = field(default_factory=dict[Hashable, int], init=False)
    _looking_again: int = field(default=0, init=False)
    """How many of those that run are only looked at again."""

    def add(self, key: K, now: float, *, news: bool = True, edited: bool = False) -> None:
        """There is news of this key; or there may be, for all we know. `edited`: somebody has changed the object."""
        item, why = self._items.get(key), (_Why.EDITED if edited else _Why.NEWS) if news else _Why.ROUTINE
        if item is None:
            item = self._items[key] = _Item(*self.place(key), why=why)
            self._make_ready(key, item, now)
        elif item.state is _State.RUNNING:
            item.dirty = True
            item.edited = item.edited or edited
        elif item.state is _State.WAITING:
            item.why = min(why, item.why)
            soonest = max(now, item.rested if edited else item.free)
            if soonest <= now:
                self._make_ready(key, item, now)
            elif soonest < item.due:
                self._wait(key, item, soonest)
        elif why < item.why:
            self._due[item.why].remove(key, item.namespace, item.concurrency_key)
            item.why = why
            self._due[why].add(key, item.namespace, item.concurrency_key)

    def forgive(self, key: K) -> None:
        """What this key has failed by is over: another failure is the first."""
        if item := self._items.get(key):
            item.failures = 0

    def take(self, now: float) -> K | None:
        """The key whose turn it is, which then runs until `done`; None when none may run now."""
        self._ripen(now)
        self._asked += 1
        scarce = 2 * self.running >= self.workers
        for why in self._turns():
            if why is _Why.ROUTINE and self._looking_again >= self.routine:
                continue
            is_full = self._is_taken if scarce or why is _Why.ROUTINE else self._is_full
            if (key := self._due[why].take(is_full)) is not None:
                item = self._items[key]
                self._running[item.concurrency_key] = self._running.get(item.concurrency_key, 0) + 1
                self._looking_again += why is _Why.ROUTINE
                self._overtook.add(item.namespace) if why is _Why.EDITED else self._overtook.clear()
                item.state = _State.RUNNING
                return key
        return None

    def _turns(self) -> Sequence[_Why]:
        """Whose turn it is, and whose if there is nobody."""
        if self._asked % ROUTINE == 0:
            return _Why.ROUTINE, _Why.EDITED, _Why.NEWS
        if self._due[_Why.EDITED].namespace in self._overtook:
            return _Why.NEWS, _Why.EDITED, _Why.ROUTINE
        return _Why.EDITED, _Why.NEWS, _Why.ROUTINE

    def done(self, key: K, outcome: Outcome, now: float) -> None:
        """A key that was taken has run."""
        item = self._items[key]
        self._leave(item.concurrency_key)
        self._looking_again -= item.why is _Why.ROUTINE
        item.namespace, item.concurrency_key = self.place(key)
        dirty, item.dirty = item.dirty, False
        edited, item.edited = item.edited, False
        again = dirty or not isinstance(outcome, Done) or outcome.requeue_after is not None
        item.why = _Why.EDITED if edited else _Why.NEWS if again else _Why.ROUTINE
        item.failures = item.failures + 1 if isinstance(outcome, Failed) else 0
        match outcome:
            case Failed(at_least, terminal):
                delay = self.pace.backoff.delay(item.failures, self.chance(), at_least=at_least)
                delay = max(delay, self.pace.terminal) if terminal else delay
                item.rested = now + min(delay, self.pace.news)
                item.free = now + min(delay, max(self.pace.news, at_least or 0.0))
            case Done(wanted):
                resync = self.pace.resync * (0.75 + self.chance() / 2)  # else all that began together stay together
                delay = min(resync, max(wanted, 0.0)) if wanted is not None else resync
                item.rested = item.free = now + self.pace.rest
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
        """Whether this key will run soon, and then with all that has happened until then."""
        item = self._items.get(key)
        if item is None:
            return False
        return (
            item.state is _State.READY
            or item.dirty
            or (item.state is _State.WAITING and item.due <= now + self.pace.rest)
        )

    def failures(self, key: K) -> int:
        """How often in a row this key has failed."""
        item = self._items.get(key)
        return item.failures if item else 0

    def next_due(self) -> float | None:
        """When a waiting key is due next. Keys that wait for others of their concurrency key have no time."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    @property
    def depth(self) -> int:
        """How many keys are due and do not run."""
        return sum(map(len, self._due))

    @property
    def running(self) -> int:
        return sum(self._running.values())

    def __len__(self) -> int:
        return len(self._items)

    def oldest(self, now: float) -> float:
        """How many seconds the key that has waited longest for its turn has done so."""
        fronts = chain.from_iterable(due.fronts() for due in self._due)
        return max((now - self._items[key].ready_since for key in fronts), default=0.0)

    def _make_ready(self, key: K, item: _Item, now: float) -> None:
        item.state, item.ready_since = _State.READY, now
        self._due[item.why].add(key, item.namespace, item.concurrency_key)

    def _wait(self, key: K, item: _Item, due: float) -> None:
        item.state, item.due = _State.WAITING, due
        self._serial += 1
        heapq.heappush(self._heap, (due, self._serial, key))
        if len(self._heap) > 2 * len(self._items) + 64:  # entries that news have overtaken
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def _is_current(self, entry: tuple[float, int, K]) -> bool:
        item = self._items.get(entry[2])
        return item is not None and item.state is _State.WAITING and item.due == entry[0]

    def _ripen(self, now: float) -> None:
        while (due := self.next_due()) is not None and due <= now:
            key = heapq.heappop(self._heap)[2]
            self._make_ready(key, self._items[key], now)

    def _is_full(self, concurrency_key: Hashable) -> bool:
        return bool(concurrency_key) and self._running.get(concurrency_key, 0) >= self.limit

    def _is_taken(self, concurrency_key: Hashable) -> bool:
        return bool(concurrency_key) and concurrency_key in self._running

    def _leave(self, concurrency_key: Hashable) -> None:
        self._running[concurrency_key] -= 1
        if not self._running[concurrency_key]:
            del self._running[concurrency_key]
