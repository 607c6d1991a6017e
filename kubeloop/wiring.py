"""The wiring of controllers: mappers turn changes from informers into keys in queues, and workers reconcile the
keys."""

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

WORKERS = 16  # of each kind; those of a serial kind reconcile one object at a time
PER_CONCURRENCY_KEY = 4

T = TypeVar("T")

log = structlog.get_logger()

OnReconciled = Callable[[str, Outcome, float], None]
"""Called with the kind, the outcome and the duration in seconds, for metrics."""


def owner_of_kind(kind: str) -> Mapper:
    """Return a mapper to the owner that the owner labels name, if it is of this kind."""

    def map_to_owner(change: Change, _: Cluster) -> Iterable[Key]:
        for manifest in filter(None, change):
            labels = labels_of(manifest)
            if labels.get(names().owner_kind) == kind:
                yield Key(labels.get(names().owner_namespace, ""), labels.get(names().owner_name, ""))

    return map_to_owner


def everyone(kind: ResourceType) -> Mapper:
    """Return a mapper to all objects of a type on the hub."""

    def map_to_all(_: Change, hub: Cluster) -> Iterable[Key]:
        informer = hub.find(kind)
        return informer.keys() if informer else ()

    return map_to_all


def begins(index: Index) -> Mapper:
    """Return a mapper to an object that an index begins to find.

    A reader of that index that ran before the change arrived has missed the object, so the object itself is reconciled.
    """

    def map_new_match(change: Change, _: Cluster) -> Iterable[Key]:
        old_match, new_match = (bool(manifest and [*index(manifest)]) for manifest in change)
        return (key_of(change.latest),) if new_match and not old_match else ()

    return map_new_match


def concerns(old: Manifest | None, new: Manifest | None) -> bool:
    """True if a change concerns the object's own controller. Changes of the status do not: the controller writes it."""
    if old is None or new is None:
        return True
    return _select_fields(old, _RELEVANT_FIELDS) != _select_fields(new, _RELEVANT_FIELDS)


def edits(old: Manifest | None, new: Manifest | None) -> bool:
    """True if a person or another client has changed the object, which ends any pause that a server asked for."""
    return old is None or new is None or _select_fields(old, _EDITED_FIELDS) != _select_fields(new, _EDITED_FIELDS)


# Metadata that other clients change, and what matters to the object's own controller besides.
_EDITED_FIELDS = ("uid", "generation", "labels", "annotations", "deletionTimestamp")
_RELEVANT_FIELDS = (*_EDITED_FIELDS, "finalizers")


def _select_fields(manifest: Manifest, fields: Iterable[str]) -> tuple[Any, ...]:
    """Return these fields of an object's metadata."""
    metadata = manifest["metadata"]
    return tuple(metadata.get(name) for name in fields)


@dataclass(frozen=True, slots=True)
class Runner:
    """One controller with its queue and workers.

    Events before the workers start are ignored: all objects are enqueued then.
    """

    controller: Controller[Any, Any]
    clients: Clients
    workers: Workers[Key]
    throttle: Throttle[Key]

    def add_event_handlers(self, informer: Informer) -> None:
        """Subscribe to the changes in an informer that concern this controller."""
        cluster = informer.cluster
        is_hub = cluster == HUB
        mappers = self.controller.watches if is_hub else self.controller.remote_watches
        if is_hub and informer.type == self.controller.type:
            informer.subscribe(self._on_own_change)
            informer.on_error(self.workers.add)
        if mapper := mappers.get(informer.type):

            def enqueue_mapped(_: Key, old: Manifest | None, new: Manifest | None) -> None:
                if self.workers.at_work:
                    for key in mapper(Change(old, new, cluster), self.clients.hub):
                        self._enqueue(key, cluster)

            informer.subscribe(enqueue_mapped)

    def connection_changed(self, cluster: str, *, returned: bool = False) -> None:
        """Enqueue the objects that depend on a workload cluster whose connection changed.

        `returned`: it is reachable again.
        """
        if not self.workers.at_work:
            return
        try:
            for key in self.controller.on_connection(cluster, self.clients.hub):
                self._enqueue(key, cluster, forgiven=returned)
        except Exception as error:  # a mapper that fails must not end the connection
            kind = self.controller.type.kind
            if so_far := self.clients.repeats.worth(("nobody woken", kind, type(error), origin(error))):
                log.error("nobody woken", kind=kind, cluster=cluster, so_far=so_far, exc_info=error)

    def _on_own_change(self, key: Key, old: Manifest | None, new: Manifest | None) -> None:
        """Enqueue an object of this kind that has changed."""
        if self.workers.at_work and concerns(old, new):
            self.workers.add(key, edited=edits(old, new))

    def _enqueue(self, key: Key, cluster: str, *, forgiven: bool = False) -> None:
        """Enqueue a key, at a limited rate if the event comes from a workload cluster.

        `forgiven` resets its failure count.
        """
        if cluster == HUB:
            self.workers.add(key)
        elif find(self.clients.hub, self.controller.type, key):  # labels on clusters may name missing objects
            self.throttle.wake(key, cluster, forgiven=forgiven)


