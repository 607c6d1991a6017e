"""What controllers tell of their objects as gauges, in the manner of kube-state-metrics.

It is read off the objects as the watch keeps them, when somebody asks, so that an object that is gone has none. The
leader alone tells it: two pods that did would count each object twice. Labels are names and reasons of ours: whatever
an object says of itself is a value or nothing. How many there are is for quotas to bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kubeloop.objects import Manifest

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the gauge's own."""


@dataclass(frozen=True, slots=True)
class Gauge:
    name: str
    meaning: str
    labels: tuple[str, ...]
    read: Callable[[Manifest], Iterable[Sample]]
    """What one object has of it."""

    def of(self, manifests: Iterable[Manifest]) -> Metric:
        metric = GaugeMetricFamily(self.name, self.meaning, labels=self.labels)
        for sample in (one for manifest in manifests for one in self.read(manifest)):
            metric.add_metric(*sample)
        return metric


class Gauges(Collector):
    """Those of the objects that somebody answers with when they are asked for."""

    def __init__(self, told: Callable[[], Iterable[tuple[Gauge, Iterable[Manifest]]]]) -> None:
        self._told = told

    def describe(self) -> Iterator[Metric]:
        """Nothing in advance, as of everything that is read when it is asked for."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        return (gauge.of(manifests) for gauge, manifests in self._told())
