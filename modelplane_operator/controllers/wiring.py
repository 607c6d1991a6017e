"""Who is woken by what: changes that the watches see, turned into keys in queues, and the workers that run them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import structlog

from modelplane_operator.api import labels
from modelplane_operator.api.base import Key
from modelplane_operator.api.model import Manifest
from modelplane_operator.clients.collection import Collection
from modelplane_operator.clients.errors import origin
from modelplane_operator.clients.resources import HUB, ResourceType, labels_of
from modelplane_operator.controllers.loop import Change, Clients, Controller, Waker, reconcile
from modelplane_operator.controllers.quarantine import UNGUARDED, Guard, subject
from modelplane_operator.controllers.queue import Outcome, Pace, Queue
from modelplane_operator.controllers.reading import Cluster, find
from modelplane_operator.controllers.throttle import Throttle
from modelplane_operator.controllers.workers import Workers

WORKERS = 16  # of a kind whose objects do not wait for each other
OF_ONE_LANE = 4

log = structlog.get_logger()

OnReconciled = Callable[[str, Outcome, float], None]
"""Told the kind, what became of it, and the seconds that took, for metrics."""


def owner_of_kind(kind: str) -> Waker:
    """Wakes the owner that the labels name, when it is of that kind."""

    def owner(change: Change, _: Cluster) -> Iterable[Key]:
        for manifest in filter(None, change):
            named = labels_of(manifest)
            if named.get(labels.OWNER_KIND) == kind:
                yield Key(named.get(labels.OWNER_NAMESPACE, ""), named.get(labels.OWNER_NAME, ""))

    return owner


def everyone(kind: ResourceType) -> Waker:
    """Wakes all objects of a type on the hub."""

    def all_of_them(_: Change, hub: Cluster) -> Iterable[Key]:
        collection = hub.find(kind)
        return collection.keys() if collection else ()

    return all_of_them


def concerns(old: Manifest | None, new: Manifest | None) -> bool:
    """Whether a change of an object concerns its own controller: its status is written by that very controller."""
    if old is None or new is None:
        return True
    return _named(old, _OF_INTEREST) != _named(new, _OF_INTEREST)


def edits(old: Manifest | None, new: Manifest | None) -> bool:
    """Whether somebody has changed what an object asks for: no pause that a server asked for holds that up."""
    return old is None or new is None or _named(old, _EDITED) != _named(new, _EDITED)


# What somebody else changes of an object, and what we do.
_EDITED = ("uid", "generation", "labels", "annotations", "deletionTimestamp")
_OF_INTEREST = (*_EDITED, "finalizers")


def _named(manifest: Manifest, names: Iterable[str]) -> tuple[Any, ...]:
    metadata = manifest["metadata"]
    return tuple(metadata.get(name) for name in names)


@dataclass(frozen=True, slots=True)
class Crew:
    """One controller at work."""

    controller: Controller[Any, Any]
    clients: Clients
    workers: Workers[Key]
    throttle: Throttle[Key]

    def listen(self, collection: Collection, *, hub: bool) -> None:
        """Be woken by what concerns this controller in a collection."""
        wakers = self.controller.woken_by if hub else self.controller.woken_from_afar_by
        if hub and collection.type == self.controller.type:
            collection.subscribe(self._own)
            collection.on_trouble(self.workers.add)
        if waker := wakers.get(collection.type):
            collection.subscribe(self._other(waker, collection.cluster))

    def connection_changed(self, cluster: str, *, returned: bool = False) -> None:
        """A workload cluster ceases to answer, or another way leads to it; `returned`: it answers again."""
        try:
            for key in self.controller.woken_by_connection(cluster, self.clients.hub):
                self._wake(key, cluster, forgiven=returned)
        except Exception as error:  # an object of the hub on which this fails is no trouble of the connection's
            kind = self.controller.type.kind
            if so_far := self.clients.repeats.worth(("nobody woken", kind, type(error), origin(error))):
                log.error("nobody woken", kind=kind, cluster=cluster, so_far=so_far, exc_info=error)

    def _own(self, key: Key, old: Manifest | None, new: Manifest | None) -> None:
        if concerns(old, new):
            self.workers.add(key, edited=edits(old, new))

    def _other(self, waker: Waker, cluster: str) -> Callable[[Key, Manifest | None, Manifest | None], None]:
        def heard(_: Key, old: Manifest | None, new: Manifest | None) -> None:
            for key in waker(Change(old, new, cluster), self.clients.hub):
                self._wake(key, cluster)

        return heard

    def _wake(self, key: Key, cluster: str, *, forgiven: bool = False) -> None:
        if cluster == HUB:
            self.workers.add(key)
        elif find(self.clients.hub, self.controller.type, key):  # else labels there name what was never here
            self.throttle.wake(key, cluster, forgiven=forgiven)


def crew(
    controller: Controller[Any, Any],
    clients: Clients,
    *,
    on_reconciled: OnReconciled,
    chance: Callable[[], float] = random.random,
    pace: Pace | None = None,
    workers: int = WORKERS,
    guard: Guard = UNGUARDED,
) -> Crew:
    """A controller with its queue and its workers."""

    def place(key: Key) -> tuple[str, str]:
        collection = clients.hub.find(controller.type)
        manifest = collection.get(key) if collection else None
        try:
            return key.namespace, controller.lane(manifest) if manifest else ""
        except Exception:  # noqa: BLE001 - the reconcile will say what is wrong with it
            return key.namespace, ""

    queue = Queue[Key](place, chance, limit=OF_ONE_LANE, pace=pace or Pace())
    turn = asyncio.Lock() if controller.serial else None

    async def run(key: Key) -> Outcome:
        began = time.monotonic()
        collection, kind = clients.hub.find(controller.type), controller.type.kind
        manifest = collection.latest(key) if collection else None
        one = subject(kind, key, manifest or {"metadata": {}})
        held, failures = guard.holds(one), queue.failures(key)
        async with nullcontext() if held else guard.reconciling(one):
            outcome = await reconcile(controller, key, clients, failures=failures, turn=turn, quarantined=held)
        on_reconciled(controller.type.kind, outcome, time.monotonic() - began)
        return outcome

    known = Workers(queue, run, workers)
    return Crew(controller, clients, known, Throttle(known))


async def work(crews: Iterable[Crew]) -> None:
    """Run all crews until they are stopped."""
    async with asyncio.TaskGroup() as group:
        for one in crews:
            group.create_task(one.workers.run(), name=one.controller.type.kind)


def wanted_types(
    controllers: Iterable[Controller[Any, Any]],
) -> tuple[frozenset[ResourceType], frozenset[ResourceType]]:
    """The types to watch on the hub, and on workload clusters."""
    known = tuple(controllers)

    def named(of: Callable[[Controller[Any, Any]], Mapping[ResourceType, Waker]]) -> Iterator[ResourceType]:
        return (kind for controller in known for kind in of(controller))

    hub = frozenset(one.type for one in known) | frozenset(named(lambda one: one.woken_by))
    return hub, frozenset(named(lambda one: one.woken_from_afar_by))
