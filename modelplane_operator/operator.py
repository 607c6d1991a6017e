"""The operator: its parts, in the order in which they begin and end.

watch     the hub, and every workload cluster that it names; standbys do so too
lead      once all of the hub has been seen, one of several operators holds the lease and reconciles
stop      no more reconciles begin, those that run have some seconds, the lease is given back, connections close
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
from kubeloop.client.limits import OF_HUB, Bucket, Share
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
CONTROLLER = "modelplane.ai/operator"  # what Events say that they come from
OURS = frozenset(map(of, KINDS))
POLL_INTERVAL = 0.2  # for the hub's first lists
LONGEST_PAUSE = 15  # times the first: of a cluster that misbehaves again and again
PROBATION = 20.0  # long enough for a cluster's lists and watches to show what they are like
OF_OUR_KINDS = Backoff(first=30.0, longest=30.0)  # until the hub is asked again for kinds that it lacks
BURST = 25  # seconds' worth of events that a cluster may send at once: all that a thousand replicas do when they start

Build = Callable[[World], Controllers]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Operator:
    """All parts of one operator, made by `assemble`; `run` brings them to life."""

    settings: Settings
    hub: Connection
    fleet: Fleet
    lease: Lease
    runners: Runners
    loop_probe: LoopProbe
    recorder: Recorder
    metrics: Metrics
    helm: Helm | None = None
    guard: Guard = UNGUARDED
    webhook: Webhook | None = None
    name: str = "operator"
    """Which of the programs that reconcile this is, for its metrics."""
    _hub_seen: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def missing(self) -> tuple[ResourceType, ...]:
        """Our own types that the hub does not have."""
        return tuple(one.type for one in self.hub.informers if one.type in OURS and not one.served)

    @property
    def ready(self) -> bool:
        """Whether all of the hub has been seen, so that this operator could lead."""
        return not self.unready()

    def unready(self) -> tuple[str, ...]:
        """What this operator waits for before it could lead."""
        if self.missing:
            return (f"the hub has no definitions of {_listed(self.missing)}",)
        unseen = tuple(one.type for one in self.hub.informers if not one.synced)
        return (f"not seen yet: {_listed(unseen)}",) if unseen else ()

    def unfit(self) -> tuple[str, ...]:
        """Why this operator should not be counted on: it could not lead, or no longer follows all of the hub."""
        return self.unready() or tuple(blind(self.hub, self.loop_probe.now()))

    def stuck(self) -> tuple[str, ...]:
        """What would not come loose without a restart."""
        at_work = [*self.runners] if self.lease.held else []
        return tuple(stuck(self.loop_probe, self.hub, at_work, leading=bool(at_work)))

    async def run(self, stop: asyncio.Event) -> None:
        """Watch and, when it is our turn, lead, until told to stop."""
        pages = serving(self.settings.listen, health=self.stuck, readiness=self.unfit, metrics=self.metrics.registry)
        async with pages, asyncio.TaskGroup() as group:
            background = [
                group.create_task(part.run(), name=type(part).__name__)
                for part in (self.hub, self.loop_probe, self.recorder)
            ]
            background.append(group.create_task(self._know_clusters(), name="fleet"))
            leading = group.create_task(self._lead(), name="lead")
            await stop.wait()
            log.info("stopping")
            for one in self.runners:
                one.workers.stop()
            grace = self.settings.stop_grace
            ending = {leading} if self.lease.held else set[asyncio.Task[None]]()
            if self.helm is not None:
                ending.add(group.create_task(self.helm.close(grace), name="helm"))
            if ending:
                await asyncio.wait(ending, timeout=grace)
            leading.cancel()
            await asyncio.wait({leading})  # it gives the lease back, which needs the hub
            for task in background:
                task.cancel()
        log.info("stopped")

    async def _lead(self) -> None:
        await self._seen()
        gc.collect(1)  # all of it would take a second for 25,000 objects, and find next to nothing
        gc.freeze()
        async with asyncio.TaskGroup() as group:
            electing = group.create_task(self.lease.run(), name="lease")
            await self.lease.lead(self._work)
            electing.cancel()

    async def _seen(self) -> None:
        """Wait until all of the hub has been seen, and say what is missing."""
        said: tuple[ResourceType, ...] = ()
        while not self.ready:
            if self.hub.synced and self.missing != said:
                said = self.missing
                log.error("definitions missing", kinds=_listed(said), remedy=REMEDY)
            await asyncio.sleep(POLL_INTERVAL)
        log.info("hub seen", objects=sum(one.count for one in self.hub.informers))
        self._hub_seen.set()

    async def _know_clusters(self) -> None:
        """Stay connected to the clusters, once all of the hub has been seen: a decision needs no more than that."""
        await self._hub_seen.wait()
        await self.fleet.run()

    async def _work(self) -> None:
        """Reconcile all that a leader does. What another leader has begun and not ended, no event would tell of."""
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
    """An operator for a hub, each part made of those before it; nothing is sent before it runs."""
    clock, metrics, helm, runners = asyncio.get_running_loop().time, Metrics(), _helm(settings), Runners()
    store = Store(clock)
    pace = ConnectionPace(pause=RETURNING, probation=0.0, watch=WatchPace(unserved=OF_OUR_KINDS))
    on_call = metrics.calls(HUB)
    hub = Connection(HUB, access, (), store, chance=random.random, on_call=on_call, limits=OF_HUB, pace=pace)
    fleet = Fleet(store, _opening(settings, store, metrics, runners, helm))

    def client() -> Kube:
        return hub.kube

    # Of this very process: a successor in the same pod must not take the lease for its own.
    identity = f"{settings.identity or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    key = Key(settings.lease_namespace, settings.lease_name)
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
    executors = {**KUBE, **{step: by for one in controllers for step, by in one.executors.items()}}
    clients = Clients(
        hub, fleet.cluster, lease.check, _wall_clock, recorder.record, executors=executors, printer_columns=glance
    )
    resync, reconciled, workers = QueuePace(resync=settings.resync), metrics.reconciled, settings.workers
    for one in controllers:
        made = runner(one, clients, on_reconciled=reconciled, pace=resync, workers=workers, guard=guard)
        runners.add(made)
    ours = OURS if name == "operator" else frozenset(one.type for one in controllers)
    near, remote = watched(controllers, ours, names.SYSTEM_NAMESPACE)
    hub.watch(near)
    runners.listen(hub)

    def opened(connection: Connection) -> None:
        connection.watch(remote)
        runners.listen(connection)
        if helm:
            helm.forget(connection.name)

    fleet.on_open(opened)
    on_write = webhook(
        settings.admission_listen, settings.admission_name, clients, controllers, settings.admission_clients
    )
    operator = Operator(
        settings, hub, fleet, lease, runners, LoopProbe(clock), recorder, metrics, helm, guard, on_write, name
    )
    metrics.registry.register(State(operator))
    metrics.registry.register(Gauges(lambda: _told(controllers, hub) if lease.held else ()))
    return operator


def _told(controllers: Controllers, hub: Connection) -> Iterator[tuple[Gauge, Iterable[Manifest]]]:
    return ((gauge, hub.find(one.type) or ()) for one in controllers for gauge in one.gauges)


def _opening(
    settings: Settings, store: Store, metrics: Metrics, runners: Runners, helm: Helm | None
) -> Callable[[str, Access], Connection]:
    """How connections to workload clusters are made."""
    slots, first = asyncio.Semaphore(INITIAL_SYNCS), settings.cluster_pause
    pace = ConnectionPace(pause=Backoff(first=first, longest=LONGEST_PAUSE * first), probation=min(first, PROBATION))

    def returned(name: str) -> None:
        if helm:
            helm.forgive(name)
        runners.connection_changed(name, returned=True)

    def connected(name: str, access: Access) -> Connection:
        return Connection(
            name,
            access,
            (),
            store,
            chance=random.random,
            on_call=metrics.calls(name),
            on_health=runners.health_changed,
            on_return=returned,
            on_unauthorized=runners.unauthorized,
            slots=slots,
            pace=pace,
            limits=settings.limits,
            share=Share(store.now, Bucket(settings.cluster_events, BURST * settings.cluster_events)),
        )

    return connected


def _helm(settings: Settings) -> Helm | None:
    if not settings.helm:
        return None
    return Helm(
        _wall_clock,
        executable=settings.helm,
        mirror=settings.chart_mirror,
        tested=tested_archive if settings.chart_digests == "checked" else None,
        at_once=settings.helm_at_once,
        timeout=settings.helm_timeout,
        memory=settings.helm_memory,
        environment=settings.helms_environment(),
    )


def _listed(types: Iterable[ResourceType]) -> str:
    return ", ".join(kind.kind for kind in types)


def _wall_clock() -> datetime:
    return datetime.now(UTC)
