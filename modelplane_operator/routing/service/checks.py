"""Checks that no watch can replace: whether what the operator has made answers. Each kind has its own.

What is to be checked is asked again about once a minute, and at once when it is found in another way, or has changed.
After a failure it is asked again soon, and then ever later. Few are asked at once, and fewer of one namespace: what
hangs keeps its neighbours waiting, and nobody else. Only the operator that leads asks.
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
from modelplane_operator.world import OnChecked, uncounted

W = TypeVar("W", bound=Hashable)
A = TypeVar("A")

AT_REST: Final = 60.0
RETRY_AFTER: Final = 0.25  # after the first failure; then twice as long each time
STEADY: Final = 6  # failures in a row that are no accident: some eight seconds, and more where each takes long
AT_ONCE: Final = 32
OF_A_NAMESPACE: Final = 4

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Known(Generic[W, A]):
    way: W
    revision: Hashable
    checked: Checked[A]
    failures: int = 0


@dataclass(slots=True)
class Checks(Generic[W, A]):
    """The objects of one kind that are checked; `wake` is told when there is news of one."""

    kind: ResourceType
    ask: Callable[[W], Awaitable[A]]
    failed: Callable[[W, A], bool]
    wake: Callable[[ResourceType, Key], None]
    is_steady: Callable[[W, A], bool] = lambda _, __: False
    """Whether one failure is enough, as others have met with the same."""
    on_checked: OnChecked = uncounted
    chance: Callable[[], float] = random.random
    _known: dict[Key, _Known[W, A]] = field(default_factory=dict[Key, "_Known[W, A]"], init=False)
    _workers: Workers[Key] = field(init=False)

    def __post_init__(self) -> None:
        queue = Queue[Key](lambda key: (key.namespace, key.namespace), self.chance, limit=OF_A_NAMESPACE)
        self._workers = Workers(queue, self._check, AT_ONCE)

    def find(self, key: Key, way: W, revision: Hashable = None) -> Checked[A]:
        """What checks have met with, by that way and since that revision; from now on it is checked."""
        known = self._known.get(key)
        if known is None or (known.way, known.revision) != (way, revision):
            known = self._known[key] = _Known(way, revision, Checked())
            self._workers.add(key)
        return known.checked

    def listen(self, informer: Informer) -> None:
        """Let go of objects that are gone, if it is the informer of theirs."""
        if informer.type == self.kind:
            informer.subscribe(self._seen)

    async def run(self) -> None:
        """Check until cancelled."""
        await self._workers.run()

    def forget(self, key: Key) -> None:
        """Check it no more."""
        self._known.pop(key, None)

    def _seen(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        if new is None:
            self.forget(key)

    async def _check(self, key: Key) -> Outcome:
        before = self._known.get(key)
        if before is None:
            return Forgotten()
        try:
            answer = await self.ask(before.way)
        except Exception:  # a defect of one check must not end the operator
            self.on_checked(self.kind.kind, "defect")
            log.exception("check failed", kind=self.kind.kind, key=str(key))
            return Done(self._pause(0))
        failed = self.failed(before.way, answer)
        self.on_checked(self.kind.kind, "failed" if failed else "answered")
        if self._known.get(key) is not before:  # it has changed meanwhile, and is to be asked again
            return Done(0.0)
        failures = before.failures + 1 if failed else 0
        failing = failures >= STEADY or (failures > 0 and self.is_steady(before.way, answer))
        checked = Checked(answer, failing=failing)
        self._known[key] = _Known(before.way, before.revision, checked, failures)
        if checked != before.checked:
            log.debug("checked", kind=self.kind.kind, key=str(key), answer=str(answer), failing=failing)
            self.wake(self.kind, key)
        return Done(self._pause(failures))

    def _pause(self, failures: int) -> float:
        rest = AT_REST * (1 + self.chance() / 4)  # else all that began together stay together
        return min(RETRY_AFTER * 2.0 ** min(failures - 1, 16), rest) if failures else rest
