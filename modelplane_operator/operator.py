"""Assemble the operator: a manager of controllers, with its settings, metrics, Helm and admission webhook."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kubeloop.backoff import Backoff
from kubeloop.cache.connection import Connection
from kubeloop.cache.prober import ConnectionPace
from kubeloop.cache.reflector import RETURNING, WatchPace
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube
from kubeloop.client.limits import Bucket, ServerLimits, Share
from kubeloop.gauges import Gauge, Gauges
from kubeloop.helm.driver import Helm
from kubeloop.lease import wall_clock
from kubeloop.manager import ClusterOptions, Manager
from kubeloop.objects import Key, Manifest
from kubeloop.probes import serve_probes
from kubeloop.quarantine import UNGUARDED, Guard
from kubeloop.resource import of
from kubeloop.watched import Controllers
from modelplane_operator.api import KINDS, reasons
from modelplane_operator.ask.admission.webhook import Webhook, webhook
from modelplane_operator.clusters.stack.digests import find_tested_digest
from modelplane_operator.metrics import Metrics, State
from modelplane_operator.printer_columns import add_printer_columns
from modelplane_operator.settings import Settings
from modelplane_operator.world import World

REMEDY = "kubectl apply --server-side --force-conflicts -f crds/"
CONTROLLER = "modelplane.ai/operator"  # the reporting controller of Events
OWN_TYPES = frozenset(map(of, KINDS))
STOP_GRACE = 5.0  # seconds
CLUSTER_PAUSE = 120.0  # seconds; the first backoff of a misbehaving cluster
CLUSTER_EVENTS = 400.0  # per second, from one workload cluster, after a burst
LONGEST_PAUSE = 15  # maximum backoff of a misbehaving cluster, as a multiple of the first
PROBATION = 20.0  # seconds; enough for a cluster's lists and watches to show whether it behaves
OF_OUR_KINDS = Backoff(first=30.0, longest=30.0)  # until kinds that the hub lacks are requested again
BURST = 25  # seconds' worth of events that a cluster may send in a burst: the events of a thousand starting replicas

Build = Callable[[World], Controllers]


@dataclass(frozen=True, slots=True)
class Operator:
    """All components of an operator, created by `assemble` and started by `run`."""

    settings: Settings
    manager: Manager
    metrics: Metrics
    helm: Helm | None = None
    """Helm driver; None if the operator installs no charts."""
    webhook: Webhook | None = None
    """Admission webhook; None if it is disabled."""
    name: str = "operator"
    """Name of the program, for its metrics: `operator`, or `hub-gateway`."""
    stop_grace: float = STOP_GRACE
    """Seconds that running reconciles and Helm have at a stop."""

    async def run(self, stop: asyncio.Event) -> None:
        """Watch, and lead while holding the lease, until `stop` is set."""
        manager = self.manager
        pages = serve_probes(
            self.settings.listen, health=manager.find_stuck, readiness=manager.unfit, metrics=self.metrics.registry
        )
        async with pages:
            await manager.run(
                stop,
                grace=self.stop_grace,
                while_leading=self.webhook.keep_trusted if self.webhook else None,
                close=self.helm.close if self.helm else None,
                remedy=REMEDY,
            )


def assemble(
    settings: Settings, access: Access, build: Build, guard: Guard = UNGUARDED, name: str = "operator"
) -> Operator:
    """Create an operator for a hub. No request is sent before it runs."""
    metrics, helm = Metrics(), _create_helm(settings)
    manager = Manager.create(
        access,
        # Unique per process: a successor in the same pod must not take over the lease as its own.
        identity=f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
        lease=Key(settings.lease_namespace, f"modelplane-{name}"),
        component=CONTROLLER,
        times=settings.times,
        reason_of=reasons.find,
        printer_columns=add_printer_columns,
        measures=metrics,
        hub_pace=ConnectionPace(pause=RETURNING, probation=0.0, watch=WatchPace(unserved=OF_OUR_KINDS)),
        clusters=_cluster_options(settings, helm),
        guard=guard,
        now=wall_clock,
    )
    if helm:
        helm.may_write = manager.lease.check

    def client() -> Kube:
        return manager.hub.kube

    world = World(
        settings,
        manager.fleet,
        client,
        wall_clock,
        manager.runners.connection_changed,
        metrics.count_decision,
        manager.runners.wake,
        metrics.count_check,
        helm,
    )
    controllers = build(world)
    manager.add(
        controllers,
        own_types=OWN_TYPES if name == "operator" else None,
        resync=settings.resync,
        on_open=helm.forget if helm else lambda _: None,
    )
    reviews = webhook(
        settings.admission_listen, settings.admission_name, manager.clients, controllers, settings.admission_clients
    )
    operator = Operator(settings, manager, metrics, helm, reviews, name)
    metrics.registry.register(State(operator))
    metrics.registry.register(Gauges(lambda: _gauge_sources(controllers, manager.hub) if manager.lease.is_held else ()))
    return operator


def _gauge_sources(controllers: Controllers, hub: Connection) -> Iterator[tuple[Gauge, Iterable[Manifest]]]:
    """Return the gauges of all controllers with the objects that they count."""
    return ((gauge, hub.find(controller.type) or ()) for controller in controllers for gauge in controller.gauges)


def _cluster_options(settings: Settings, helm: Helm | None) -> ClusterOptions:
    """Return the limits of workload clusters, and how long one that misbehaves is left alone."""
    first, events = CLUSTER_PAUSE, CLUSTER_EVENTS * settings.cluster_limits

    def share() -> Share:
        """Return the limit for the events of one cluster."""
        return Share(asyncio.get_running_loop().time, Bucket(events, BURST * events))

    return ClusterOptions(
        pace=ConnectionPace(pause=Backoff(first=first, longest=LONGEST_PAUSE * first), probation=min(first, PROBATION)),
        limits=ServerLimits().scale(settings.cluster_limits),
        share=share,
        on_return=helm.forgive if helm else lambda _: None,
    )


def _create_helm(settings: Settings) -> Helm | None:
    """Return the Helm driver; None if no executable is configured."""
    if not settings.helm:
        return None
    return Helm(
        wall_clock,
        executable=settings.helm,
        mirror=settings.chart_mirror,
        tested=find_tested_digest if settings.chart_digests == "checked" else None,
        memory=settings.helm_memory,
        environment=settings.helms_environment(),
    )
