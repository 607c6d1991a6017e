"""What counts as stuck, and what does not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kubeloop.cache.informer import Informer
from kubeloop.cache.prober import Health
from kubeloop.errors import Forbidden, Unreachable
from kubeloop.health import PROBE_INTERVAL, STUCK_LOOP, STUCK_QUEUE, STUCK_RUN, STUCK_WATCH, LoopProbe, find_stuck
from kubeloop.queue import Done, Outcome, Queue
from kubeloop.resource import of
from kubeloop.workers import Workers
from modelplane_operator.api import ModelCache
from tests.support.waiting import until

ANSWERS = Health(last_contact=0.0)


@dataclass
class Scene:
    """A hub with one watch and a runner with one queue, at a moment."""

    now: float = 0.0
    lag: float = 0.0
    health: Health = ANSWERS
    unreachable: float | None = 0.0
    failing: Exception | None = None
    due: float = 0.0
    running: float | None = None
    leading: bool = True

    def judge(self) -> list[str]:
        clock = 10_000.0
        informer = Informer(of(ModelCache), lambda: clock)
        informer.last_event_at = None if self.unreachable is None else clock - self.unreachable
        watch = SimpleNamespace(informer=informer, failing=self.failing)
        hub: Any = SimpleNamespace(health=self.health, watches=[watch])
        queue = Queue[str](lambda key: ("ns", "cluster"), lambda: 0.5)
        workers = Workers(queue, never, 1)
        if self.running is not None:
            queue.add("running", clock - self.running)
            queue.take(clock - self.running)
            workers._began["running"] = clock - self.running
        if self.due:
            queue.add("due", clock - self.due)
        kind = SimpleNamespace(type=of(ModelCache))
        runner: Any = SimpleNamespace(controller=kind, workers=workers)
        loop_probe = LoopProbe(lambda: clock)
        loop_probe._due = clock - self.lag
        return list(find_stuck(loop_probe, hub, [runner], leading=self.leading))


async def never(_: str) -> Outcome:
    return Done()


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        (Scene(), []),
        (Scene(lag=STUCK_LOOP + 1), ["the event loop is 11 s late"]),
        (Scene(unreachable=STUCK_WATCH + 1), ["the watch of modelcaches.modelplane.ai has said nothing for 191 s"]),
        (Scene(unreachable=None), []),
        (Scene(unreachable=STUCK_WATCH + 1, failing=Forbidden("no")), []),
        (Scene(unreachable=STUCK_WATCH + 1, health=replace(ANSWERS, error=Unreachable("away"))), []),
        (Scene(due=STUCK_QUEUE + 1), ["an object of ModelCache has been due for 61 s and nobody takes it"]),
        (Scene(due=STUCK_QUEUE + 1, running=1.0), []),
        (Scene(due=STUCK_QUEUE + 1, leading=False), []),
        (Scene(running=STUCK_RUN + 1), ["a reconcile of ModelCache has been running for 301 s"]),
        (Scene(running=STUCK_RUN - 1), []),
    ],
)
async def test_what_a_restart_would_mend_and_nothing_else_is_stuck(scene: Scene, said: list[str]) -> None:
    assert scene.judge() == said


async def test_the_pulse_tells_how_late_the_loop_was() -> None:
    loop_probe = LoopProbe(asyncio.get_running_loop().time)
    beating = asyncio.create_task(loop_probe.run())
    await asyncio.sleep(0)
    time.sleep(PROBE_INTERVAL + 0.5)  # noqa: ASYNC251 - a blocked loop is what this is about
    assert loop_probe.lag >= 0.5
    await until(lambda: bool(loop_probe._lags), "the next measure of lag")
    beating.cancel()

    assert loop_probe.worst >= 0.5
