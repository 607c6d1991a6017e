"""Runs reflectors in turns. A reflector that waits for its next turn needs no task, since most types are empty."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from kubeloop.cache.reflector import Reflector


async def follow(reflectors: Iterable[Reflector]) -> None:
    """Keep the informers of one connection current until cancelled; raises the error of a turn that fails."""
    now, changed = asyncio.get_running_loop().time, asyncio.Event()
    due = {item.informer.type: (0.0, item) for item in reflectors}
    running = dict[asyncio.Task[float], Reflector]()

    def make_due(reflector: Reflector) -> None:
        """Make a sleeping reflector due at once."""
        kind = reflector.informer.type
        if kind in due and reflector.sleeps:
            due[kind] = 0.0, reflector
            changed.set()

    for _, item in due.values():
        item.informer.on_wake = partial(make_due, item)
    try:
        while True:
            for task in [item for item in running if item.done()]:
                reflector = running.pop(task)
                pause = task.result()
                if reflector.sleeps and reflector.informer.woken:
                    pause = 0.0
                due[reflector.informer.type] = now() + pause, reflector
            for kind, (due_at, reflector) in tuple(due.items()):
                if due_at <= now():
                    del due[kind]
                    task = asyncio.create_task(reflector.turn())
                    task.add_done_callback(lambda _: changed.set())
                    running[task] = reflector
            with suppress(TimeoutError):
                async with asyncio.timeout(min((due_at for due_at, _ in due.values()), default=now() + 3600.0) - now()):
                    await changed.wait()
            changed.clear()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
