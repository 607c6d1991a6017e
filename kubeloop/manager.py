"""The manager of one process: watches on every cluster, leader election, and reconciles while the process leads.

Watch: every process watches the hub and the workload clusters, standbys too.

Lead: once the hub's caches have synced, one process holds the lease and reconciles.

Stop: no new reconciles start, running ones get some seconds, the lease is released, and connections are closed.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import structlog

from kubeloop.cache.connection import Connection, OnReturn
from kubeloop.cache.fleet import Fleet
from kubeloop.cache.initial_sync import INITIAL_SYNCS
from kubeloop.cache.prober import ConnectionPace
from kubeloop.cache.store import Store
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube
from kubeloop.client.limits import OF_HUB, ServerLimits, Share
from kubeloop.client.wire import OnCall, ignore_count
from kubeloop.condition_types import Condition, ConditionType
from kubeloop.events import Recorder
from kubeloop.health import LoopProbe, blind, find_stuck
from kubeloop.lease import Lease, Times, wall_clock
from kubeloop.loop import Clients
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest
from kubeloop.quarantine import UNGUARDED, Guard
from kubeloop.queue import Outcome, QueuePace
from kubeloop.steps import KUBE
from kubeloop.types import HUB, ResourceType
from kubeloop.watched import Controllers, collect_watches
from kubeloop.wiring import WORKERS, Runners, runner

POLL_INTERVAL = 0.2  # seconds until the first lists of the hub are checked again

Task = Callable[[], Coroutine[Any, Any, None]]

log = structlog.get_logger()


class Measures(Protocol):
    """Counts what a manager does."""

    def calls(self, cluster: str) -> OnCall:
        """Return a callback that counts the requests to a cluster."""
        ...

    def event(self, kind: str, outcome: str) -> None:
        """Count an Event."""
        ...

    def count_reconcile(self, kind: str, outcome: Outcome, seconds: float) -> None:
        """Count a reconcile and its duration."""
        ...


class Unmeasured:
    """Counts nothing."""

    def calls(self, cluster: str) -> OnCall:
        return ignore_count

    def event(self, kind: str, outcome: str) -> None: ...

    def count_reconcile(self, kind: str, outcome: Outcome, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How connections to workload clusters work."""

    pace: ConnectionPace | None = None
    limits: ServerLimits | None = None
    share: Callable[[], Share] | None = None
    """Returns the limit for the events of one cluster."""
    on_return: OnReturn = lambda _: None
    """Called when a cluster is reachable again, before the objects that depend on it are enqueued."""


