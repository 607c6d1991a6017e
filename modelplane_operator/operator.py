"""Assemble and run the operator's components, from start to stop.

Watch: every process watches the hub and the workload clusters, standbys too.

Lead: once the hub's caches have synced, one process holds the lease and reconciles.

Stop: no new reconciles start, running ones get some seconds, the lease is released, and connections are closed.
"""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from kubeloop.backoff import Backoff
from kubeloop.cache.connection import Connection
from kubeloop.cache.fleet import Fleet
from kubeloop.cache.initial_sync import INITIAL_SYNCS
from kubeloop.cache.prober import ConnectionPace
from kubeloop.cache.reflector import RETURNING, WatchPace
from kubeloop.cache.store import Store
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube
from kubeloop.client.limits import OF_HUB, Bucket, ServerLimits, Share
from kubeloop.events import Recorder
from kubeloop.gauges import Gauge, Gauges
from kubeloop.health import LoopProbe, blind, stuck
from kubeloop.helm.driver import Helm
from kubeloop.lease import Lease
from kubeloop.loop import Clients
from kubeloop.objects import Key, Manifest
from kubeloop.probes import serving
from kubeloop.quarantine import UNGUARDED, Guard
from kubeloop.queue import QueuePace
from kubeloop.resource import of
from kubeloop.steps import KUBE
from kubeloop.types import HUB, ResourceType
from kubeloop.watched import Controllers, watched
from kubeloop.wiring import Runners, runner
from modelplane_operator.api import KINDS, names, reasons
from modelplane_operator.ask.admission.webhook import Webhook, webhook
from modelplane_operator.clusters.stack.digests import tested_archive
from modelplane_operator.metrics import Metrics, State
from modelplane_operator.printer_columns import glance
from modelplane_operator.settings import Settings
from modelplane_operator.world import World

REMEDY = "kubectl apply --server-side --force-conflicts -f crds/"
CONTROLLER = "modelplane.ai/operator"  # the reporting controller of Events
OURS = frozenset(map(of, KINDS))
POLL_INTERVAL = 0.2  # until the hub's first lists are complete
STOP_GRACE = 5.0  # seconds
CLUSTER_PAUSE = 120.0  # seconds; the first backoff of a misbehaving cluster
CLUSTER_EVENTS = 400.0  # per second, from one workload cluster, after a burst
LONGEST_PAUSE = 15  # maximum backoff of a misbehaving cluster, as a multiple of the first
PROBATION = 20.0  # seconds; enough for a cluster's lists and watches to show whether it behaves
OF_OUR_KINDS = Backoff(first=30.0, longest=30.0)  # until kinds that the hub lacks are requested again
BURST = 25  # seconds' worth of events that a cluster may send in a burst: the events of a thousand starting replicas

