"""What each ModelDeployment has of what it asks for, as gauges in the manner of kube-state-metrics.

It is read off the objects as the watch keeps them, when somebody asks, so that a deployment that is gone has none. The
leader alone tells it: two pods that did would count each replica twice. Labels are a namespace, a name and a reason of
ours: whatever an object says of itself is a value or nothing. How many there are is for quotas to bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from modelplane_operator.api.model_deployment import ReplicasScheduled
from modelplane_operator.kube.conditions import condition
from modelplane_operator.kube.objects import Manifest, Section, is_terminating, key_of, section

WHY = frozenset(one.reason for one in ReplicasScheduled if one.status == "False")
DEPLOYMENT = ("namespace", "name")


class Models(Collector):
    """The gauges of those deployments that somebody answers with when they are asked for."""

    def __init__(self, deployments: Callable[[], Iterable[Manifest]]) -> None:
        self._deployments = deployments

    def describe(self) -> Iterator[Metric]:
        """Nothing in advance, as of everything that is read when it is asked for."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        wanted = _of_each("modelplane_modeldeployment_spec_replicas", "Replicas that are asked for.")
        placed = _of_each("modelplane_modeldeployment_status_replicas", "Replicas that have a cluster.")
        ready = _of_each("modelplane_modeldeployment_status_replicas_ready", "Replicas that answer.")
        unplaced = _of_each(
            "modelplane_modeldeployment_status_replicas_unplaced",
            "Replicas that have no cluster, by the reason of ReplicasScheduled.",
            "reason",
        )
        for one in self._deployments():
            key, counted = key_of(one), section(one, "status", "replicas")
            asked, total = _count(section(one, "spec"), "replicas"), _count(counted, "total")
            wanted.add_metric(key, asked)
            placed.add_metric(key, total)
            ready.add_metric(key, _count(counted, "ready"))
            if total < asked and not is_terminating(one):
                unplaced.add_metric((*key, _why(one)), asked - total)
        yield from (wanted, placed, ready, unplaced)


def _why(deployment: Manifest) -> str:
    """The reason that was told last; while there is none, clusters are being chosen."""
    reason = condition(deployment, ReplicasScheduled.__name__).reason
    return reason if reason in WHY else ReplicasScheduled.SCHEDULING.reason


def _count(said: Section, name: str) -> int:
    count = said.get(name)
    return count if isinstance(count, int) else 0


def _of_each(name: str, meaning: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=(*DEPLOYMENT, *more))
