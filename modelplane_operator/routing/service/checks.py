"""Periodic checks of state that no watch reports: does an object that the operator created respond?

Each kind has its own instance. An object is checked about once a minute, and at once when its address or its objects
have changed. After a failure the next check is soon, then with growing delays. Checks in parallel are limited, also by
namespace, so that slow ones delay only those of the same namespace. Only the leader checks.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Hashable
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

CHECK_INTERVAL: Final = 60.0
RETRY_AFTER: Final = 0.25  # seconds after the first failure, doubled each time
STEADY: Final = 6  # failures in a row that count, within eight seconds or more
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
    on_checked: OnChecked = ignore_count
    """Function that counts the results, for metrics."""
    jitter: Callable[[], float] = random.random
    """The function that returns a random number from 0 to 1, for jitter."""
    _objects: dict[Key, _CheckedObject[W, A]] = field(default_factory=dict[Key, "_CheckedObject[W, A]"], init=False)
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
        try:
            answer = await self.ask(old.way)
        except Exception:  # an unexpected error in one check must not stop the operator
            self.on_checked(self.kind.kind, "defect")
            log.exception("check failed", kind=self.kind.kind, key=str(key))
            return Done(self._delay(0))
        failed = self.failed(old.way, answer)
        self.on_checked(self.kind.kind, "failed" if failed else "answered")
        if self._objects.get(key) is not old:  # it has changed meanwhile, and is checked again at once
            return Done(0.0)
        failures = old.failures + 1 if failed else 0
        failing = failures >= STEADY or (failures > 0 and self.is_steady(old.way, answer))
        checked = Checked(answer, failing=failing)
        self._objects[key] = _CheckedObject(old.way, old.revision, checked, failures)
        if checked != old.checked:
            log.debug("checked", kind=self.kind.kind, key=str(key), answer=str(answer), failing=failing)
            self.wake(self.kind, key)
        return Done(self._delay(failures))

    def _delay(self, failures: int) -> float:
        """Return the seconds until the next check, with jitter."""
        interval = CHECK_INTERVAL * (
            1 + self.jitter() / 4
        )  # jitter, or checks that started together would stay together
        return min(RETRY_AFTER * 2.0 ** min(failures - 1, 16), interval) if failures else interval
