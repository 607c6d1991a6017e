"""Who is woken by what: changes that the watches see, turned into keys in queues, and the workers that run them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from kubeloop import tracing
from kubeloop.cache.connection import Connection
from kubeloop.cache.indexes import Index
from kubeloop.cache.informer import Informer
from kubeloop.cache.prober import Health
from kubeloop.client.errors import origin
from kubeloop.loop import Change, Clients, Controller, Mapper, reconcile
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, key_of, labels_of
from kubeloop.quarantine import UNGUARDED, Guard, subject
from kubeloop.queue import Failed, Outcome, Queue, QueuePace
from kubeloop.reading import Cluster, find
from kubeloop.throttle import Throttle
from kubeloop.types import HUB, ResourceType
from kubeloop.workers import Serial, Workers

WORKERS = 16  # of a kind whose objects do not wait for each other
PER_CONCURRENCY_KEY = 4

T = TypeVar("T")

log = structlog.get_logger()

OnReconciled = Callable[[str, Outcome, float], None]
"""Told the kind, what became of it, and the seconds that took, for metrics."""


def owner_of_kind(kind: str) -> Mapper:
    """Wakes the owner that the labels name, when it is of that kind."""

    def owner(change: Change, _: Cluster) -> Iterable[Key]:
        for manifest in filter(None, change):
            named = labels_of(manifest)
            if named.get(names().owner_kind) == kind:
                yield Key(named.get(names().owner_namespace, ""), named.get(names().owner_name, ""))

    return owner


def everyone(kind: ResourceType) -> Mapper:
    """Wakes all objects of a type on the hub."""

    def all_of_them(_: Change, hub: Cluster) -> Iterable[Key]:
        informer = hub.find(kind)
        return informer.keys() if informer else ()

    return all_of_them


def begins(index: Index) -> Mapper:
    """Wakes an object that an index begins to find, as for what its status has come to say: who looked there while that
    status was on its way has passed it over."""

    def began(change: Change, _: Cluster) -> Iterable[Key]:
        before, after = (bool(one and [*index(one)]) for one in change)
        return (key_of(change.latest),) if after and not before else ()

    return began


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


def _named(manifest: Manifest, fields: Iterable[str]) -> tuple[Any, ...]:
    metadata = manifest["metadata"]
    return tuple(metadata.get(name) for name in fields)


@dataclass(frozen=True, slots=True)
class Runner:
    """One controller at work. What is heard before that is not followed: then all objects are looked at anyway."""

    controller: Controller[Any, Any]
    clients: Clients
    workers: Workers[Key]
    throttle: Throttle[Key]

    def listen(self, informer: Informer) -> None:
        """Be woken by what concerns this controller in an informer."""
        hub = informer.cluster == HUB
        mappers = self.controller.watches if hub else self.controller.remote_watches
        if hub and informer.type == self.controller.type:
            informer.subscribe(self._own)
            informer.on_trouble(self.workers.add)
        if mapper := mappers.get(informer.type):
            informer.subscribe(self._other(mapper, informer.cluster))

    def connection_changed(self, cluster: str, *, returned: bool = False) -> None:
        """A workload cluster ceases to answer, or another way leads to it; `returned`: it answers again."""
        if not self.workers.at_work:
            return
        try:
            for key in self.controller.on_connection(cluster, self.clients.hub):
                self._wake(key, cluster, forgiven=returned)
        except Exception as error:  # an object of the hub on which this fails is no trouble of the connection's
            kind = self.controller.type.kind
            if so_far := self.clients.repeats.worth(("nobody woken", kind, type(error), origin(error))):
                log.error("nobody woken", kind=kind, cluster=cluster, so_far=so_far, exc_info=error)

    def _own(self, key: Key, old: Manifest | None, new: Manifest | None) -> None:
        if self.workers.at_work and concerns(old, new):
            self.workers.add(key, edited=edits(old, new))

    def _other(self, mapper: Mapper, cluster: str) -> Callable[[Key, Manifest | None, Manifest | None], None]:
        def heard(_: Key, old: Manifest | None, new: Manifest | None) -> None:
            if self.workers.at_work:
                for key in mapper(Change(old, new, cluster), self.clients.hub):
                    self._wake(key, cluster)

        return heard

    def _wake(self, key: Key, cluster: str, *, forgiven: bool = False) -> None:
        if cluster == HUB:
            self.workers.add(key)
        elif find(self.clients.hub, self.controller.type, key):  # else labels there name what was never here
            self.throttle.wake(key, cluster, forgiven=forgiven)


def runner(
    controller: Controller[Any, Any],
    clients: Clients,
    *,
    on_reconciled: OnReconciled,
    chance: Callable[[], float] = random.random,
    pace: QueuePace | None = None,
    workers: int = WORKERS,
    guard: Guard = UNGUARDED,
) -> Runner:
    """A controller with its queue and its workers."""

    def place(key: Key) -> tuple[str, str]:
        informer = clients.hub.find(controller.type)
        manifest = informer.get(key) if informer else None
        try:
            return key.namespace, controller.concurrency_key(manifest) if manifest else ""
        except Exception:  # noqa: BLE001 - the reconcile will say what is wrong with it
            return key.namespace, ""

    routine = max(1, workers - PER_CONCURRENCY_KEY)
    queue = Queue[Key](
        place, chance, limit=PER_CONCURRENCY_KEY, workers=workers, pace=pace or QueuePace(), routine=routine
    )
    serial = Serial() if controller.serial else None

    async def run(key: Key) -> Outcome:
        informer = clients.hub.find(controller.type)
        manifest = informer.latest(key) if informer else None
        began, kind = time.monotonic(), controller.type.kind
        one = subject(kind, key, manifest or {"metadata": {}})
        held, failures = guard.holds(one), queue.failures(key)
        with tracing.reconcile(kind, key) as span:
            async with nullcontext() if held else guard.reconciling(one):
                outcome = await reconcile(controller, key, clients, failures=failures, lock=serial, quarantined=held)
            span.tell("modelplane.outcome", type(outcome).__name__)
            if isinstance(outcome, Failed):
                span.fail(Failed.__name__)
        on_reconciled(controller.type.kind, outcome, time.monotonic() - began)
        return outcome

    known = Workers(queue, run, workers, serial)
    return Runner(controller, clients, known, Throttle(known))


@dataclass(slots=True)
class Runners:
    """All controllers at work. It is there before they are: then what it is told concerns nobody."""

    _all: list[Runner] = field(default_factory=list[Runner], init=False)

    def __iter__(self) -> Iterator[Runner]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, one: Runner) -> None:
        self._all.append(one)

    def listen(self, connection: Connection) -> None:
        """Follow all that is watched of a cluster; of the hub, what is kept beside the store comes first."""
        listeners = self._declared(lambda one: one.listeners) if connection.name == HUB else ()
        for informer in connection.informers:
            for listen in listeners:
                listen(informer)
            for one in self:
                one.listen(informer)

    def look_at_all(self, hub: Cluster) -> None:
        """Begin with all objects of all kinds."""
        for one in self:
            informer = hub.find(one.controller.type)
            one.workers.look_at(informer.keys() if informer else ())

    def wake(self, kind: ResourceType, key: Key) -> None:
        """There is news of an object that no watch tells."""
        for one in self:
            if one.controller.type == kind:
                one.workers.add(key)

    def health_changed(self, cluster: str, health: Health) -> None:
        """A workload cluster begins or ceases to answer, or to serve a type that is watched."""
        for told in self._declared(lambda one: one.on_health):
            told(cluster, health)
        if not health.renewing:  # or all that is woken fails once more
            self.connection_changed(cluster)

    def unauthorized(self, cluster: str) -> None:
        """A workload cluster does not accept our credentials."""
        for told in self._declared(lambda one: one.on_unauthorized):
            told(cluster)

    def connection_changed(self, cluster: str, *, returned: bool = False) -> None:
        """There is other news of the way to a workload cluster; `returned`: it answers again."""
        for one in self:
            one.connection_changed(cluster, returned=returned)

    @property
    def while_leading(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """What controllers have run beside reconciles."""
        return self._declared(lambda one: one.while_leading)

    async def work(self) -> None:
        """Reconcile until told to stop, and run meanwhile what is to run beside."""
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(one()) for one in self.while_leading]
            async with asyncio.TaskGroup() as reconciles:
                for one in self:
                    reconciles.create_task(one.workers.run(), name=one.controller.type.kind)
            for task in beside:
                task.cancel()

    def _declared(self, of: Callable[[Controller[Any, Any]], Iterable[T]]) -> tuple[T, ...]:
        """What controllers declare, each once: several may share it."""
        return tuple(dict.fromkeys(each for one in self for each in of(one.controller)))
