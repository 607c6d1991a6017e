"""The operator's own command with one toy kind: it writes down, in a config map of each ModelCache, who wrote last.

`python -m tests.support.toy_operator run ...` takes what the real one takes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kubeloop.condition_types import Ready
from kubeloop.loop import Clients, Controller
from kubeloop.plan import Apply, Plan
from kubeloop.types import CONFIG_MAP
from kubeloop.watched import Controllers
from kubeloop.wiring import owner_of_kind
from modelplane_operator.__main__ import main
from modelplane_operator.api import ModelCache, labels
from modelplane_operator.api.model_cache import ModelCacheStatus
from modelplane_operator.world import World

REQUEUE_AFTER = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    cache: ModelCache
    now: datetime


async def at_once() -> None:
    pass


async def slowly() -> None:
    await asyncio.sleep(600)


def toy(pause: Callable[[], Awaitable[None]] = at_once, *, restless: bool = False) -> Callable[[World], Controllers]:
    """An operator's controllers. `pause`: what each reconcile waits for; `restless`: whether it writes all the time."""

    async def observe(cache: ModelCache, clients: Clients) -> Seen:
        await pause()
        if cache.metadata.name == "deadly" and cache.metadata.annotations.get(labels.RETRY) != "mended":
            os.kill(os.getpid(), signal.SIGKILL)
        return Seen(cache, clients.now())

    def plan(seen: Seen) -> Plan:
        key, uid = seen.cache.key, seen.cache.metadata.uid
        owner = {labels.OWNER_UID: uid, labels.OWNER_KIND: "ModelCache"}
        owner |= {labels.OWNER_NAMESPACE: key.namespace, labels.OWNER_NAME: key.name}
        child: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": key.name, "namespace": key.namespace, "labels": owner},
            "data": {"writer": str(os.getpid()), **({"at": seen.now.isoformat()} if restless else {})},
        }
        conditions = (Ready.AVAILABLE.condition(seen.now, message="all of it"),)
        return Plan((Apply(child),), ModelCacheStatus(conditions=conditions), REQUEUE_AFTER if restless else None)

    watches = {} if restless else {CONFIG_MAP: owner_of_kind("ModelCache")}
    controller = Controller(ModelCache, observe, plan, watches=watches)
    return lambda _: (controller,)


if __name__ == "__main__":
    restless = bool(os.environ.get("TOY_RESTLESS"))
    main(toy(slowly if os.environ.get("TOY_SLOWLY") else at_once, restless=restless))
