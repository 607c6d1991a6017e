"""Metrics of the operator, under stable names.

Labels are limited to values that the operator knows: kinds, types, verbs, error names, and the fleet's clusters. Gauges
of state are computed when they are scraped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kubeloop.cache.connection import Connection
from kubeloop.client.wire import Call, OnCall
from kubeloop.errors import Misbehaving
from kubeloop.queue import Outcome
from kubeloop.types import HUB

if TYPE_CHECKING:
    from modelplane_operator.operator import Operator

READS = frozenset({"get", "list", "watch", "ping", "discover", "version"})
BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
FAST_BUCKETS = (0.0001, 0.0003, *BUCKETS[:8])


class Metrics:
    """The counters and histograms of an operator, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # a second series per metric with its creation time
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._reconciles = Histogram(
            "modelplane_reconcile_seconds",
            "Time of a reconcile; what became of it is Done, Failed or Forgotten.",
            ("kind", "outcome"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._writes = Counter(
            "modelplane_writes",
            "Writes, whether they had an effect or failed; the outcome is OK or the name of an error.",
            ("side", "resource", "verb", "outcome"),
            registry=self.registry,
        )
        self._requests = Histogram(
            "modelplane_request_seconds",
            "Time until an API server answered a request, or began to answer a watch.",
            ("side", "verb", "outcome"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._decisions = Histogram(
            "modelplane_scheduler_decision_seconds",
            "Time of a scheduling decision.",
            ("outcome",),
            buckets=FAST_BUCKETS,
            registry=self.registry,
        )
        self._events = Counter(
            "modelplane_events",
            "Events about transitions of conditions; lost ones were too many, or could not be written.",
            ("kind", "outcome"),
            registry=self.registry,
        )

        self._checks = Counter(
            "modelplane_checks",
            "Checks of what no watch tells; a defect is one of the operator's own.",
            ("kind", "outcome"),
            registry=self.registry,
        )

    def count_reconcile(self, kind: str, outcome: Outcome, seconds: float) -> None:
        """Count a reconcile and its duration."""
        self._reconciles.labels(kind, type(outcome).__name__).observe(seconds)

    def calls(self, cluster: str) -> OnCall:
        """Return a callback that counts the requests to a cluster.

        Workload clusters are counted together, since a fleet has too many for a label.
        """
        side = "hub" if cluster == HUB else "workload"

        def called(call: Call) -> None:
            """Count a request, and also as a write if it is one."""
            self._requests.labels(side, call.verb, call.outcome).observe(call.seconds)
            if call.verb not in READS:
                self._writes.labels(side, call.resource, call.verb, call.outcome).inc()

        return called

    def count_decision(self, outcome: str, seconds: float) -> None:
        """Count a scheduling decision and its duration."""
        self._decisions.labels(outcome).observe(seconds)

    def event(self, kind: str, outcome: str) -> None:
        """Count an Event about a transition."""
        self._events.labels(kind, outcome).inc()

    def count_check(self, kind: str, outcome: str) -> None:
        """Count a check of something that no watch reports."""
        self._checks.labels(kind, outcome).inc()


class State(Collector):
    """The gauges of an operator's state at the time of the scrape."""

    def __init__(self, operator: Operator) -> None:
        self._operator, self._manager = operator, operator.manager

    def describe(self) -> Iterator[Metric]:
        """Return no descriptions: the registry would collect everything just to learn the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all gauges, computed now."""
        yield from self._collect_process()
        yield from self._collect_queues()
        yield from self._collect_hub()
        yield from self._collect_clusters()

    def _collect_process(self) -> Iterator[Metric]:
        """Yield the gauges of the process: leadership, webhook, readiness and the event loop's lag."""
        operator = self._operator
        if operator.name == "operator":
            yield _gauge("modelplane_leading", "Whether this operator holds the lease.", self._manager.lease.is_held)
        else:
            yield _gauge(
                "modelplane_hub_gateway_leading", "Whether this pod holds its lease.", self._manager.lease.is_held
            )
        if (webhook := operator.webhook) and self._manager.lease.is_held:
            altered = bool(webhook.altered)
            yield _gauge("modelplane_webhook_altered", "Whether its configuration is not as the chart has it.", altered)
        yield _gauge("modelplane_ready", "Whether all of the hub has been seen.", self._manager.ready)
        yield _gauge(
            "modelplane_loop_lag_seconds",
            "Worst delay of the event loop within a minute.",
            self._manager.loop_probe.worst,
        )

    def _collect_queues(self) -> Iterator[Metric]:
        """Yield the gauges of the queues, by kind."""
        now = self._manager.loop_probe.now()
        depth = _by("modelplane_queue_depth", "Objects that are due and do not run.", "kind")
        oldest = _by("modelplane_queue_oldest_seconds", "How long the one that has waited longest is due.", "kind")
        keys = _by("modelplane_queue_keys", "Objects that are due, run, or wait for a later look.", "kind")
        running = _by("modelplane_reconciles_running", "Reconciles under way.", "kind")
        longest = _by("modelplane_reconcile_longest_seconds", "How long the longest of them goes on.", "kind")
        quarantined = _by(
            "modelplane_quarantined", "Objects left alone since the process died twice over them.", "kind"
        )
        for runner in self._manager.runners:
            kind, queue = runner.controller.type.kind, runner.workers.queue
            depth.add_metric((kind,), queue.depth)
            oldest.add_metric((kind,), queue.oldest(now))
            keys.add_metric((kind,), len(queue))
            running.add_metric((kind,), queue.running)
            longest.add_metric((kind,), runner.workers.longest(now))
            quarantined.add_metric((kind,), self._manager.guard.count(kind))
        yield from (depth, oldest, keys, running, longest, quarantined)

    def _collect_hub(self) -> Iterator[Metric]:
        """Yield the gauges of the hub's connection and its watches."""
        now, health = self._manager.loop_probe.now(), self._manager.hub.health
        yield _gauge("modelplane_hub_answers", "Whether the hub's API server answers.", health.answers)
        if health.latency is not None:
            yield _gauge("modelplane_hub_round_trip_seconds", "Shortest time of its last answers.", health.latency)
        age = _by("modelplane_hub_watch_age_seconds", "Time since a watch of the hub last said anything.", "resource")
        objects = _by("modelplane_hub_objects", "Objects of the hub that are kept.", "resource")
        for informer in self._manager.hub.informers:
            objects.add_metric((str(informer.type),), informer.count)
            if informer.last_event_at is not None:
                age.add_metric((str(informer.type),), now - informer.last_event_at)
        failing = _by("modelplane_hub_watch_failing_seconds", "How long a watch of the hub has not worked.", "resource")
        for watch in self._manager.hub.watches:
            failing.add_metric((str(watch.informer.type),), watch.seconds_failing(now))
        yield from (age, objects, failing, self._collect_failures())

    def _collect_failures(self) -> Metric:
        """Return the number of objects that failed, by side, type and stage.

        It can decrease: the counts of a removed cluster are removed, too.
        """
        failures = CounterMetricFamily(
            "modelplane_object_failures",
            "Objects that could not be read, or that an index or a listener of ours failed on.",
            labels=("side", "resource", "stage"),
        )
        counts = dict[tuple[str, str, str], int]()
        for side, connections in (("hub", (self._manager.hub,)), ("workload", self._manager.fleet)):
            for informer in (item for connection in connections for item in connection.informers):
                for stage, count in informer.failures.items():
                    names = side, str(informer.type), stage
                    counts[names] = counts.get(names, 0) + count
        for names, count in counts.items():
            failures.add_metric(names, count)
        return failures

    def _collect_clusters(self) -> Iterator[Metric]:
        """Yield the gauges of each workload cluster."""
        answers = _by("modelplane_cluster_answers", "Whether a workload cluster answers.", "cluster")
        yield self._add_clusters(answers, lambda cluster, _: cluster.health.answers)
        verified = _by("modelplane_cluster_verified", "Whether its API server has to prove who it is.", "cluster")
        yield self._add_clusters(verified, lambda cluster, _: not cluster.unverified)
        misbehaves = _by("modelplane_cluster_misbehaves", "Whether it is left alone for what it has said.", "cluster")
        yield self._add_clusters(misbehaves, lambda cluster, _: isinstance(cluster.health.error, Misbehaving))
        trip = _by("modelplane_cluster_round_trip_seconds", "Shortest time of its last answers.", "cluster")
        yield self._add_clusters(trip, lambda cluster, _: cluster.health.latency)
        contact = _by("modelplane_cluster_contact_age_seconds", "Time since the last answer.", "cluster")
        yield self._add_clusters(contact, _contact_age)
        age = _by("modelplane_cluster_watch_age_seconds", "Time since the most silent watch said anything.", "cluster")
        yield self._add_clusters(age, _watch_age)

    def _add_clusters(
        self, family: GaugeMetricFamily, read: Callable[[Connection, float], float | None]
    ) -> GaugeMetricFamily:
        """Add the value of each cluster that has one to a metric."""
        now = self._manager.loop_probe.now()
        for connection in self._manager.fleet:
            if (value := read(connection, now)) is not None:
                family.add_metric((connection.name,), value)
        return family


def _watch_age(connection: Connection, now: float) -> float | None:
    """Return the time since the most silent active watch last received anything."""
    times = (item.informer.last_event_at for item in connection.watches if item.informer.served and not item.idle)
    last_events = [item for item in times if item is not None]
    return now - min(last_events) if last_events else None


def _contact_age(connection: Connection, now: float) -> float | None:
    contact = connection.health.last_contact
    return None if contact is None else now - contact


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=value)


def _by(name: str, meaning: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=(label,))
