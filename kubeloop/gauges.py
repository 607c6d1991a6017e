"""Gauges computed from the objects of controllers, in the manner of kube-state-metrics.

They are computed from cached objects at each scrape, so that a deleted object has none. Only the leader exports them,
or each object would count twice. Labels are names and reasons of ours, and text from objects never becomes a label. The
number of series is bounded by quotas for objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kubeloop.objects import Manifest

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and of the gauge."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge with its labels, and the function that computes its samples."""

    name: str
    meaning: str
    labels: tuple[str, ...]
    read: Callable[[Manifest], Iterable[Sample]]
    """Returns the samples of one object."""

    def of(self, manifests: Iterable[Manifest]) -> Metric:
        """Return the metric for these objects."""
        metric = GaugeMetricFamily(self.name, self.meaning, labels=self.labels)
        for sample in (item for manifest in manifests for item in self.read(manifest)):
            metric.add_metric(*sample)
        return metric


class Gauges(Collector):
    """Collects gauges, with the objects that a callback provides at each scrape."""

    def __init__(self, collect: Callable[[], Iterable[tuple[Gauge, Iterable[Manifest]]]]) -> None:
        self._told = collect

    def describe(self) -> Iterator[Metric]:
        """Return nothing, as everything is computed at the scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        return (gauge.of(manifests) for gauge, manifests in self._told())