@dataclass(frozen=True, slots=True)
class Manager:
    """The connections and controllers of one process. `create` makes one, `add` gives it controllers, `run` runs it."""

    hub: Connection
    fleet: Fleet
    """The connections to workload clusters: `set` adds one, `remove` ends one."""
    lease: Lease
    clients: Clients
    recorder: Recorder
    """Writer of Events."""
    measures: Measures
    executors: dict[type[Any], Any]
    """The executors of all steps, those of the controllers included."""
    runners: Runners = field(default_factory=Runners)
    loop_probe: LoopProbe = field(default_factory=lambda: LoopProbe(asyncio.get_running_loop().time))
    guard: Guard = UNGUARDED
    """Quarantine for objects that killed the process."""
    own_types: set[ResourceType] = field(default_factory=set[ResourceType])
    """The types without which this process cannot lead."""
    _synced: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the hub's caches have synced."""

    @classmethod
    def create(
        cls,
        access: Access,
        *,
        identity: str,
        lease: Key,
        component: str,
        times: Times | None = None,
        reason_of: Callable[[str, Condition], ConditionType | None] = lambda _, __: None,
        printer_columns: Callable[[Manifest, Manifest], Manifest] = lambda _, status: status,
        measures: Measures | None = None,
        hub_pace: ConnectionPace | None = None,
        clusters: ClusterOptions | None = None,
        guard: Guard = UNGUARDED,
        now: Callable[[], datetime] = wall_clock,
    ) -> Manager:
        """Create a manager for a hub. No request is sent before it runs.

        `identity` must be unique among all processes that ever run, and `component` is the source of Events.
        `reason_of` returns the declared reason of a condition of a kind; Events are made for declared reasons only.
        """
        clock, runners = asyncio.get_running_loop().time, Runners()
        measured: Measures = measures or Unmeasured()
        store = Store(clock)
        hub = Connection(
            HUB, access, (), store, jitter=random.random, on_call=measured.calls(HUB), limits=OF_HUB, pace=hub_pace
        )
        fleet = Fleet(store, _cluster_opener(store, measured, runners, clusters or ClusterOptions()))

        def client() -> Kube:
            return hub.kube

        election = Lease(client, lease, identity, clock, random.random, times or Times())
        recorder = Recorder(client, component, identity, reason_of, clock, measured.event)
        executors: dict[type[Any], Any] = {**KUBE}
        clients = Clients(
            hub,
            fleet.cluster,
            election.check,
            now,
            recorder.record,
            executors=executors,
            printer_columns=printer_columns,
        )
        return cls(hub, fleet, election, clients, recorder, measured, executors, runners, LoopProbe(clock), guard)

    def add(
        self,
        controllers: Controllers,
        *,
        own_types: Iterable[ResourceType] | None = None,
        resync: float | None = None,
        workers: int = WORKERS,
        on_open: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Add all controllers, once and before `run`.

        `own_types` are the types that only this operator serves; by default those of the controllers. `on_open` is
        called with the name of each workload cluster that gets a connection.
        """
        self.own_types.update(own_types if own_types is not None else (item.type for item in controllers))
        pace = QueuePace() if resync is None else QueuePace(resync=resync)
        for controller in controllers:
            self.executors.update(controller.executors)
            self.runners.add(
                runner(
                    controller,
                    self.clients,
                    on_reconciled=self.measures.count_reconcile,
                    pace=pace,
                    workers=workers,
                    guard=self.guard,
                )
            )
        local, remote = collect_watches(controllers, frozenset(self.own_types), names().system_namespace)
        self.hub.watch(local)
        self.runners.add_event_handlers(self.hub)

        def watch_cluster(connection: Connection) -> None:
            """Watch the remote types on a new connection."""
            connection.watch(remote)
            self.runners.add_event_handlers(connection)
            on_open(connection.name)

        self.fleet.on_open(watch_cluster)

    @property
    def missing(self) -> tuple[ResourceType, ...]:
        """The operator's own types that the hub does not serve."""
        return tuple(
            informer.type for informer in self.hub.informers if informer.type in self.own_types and not informer.served
        )

    @property
    def ready(self) -> bool:
        """True if the hub's caches have synced, so that this process could lead."""
        return not self.unready()

    def unready(self) -> tuple[str, ...]:
        """Return what this process waits for before it can lead."""
        if self.missing:
            return (f"the hub has no definitions of {_join_kinds(self.missing)}",)
        unsynced = tuple(informer.type for informer in self.hub.informers if not informer.synced)
        return (f"not listed yet: {_join_kinds(unsynced)}",) if unsynced else ()

    def unfit(self) -> tuple[str, ...]:
        """Return why this process is not ready: it could not lead, or its watches of the hub have stalled."""
        return self.unready() or tuple(blind(self.hub, self.loop_probe.now()))

    def find_stuck(self) -> tuple[str, ...]:
        """Return problems that only a restart can fix."""
        at_work = [*self.runners] if self.lease.is_held else []
        return tuple(find_stuck(self.loop_probe, self.hub, at_work, leading=bool(at_work)))

    async def run(
        self,
        stop: asyncio.Event,
        *,
        grace: float = 5.0,
        while_leading: Task | None = None,
        close: Callable[[float], Coroutine[Any, Any, None]] | None = None,
        remedy: str = "",
    ) -> None:
        """Watch, and lead while holding the lease, until `stop` is set.

        A stop waits `grace` seconds for running reconciles, and for `close`. `while_leading` runs background the
        reconciles. `remedy` is logged when the hub lacks definitions.
        """
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(part.run(), name=type(part).__name__)
                for part in (self.hub, self.loop_probe, self.recorder)
            ]
            background.append(group.create_task(self._connect_clusters(), name="fleet"))
            leader = group.create_task(self._lead(while_leading, remedy), name="lead")
            await stop.wait()
            log.info("stopping")
            for item in self.runners:
                item.workers.stop()
            unfinished = {leader} if self.lease.is_held else set[asyncio.Task[None]]()
            if close is not None:
                unfinished.add(group.create_task(close(grace), name="close"))
            if unfinished:
                await asyncio.wait(unfinished, timeout=grace)
            leader.cancel()
            await asyncio.wait({leader})  # it releases the lease, which needs the hub
            for task in background:
                task.cancel()
        log.info("stopped")

    async def _lead(self, while_leading: Task | None, remedy: str) -> None:
        """Wait for the caches, then take part in the leader election."""
        await self._wait_for_caches(remedy)
        gc.collect(1)  # a full collection would take a second for 25,000 objects and free next to nothing
        gc.freeze()

        async def reconcile() -> None:
            await self._reconcile(while_leading)

        async with asyncio.TaskGroup() as group:
            electing = group.create_task(self.lease.run(), name="lease")
            await self.lease.lead(reconcile)
            electing.cancel()

    async def _wait_for_caches(self, remedy: str) -> None:
        """Wait until the hub's caches have synced, and log which CRDs are missing."""
        reported: tuple[ResourceType, ...] = ()
        while not self.ready:
            if self.hub.synced and self.missing != reported:
                reported = self.missing
                log.error("CRDs missing", kinds=_join_kinds(reported), remedy=remedy)
            await asyncio.sleep(POLL_INTERVAL)
        log.info("caches synced", objects=sum(informer.count for informer in self.hub.informers))
        self._synced.set()

    async def _connect_clusters(self) -> None:
        """Keep the connections to workload clusters, once the hub's caches have synced.

        Decisions do not wait for them.
        """
        await self._synced.wait()
        await self.fleet.run()

    async def _reconcile(self, while_leading: Task | None) -> None:
        """Reconcile while leading.

        All objects are enqueued first, since no event reports what another leader left unfinished.
        """
        for connection in self.fleet:
            connection.invalidate()
        self.runners.enqueue_all(self.hub)
        async with asyncio.TaskGroup() as group:
            background = group.create_task(while_leading()) if while_leading else None
            await self.runners.work()
            if background:
                background.cancel()


def _cluster_opener(
    store: Store, measures: Measures, runners: Runners, options: ClusterOptions
) -> Callable[[str, Access], Connection]:
    """Return a function that opens connections to workload clusters."""
    slots = asyncio.Semaphore(INITIAL_SYNCS)

    def on_return(name: str) -> None:
        """Enqueue what depends on a cluster that responds again."""
        options.on_return(name)
        runners.connection_changed(name, returned=True)

    def open_connection(name: str, access: Access) -> Connection:
        """Open a connection with the limits of workload clusters."""
        return Connection(
            name,
            access,
            (),
            store,
            jitter=random.random,
            on_call=measures.calls(name),
            on_health=runners.health_changed,
            on_return=on_return,
            on_unauthorized=runners.on_unauthorized,
            slots=slots,
            pace=options.pace,
            limits=options.limits,
            share=options.share() if options.share else None,
        )

    return open_connection


def _join_kinds(types: Iterable[ResourceType]) -> str:
    return ", ".join(kind.kind for kind in types)
