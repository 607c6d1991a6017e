"""Periodic checks of state that no watch reports: does an object that the operator created respond?

Each kind has its own instance. Few objects are checked every few seconds, many about once a minute, and each at once
when its address or its objects have changed. After a failure the next check is soon. A failure that is not the object's
alone has the others checked that share its cause. Checks in parallel are limited, also by namespace, so that slow ones
delay only those of the same namespace. Only the leader checks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import structlog

from kubeloop.cache.informer import Informer
from kubeloop.objects import Key, Manifest
from kubeloop.queue import Done, Forgotten, Outcome, Queue
from kubeloop.types import ResourceType
from kubeloop.workers import Workers
from modelplane_operator.routing.checked import Checked
from modelplane_operator.world import OnChecked, ignore_count

W = TypeVar("W", bound=Hashable)
A = TypeVar("A")

CHECK_INTERVAL: Final = 60.0  # seconds between two checks of one of many objects, or of one that costs
SHORTEST: Final = 4.0  # and of one of few
SPACING: Final = 0.25  # seconds between two checks of different objects, on average
RETRY_AFTER: Final = 0.25  # seconds after the first failure, doubled each time
RETRY: Final = 2.0  # the longest of these delays, where few objects are checked
STEADY: Final = 8.0  # seconds of failures in a row that count
AT_ONCE: Final = 32
OF_A_NAMESPACE: Final = 4

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _CheckedObject(Generic[W, A]):
    """The state of one checked object."""

    way: W
    """The checked address."""
    revision: Hashable
    """The versions of objects that the check depends on."""
    checked: Checked[A]
    """Results for this address and revision."""
    failures: int = 0
    """The number of failures in a row."""
    failing_since: float = 0.0
    """Time at which the first of them began."""
    latest: A | None = None
    """The result of the last check, which may not be the reported one."""


@dataclass(slots=True)
class Checks(Generic[W, A]):
    """The checks of all objects of one kind; `wake` is called with an object's key when its result has changed."""

    kind: ResourceType
    """The type of the checked objects."""
    ask: Callable[[W], Awaitable[A]]
    """The function that checks one address."""
    failed: Callable[[W, A], bool]
    """The predicate of results that are failures."""
    wake: Callable[[ResourceType, Key], None]
    """The function to call with the type and key of an object whose result has changed."""
    is_steady: Callable[[W, A], bool] = lambda _, __: False
    """True if one failure is enough, as other objects have the same."""
    costs: Callable[[W], bool] = lambda _: False
    """True if a check reaches somebody who may count or charge it: such objects are never checked often."""
    group: Callable[[W], Hashable] = lambda _: None
    """What an object has in common with others, such as a gateway."""
    is_shared: Callable[[W, A], bool] = lambda _, __: False
    """True if the cause of a failure may be in that: the others of the group are then checked at once."""
    on_checked: OnChecked = ignore_count
    """Function that counts the results, for metrics."""
    jitter: Callable[[], float] = random.random
    """The function that returns a random number from 0 to 1, for jitter."""
    _objects: dict[Key, _CheckedObject[W, A]] = field(default_factory=dict[Key, "_CheckedObject[W, A]"], init=False)
    _spread_at: dict[Hashable, float] = field(default_factory=dict[Hashable, float], init=False)
    """Time of the last check of a group because one of its objects had failed."""
    _workers: Workers[Key] = field(init=False)

    def __post_init__(self) -> None:
        queue = Queue[Key](lambda key: (key.namespace, key.namespace), self.jitter, limit=OF_A_NAMESPACE)
        self._workers = Workers(queue, self._check, AT_ONCE)

    def find(self, key: Key, way: W, revision: Hashable = None) -> Checked[A]:
        """Return the results for this address and revision, and check the object from now on."""
        entry = self._objects.get(key)
        if entry is None or (entry.way, entry.revision) != (way, revision):
            entry = self._objects[key] = _CheckedObject(way, revision, Checked())
            self._workers.add(key)
        return entry.checked

    def get(self, key: Key) -> tuple[W, Checked[A]] | None:
        """Return the checked address of an object and its results; None if it is not checked."""
        entry = self._objects.get(key)
        return (entry.way, entry.checked) if entry else None

    def ways(self) -> Iterator[W]:
        """Yield the checked address of each object."""
        return (entry.way for entry in self._objects.values())

    def add_event_handlers(self, informer: Informer) -> None:
        """Subscribe to the informer of the kind, to forget deleted objects."""
        if informer.type == self.kind:
            informer.subscribe(self._on_event)

    async def run(self) -> None:
        """Check until cancelled."""
        await self._workers.run()

    def forget(self, key: Key) -> None:
        """Stop checking an object."""
        self._objects.pop(key, None)

    def _on_event(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        """Forget an object that was deleted."""
        if new is None:
            self.forget(key)

    async def _check(self, key: Key) -> Outcome:
        """Check one object, store the result, and report a change."""
        old = self._objects.get(key)
        if old is None:
            return Forgotten()
        started_at = asyncio.get_running_loop().time()
        try:
            answer = await self.ask(old.way)
        except Exception:  # an unexpected error in one check must not stop the operator
            self.on_checked(self.kind.kind, "defect")
            log.exception("check failed", kind=self.kind.kind, key=str(key))
            return Done(CHECK_INTERVAL)
        failed = self.failed(old.way, answer)
        self.on_checked(self.kind.kind, "failed" if failed else "answered")
        if self._objects.get(key) is not old:  # it has changed meanwhile, and is checked again at once
            return Done(0.0)
        now = asyncio.get_running_loop().time()
        failures = old.failures + 1 if failed else 0
        since = old.failing_since if old.failures else started_at
        failing = failures > 1 and now - since >= STEADY
        failing = failing or (failures > 0 and (old.checked.failing or self.is_steady(old.way, answer)))
        # While it fails, an answer that alternates with another one must not be reported each time.
        reported = old.checked.answer if failing and old.checked.failing and answer != old.latest else answer
        checked = Checked(reported, failing=failing)
        self._objects[key] = _CheckedObject(old.way, old.revision, checked, failures, since, answer)
        if failures == 1 and self.is_shared(old.way, answer):
            self._check_group(self.group(old.way), key, now)
        if checked != old.checked:
            log.debug("checked", kind=self.kind.kind, key=str(key), answer=str(answer), failing=failing)
            self.wake(self.kind, key)
        return Done(self._delay(old.way, failures))

    def _check_group(self, group: Hashable, failed: Key, now: float) -> None:
        """Check the other objects of a group, at most once a minute."""
        self._spread_at = {other: at for other, at in self._spread_at.items() if now - at < CHECK_INTERVAL}
        if group in self._spread_at:
            return
        self._spread_at[group] = now
        for key, entry in self._objects.items():
            if key != failed and not entry.failures and self.group(entry.way) == group:
                self._workers.add(key)

    def _delay(self, way: W, failures: int) -> float:
        """Return the seconds until the next check, with jitter: those that started together would stay together."""
        often = min(max(len(self._objects) * SPACING, SHORTEST), CHECK_INTERVAL)
        interval = (CHECK_INTERVAL if self.costs(way) else often) * (1 + self.jitter() / 4)
        soon = min(RETRY_AFTER * 2.0 ** min(failures - 1, 16), max(interval / 4, RETRY))
        return soon if failures else interval