def runner(
    controller: Controller[Any, Any],
    clients: Clients,
    *,
    on_reconciled: OnReconciled,
    jitter: Callable[[], float] = random.random,
    pace: QueuePace | None = None,
    workers: int = WORKERS,
    guard: Guard = UNGUARDED,
) -> Runner:
    """Create the queue and the workers of a controller."""

    def locate(key: Key) -> tuple[str, str]:
        """Return the namespace and the concurrency key of a key."""
        informer = clients.hub.find(controller.type)
        manifest = informer.get(key) if informer else None
        try:
            return key.namespace, controller.concurrency_key(manifest) if manifest else ""
        except Exception:  # noqa: BLE001 - the reconcile will say what is wrong with it
            return key.namespace, ""

    routine = max(1, workers - PER_CONCURRENCY_KEY)
    queue = Queue[Key](
        locate, jitter, limit=PER_CONCURRENCY_KEY, workers=workers, pace=pace or QueuePace(), routine=routine
    )
    serial = Serial() if controller.serial else None

    async def run_key(key: Key) -> Outcome:
        """Reconcile one key, traced and measured, and recorded for the quarantine."""
        informer = clients.hub.find(controller.type)
        manifest = informer.latest(key) if informer else None
        started_at, kind = time.monotonic(), controller.type.kind
        quarantine_subject = subject(kind, key, manifest or {"metadata": {}})
        quarantined, failures = guard.holds(quarantine_subject), queue.failures(key)
        with tracing.reconcile(kind, key) as span:
            async with nullcontext() if quarantined else guard.record_run(quarantine_subject):
                outcome = await reconcile(
                    controller, key, clients, failures=failures, lock=serial, quarantined=quarantined
                )
            span.tell("modelplane.outcome", type(outcome).__name__)
            if isinstance(outcome, Failed):
                span.fail(Failed.__name__)
        on_reconciled(controller.type.kind, outcome, time.monotonic() - started_at)
        return outcome

    pool = Workers(queue, run_key, workers, serial)
    return Runner(controller, clients, pool, Throttle(pool))


@dataclass(slots=True)
class Runners:
    """The runners of all controllers. Empty until they are added, so that earlier events concern no controller."""

    _all: list[Runner] = field(default_factory=list[Runner], init=False)

    def __iter__(self) -> Iterator[Runner]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, runner: Runner) -> None:
        """Add the runner of a controller."""
        self._all.append(runner)

    def add_event_handlers(self, connection: Connection) -> None:
        """Subscribe all controllers to the informers of a cluster.

        On the hub, the controllers' `listeners` are called first.
        """
        hub_listeners = self._collect(lambda item: item.listeners) if connection.name == HUB else ()
        for informer in connection.informers:
            for listen in hub_listeners:
                listen(informer)
            for item in self:
                item.add_event_handlers(informer)

    def enqueue_all(self, hub: Cluster) -> None:
        """Enqueue all objects of all kinds."""
        for runner in self:
            informer = hub.find(runner.controller.type)
            runner.workers.enqueue_all(informer.keys() if informer else ())

    def wake(self, kind: ResourceType, key: Key) -> None:
        """Enqueue an object after an event that no watch delivers."""
        for runner in self:
            if runner.controller.type == kind:
                runner.workers.add(key)

    def health_changed(self, cluster: str, health: Health) -> None:
        """Report the new health of a workload cluster to the controllers, and enqueue the objects that depend on it."""
        for on_health in self._collect(lambda controller: controller.on_health):
            on_health(cluster, health)
        if not health.renewing:  # else every enqueued object would fail once more
            self.connection_changed(cluster)

    def on_unauthorized(self, cluster: str) -> None:
        """Report to the controllers that a workload cluster rejects our credentials."""
        for on_unauthorized in self._collect(lambda controller: controller.on_unauthorized):
            on_unauthorized(cluster)

    def connection_changed(self, cluster: str, *, returned: bool = False) -> None:
        """Enqueue the objects that depend on a workload cluster whose connection changed.

        `returned`: it is reachable again.
        """
        for runner in self:
            runner.connection_changed(cluster, returned=returned)

    @property
    def while_leading(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """The background tasks of all controllers."""
        return self._collect(lambda controller: controller.while_leading)

    async def work(self) -> None:
        """Reconcile until the workers are stopped, and run the background tasks meanwhile."""
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(item()) for item in self.while_leading]
            async with asyncio.TaskGroup() as reconciles:
                for item in self:
                    reconciles.create_task(item.workers.run(), name=item.controller.type.kind)
            for task in background:
                task.cancel()

    def _collect(self, declared_by: Callable[[Controller[Any, Any]], Iterable[T]]) -> tuple[T, ...]:
        """Return what the controllers declare, each item once, since several controllers may share it."""
        return tuple(dict.fromkeys(item for runner in self for item in declared_by(runner.controller)))
