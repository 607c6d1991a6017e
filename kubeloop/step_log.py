"""Logs each write and each start of longer work, with its step and the object that it is for.

A cluster that undoes what the operator writes has it write again without end. Therefore the lines about each target
other than the hub are limited: bursts of thousands pass, and the lines that are left out are counted in the next one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from kubeloop.client.limits import Bucket
from kubeloop.objects import Key
from kubeloop.plan import Step
from kubeloop.types import HUB, ResourceType

RATE: Final = 4.0  # lines per second about one target, after a burst
BURST: Final = 4000.0  # lines; the start of some hundred models on one cluster
PRUNED_AT: Final = 2_000  # targets above which those without recent lines are forgotten

log = structlog.get_logger()


@dataclass(slots=True)
class StepLog:
    """The log of steps. `now` is a monotonic clock."""

    now: Callable[[], float] = time.monotonic
    _buckets: dict[str, Bucket] = field(default_factory=dict[str, Bucket], init=False)
    _omitted: Counter[str] = field(default_factory=Counter[str], init=False)
    """The lines that were left out, by target."""

    def record(self, step: Step, subject: ResourceType, key: Key) -> None:
        """Log a step that has written or started something."""
        target = step.target
        if target != HUB and not self._take(target):
            self._omitted[target] += 1
            return
        omitted = self._omitted.pop(target, 0)
        event = "step started" if step.only_begins else "step done"
        fields = {"omitted": omitted} if omitted else {}
        log.info(event, step=str(step), kind=subject.kind, key=str(key), **fields)

    def _take(self, target: str) -> bool:
        """Return True if there may be a line about the target now, and count it."""
        now = self.now()
        if target not in self._buckets and len(self._buckets) >= PRUNED_AT:
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if not bucket.is_full(now)}
        return self._buckets.setdefault(target, Bucket(RATE, BURST)).take_now(now)
