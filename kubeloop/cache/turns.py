"""Has reflectors take their turns. Who waits for the next one takes no task: of most types a cluster has nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from kubeloop.cache.reflector import Reflector


async def follow(reflectors: Iterable[Reflector]) -> None:
    """Keep the informers of one connection current, until cancelled; raises what the turn of one of them raises."""
    now, news = asyncio.get_running_loop().time, asyncio.Event()
    due = {one.informer.type: (0.0, one) for one in reflectors}
    running = dict[asyncio.Task[float], Reflector]()

    def woken(reflector: Reflector) -> None:
        kind = reflector.informer.type
        if kind in due and reflector.sleeps:
            due[kind] = 0.0, reflector
            news.set()

    for _, one in due.values():
        one.informer.on_wake = partial(woken, one)
    try:
        while True:
            for task in [one for one in running if one.done()]:
                reflector = running.pop(task)
                pause = task.result()
                if reflector.sleeps and reflector.informer.woken:
                    pause = 0.0
                due[reflector.informer.type] = now() + pause, reflector
            for kind, (at, reflector) in tuple(due.items()):
                if at <= now():
                    del due[kind]
                    task = asyncio.create_task(reflector.turn())
                    task.add_done_callback(lambda _: news.set())
                    running[task] = reflector
            with suppress(TimeoutError):
                async with asyncio.timeout(min((at for at, _ in due.values()), default=now() + 3600.0) - now()):
                    await news.wait()
            news.clear()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