Build = Callable[[World], Controllers]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Operator:
    """All components of an operator, created by `assemble` and started by `run`."""

    settings: Settings
    hub: Connection
    fleet: Fleet
    lease: Lease
    runners: Runners
    loop_probe: LoopProbe
    recorder: Recorder
    """Writer of Events."""
    metrics: Metrics
    helm: Helm | None = None
    """Helm driver; None if the operator installs no charts."""
    guard: Guard = UNGUARDED
    """Quarantine for objects that killed the process."""
    webhook: Webhook | None = None
    """Admission webhook; None if it is disabled."""
    name: str = "operator"
    """Name of the program, for its metrics: `operator`, or `hub-gateway`."""
    stop_grace: float = STOP_GRACE
    """Seconds that running reconciles and Helm have at a stop."""
    _hub_seen: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Event that is set once the hub's caches have synced."""

    @property
    def missing(self) -> tuple[ResourceType, ...]:
        """Return the operator's own types that the hub does not serve."""
        return tuple(informer.type for informer in self.hub.informers if informer.type in OURS and not informer.served)

    @property
    def ready(self) -> bool:
        """True if the hub's caches have synced, so that this process could lead."""
        return not self.unready()

    def unready(self) -> tuple[str, ...]:
        """Return what this process waits for before it can lead."""
        if self.missing:
            return (f"the hub has no definitions of {_join_kinds(self.missing)}",)
        unsynced = tuple(informer.type for informer in self.hub.informers if not informer.synced)
        return (f"not seen yet: {_join_kinds(unsynced)}",) if unsynced else ()

    def unfit(self) -> tuple[str, ...]:
        """Return why this process is not ready: it could not lead, or its watches of the hub have stalled."""
        return self.unready() or tuple(blind(self.hub, self.loop_probe.now()))

    def stuck(self) -> tuple[str, ...]:
        """Return problems that only a restart can fix."""
        at_work = [*self.runners] if self.lease.held else []
        return tuple(stuck(self.loop_probe, self.hub, at_work, leading=bool(at_work)))

    async def run(self, stop: asyncio.Event) -> None:
        """Watch, and lead while holding the lease, until `stop` is set."""
        pages = serving(self.settings.listen, health=self.stuck, readiness=self.unfit, metrics=self.metrics.registry)
        async with pages, asyncio.TaskGroup() as group:
            background = [
                group.create_task(part.run(), name=type(part).__name__)
                for part in (self.hub, self.loop_probe, self.recorder)
            ]
            background.append(group.create_task(self._connect_clusters(), name="fleet"))
            leader = group.create_task(self._lead(), name="lead")
            await stop.wait()
            log.info("stopping")
            for item in self.runners:
                item.workers.stop()
            grace = self.stop_grace
            unfinished = {leader} if self.lease.held else set[asyncio.Task[None]]()
            if self.helm is not None:
                unfinished.add(group.create_task(self.helm.close(grace), name="helm"))
            if unfinished:
                await asyncio.wait(unfinished, timeout=grace)
            leader.cancel()
            await asyncio.wait({leader})  # it releases the lease, which needs the hub
            for task in background:
                task.cancel()
        log.info("stopped")

    async def _lead(self) -> None:
        """Wait for the caches, then take part in the leader election."""
        await self._wait_for_caches()
        gc.collect(1)  # a full collection would take a second for 25,000 objects and free next to nothing
        gc.freeze()
        async with asyncio.TaskGroup() as group:
            electing = group.create_task(self.lease.run(), name="lease")
            await self.lease.lead(self._reconcile)
            electing.cancel()

    async def _wait_for_caches(self) -> None:
        """Wait until the hub's caches have synced, and log which CRDs are missing."""
        reported: tuple[ResourceType, ...] = ()
        while not self.ready:
            if self.hub.synced and self.missing != reported:
                reported = self.missing
                log.error("definitions missing", kinds=_join_kinds(reported), remedy=REMEDY)
            await asyncio.sleep(POLL_INTERVAL)
        log.info("hub seen", objects=sum(informer.count for informer in self.hub.informers))
        self._hub_seen.set()

    async def _connect_clusters(self) -> None:
        """Keep the connections to workload clusters, once the hub's caches have synced.

        Decisions do not wait for them.
        """
        await self._hub_seen.wait()
        await self.fleet.run()

    async def _reconcile(self) -> None:
        """Reconcile while leading.

        All objects are enqueued first, since no event reports what another leader left unfinished.
        """
        for connection in self.fleet:
            connection.invalidate()
        self.runners.look_at_all(self.hub)
        async with asyncio.TaskGroup() as group:
            trusted = group.create_task(self.webhook.keep_trusted()) if self.webhook else None
            await self.runners.work()
            if trusted:
                trusted.cancel()


