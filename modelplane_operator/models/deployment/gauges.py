"""Gauges of each ModelDeployment: replicas requested, placed, ready and unplaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kubeloop.conditions import condition
from kubeloop.gauges import Gauge, Sample
from kubeloop.objects import Manifest, Section, is_terminating, key_of, section
from modelplane_operator.api.model_deployment import ReplicasScheduled

UNSCHEDULED_REASONS = frozenset(one.reason for one in ReplicasScheduled if one.status == "False")
"""Reasons of ReplicasScheduled while it is False."""
NAME = ("namespace", "name")
"""Labels of the gauges."""


def _count_desired(deployment: Manifest) -> int:
    return _count(section(deployment, "spec"), "replicas")


def _count_placed(deployment: Manifest) -> int:
    return _count(section(deployment, "status", "replicas"), "total")


def _count_ready(deployment: Manifest) -> int:
    return _count(section(deployment, "status", "replicas"), "ready")


def _sample_unplaced(deployment: Manifest) -> Iterator[Sample]:
    """Yield the number of replicas without a cluster, labelled by the reason."""
    missing = _count_desired(deployment) - _count_placed(deployment)
    if missing > 0 and not is_terminating(deployment):
        reason = condition(deployment, ReplicasScheduled.__name__).reason
        if reason not in UNSCHEDULED_REASONS:  # none is reported yet
            reason = ReplicasScheduled.SCHEDULING.reason
        yield (*key_of(deployment), reason), missing


def _count(counts: Section, name: str) -> int:
    """Return a number; zero if it is missing or no number."""
    count = counts.get(name)
    return count if isinstance(count, int) else 0


def _gauge_per_deployment(name: str, meaning: str, count: Callable[[Manifest], int]) -> Gauge:
    """Return a gauge with one sample for each deployment."""
    return Gauge(name, meaning, NAME, lambda deployment: [(key_of(deployment), count(deployment))])


GAUGES = (
    _gauge_per_deployment("modelplane_modeldeployment_spec_replicas", "Replicas that are asked for.", _count_desired),
    _gauge_per_deployment("modelplane_modeldeployment_status_replicas", "Replicas that have a cluster.", _count_placed),
    _gauge_per_deployment("modelplane_modeldeployment_status_replicas_ready", "Replicas that answer.", _count_ready),
    Gauge(
        "modelplane_modeldeployment_status_replicas_unplaced",
        "Replicas that have no cluster, by the reason of ReplicasScheduled.",
        (*NAME, "reason"),
        _sample_unplaced,
    ),
)