def assemble(
    settings: Settings, access: Access, build: Build, guard: Guard = UNGUARDED, name: str = "operator"
) -> Operator:
    """Create an operator for a hub. No request is sent before it runs."""
    clock, metrics, helm, runners = asyncio.get_running_loop().time, Metrics(), _create_helm(settings), Runners()
    store = Store(clock)
    pace = ConnectionPace(pause=RETURNING, probation=0.0, watch=WatchPace(unserved=OF_OUR_KINDS))
    on_call = metrics.calls(HUB)
    hub = Connection(HUB, access, (), store, chance=random.random, on_call=on_call, limits=OF_HUB, pace=pace)
    fleet = Fleet(store, _cluster_opener(settings, store, metrics, runners, helm))

    def client() -> Kube:
        return hub.kube

    # Unique per process: a successor in the same pod must not take over the lease as its own.
    identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    key = Key(settings.lease_namespace, f"modelplane-{name}")
    lease = Lease(client, key, identity, clock, random.random, settings.times)
    if helm:
        helm.may_write = lease.check
    recorder = Recorder(client, CONTROLLER, identity, reasons.find, clock, metrics.event)
    world = World(
        settings,
        fleet,
        client,
        _wall_clock,
        runners.connection_changed,
        metrics.scheduled,
        runners.wake,
        metrics.checked,
        helm,
    )
    controllers = build(world)
    executors = {
        **KUBE,
        **{step: executor for controller in controllers for step, executor in controller.executors.items()},
    }
    clients = Clients(
        hub, fleet.cluster, lease.check, _wall_clock, recorder.record, executors=executors, printer_columns=glance
    )
    resync, reconciled = QueuePace(resync=settings.resync), metrics.reconciled
    for controller in controllers:
        new_runner = runner(controller, clients, on_reconciled=reconciled, pace=resync, guard=guard)
        runners.add(new_runner)
    own_types = OURS if name == "operator" else frozenset(controller.type for controller in controllers)
    local, remote = watched(controllers, own_types, names.SYSTEM_NAMESPACE)
    hub.watch(local)
    runners.listen(hub)

    def on_open(connection: Connection) -> None:
        """Watch the remote types on a new connection."""
        connection.watch(remote)
        runners.listen(connection)
        if helm:
            helm.forget(connection.name)

    fleet.on_open(on_open)
    on_write = webhook(
        settings.admission_listen, settings.admission_name, clients, controllers, settings.admission_clients
    )
    operator = Operator(
        settings, hub, fleet, lease, runners, LoopProbe(clock), recorder, metrics, helm, guard, on_write, name
    )
    metrics.registry.register(State(operator))
    metrics.registry.register(Gauges(lambda: _gauge_sources(controllers, hub) if lease.held else ()))
    return operator


def _gauge_sources(controllers: Controllers, hub: Connection) -> Iterator[tuple[Gauge, Iterable[Manifest]]]:
    """Return the gauges of all controllers with the objects that they count."""
    return ((gauge, hub.find(controller.type) or ()) for controller in controllers for gauge in controller.gauges)


def _cluster_opener(
    settings: Settings, store: Store, metrics: Metrics, runners: Runners, helm: Helm | None
) -> Callable[[str, Access], Connection]:
    """Return a function that opens connections to workload clusters."""
    slots, first = asyncio.Semaphore(INITIAL_SYNCS), CLUSTER_PAUSE
    limits, events = ServerLimits().scale(settings.cluster_limits), CLUSTER_EVENTS * settings.cluster_limits
    pace = ConnectionPace(pause=Backoff(first=first, longest=LONGEST_PAUSE * first), probation=min(first, PROBATION))

    def on_return(name: str) -> None:
        """Reset the errors of a cluster that responds again, and enqueue what depends on it."""
        if helm:
            helm.forgive(name)
        runners.connection_changed(name, returned=True)

    def open_connection(name: str, access: Access) -> Connection:
        """Open a connection with the limits of workload clusters."""
        return Connection(
            name,
            access,
            (),
            store,
            chance=random.random,
            on_call=metrics.calls(name),
            on_health=runners.health_changed,
            on_return=on_return,
            on_unauthorized=runners.unauthorized,
            slots=slots,
            pace=pace,
            limits=limits,
            share=Share(store.now, Bucket(events, BURST * events)),
        )

    return open_connection


def _create_helm(settings: Settings) -> Helm | None:
    """Return the Helm driver; None if no executable is configured."""
    if not settings.helm:
        return None
    return Helm(
        _wall_clock,
        executable=settings.helm,
        mirror=settings.chart_mirror,
        tested=tested_archive if settings.chart_digests == "checked" else None,
        memory=settings.helm_memory,
        environment=settings.helms_environment(),
    )


def _join_kinds(types: Iterable[ResourceType]) -> str:
    return ", ".join(kind.kind for kind in types)


def _wall_clock() -> datetime:
    return datetime.now(UTC)
