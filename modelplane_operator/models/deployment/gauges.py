"""Gauges of each ModelDeployment: replicas requested, placed, ready and unplaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kubeloop.conditions import condition
from kubeloop.gauges import Gauge, Sample
from kubeloop.objects import Manifest, Section, is_terminating, key_of, section
from modelplane_operator.api.model_deployment import ReplicasScheduled

WHY = frozenset(one.reason for one in ReplicasScheduled if one.status == "False")
"""Reasons of ReplicasScheduled while it is False."""
NAME = ("namespace", "name")


def _desired_replicas(deployment: Manifest) -> int:
    return _count(section(deployment, "spec"), "replicas")


def _placed_replicas(deployment: Manifest) -> int:
    return _count(section(deployment, "status", "replicas"), "total")


def _ready_replicas(deployment: Manifest) -> int:
    return _count(section(deployment, "status", "replicas"), "ready")


def _unplaced_samples(deployment: Manifest) -> Iterator[Sample]:
    """Yield the number of replicas without a cluster, labelled by the reason."""
    missing = _desired_replicas(deployment) - _placed_replicas(deployment)
    if missing > 0 and not is_terminating(deployment):
        yield (*key_of(deployment), _unplaced_reason(deployment)), missing


def _unplaced_reason(deployment: Manifest) -> str:
    """Return the last reason of ReplicasScheduled; Scheduling while none is reported."""
    reason = condition(deployment, ReplicasScheduled.__name__).reason
    return reason if reason in WHY else ReplicasScheduled.SCHEDULING.reason


def _count(counts: Section, name: str) -> int:
    count = counts.get(name)
    return count if isinstance(count, int) else 0


def _gauge_per_deployment(name: str, meaning: str, count: Callable[[Manifest], int]) -> Gauge:
    """Return a gauge with one sample for each deployment."""
    return Gauge(name, meaning, NAME, lambda deployment: [(key_of(deployment), count(deployment))])


GAUGES = (
    _gauge_per_deployment(
        "modelplane_modeldeployment_spec_replicas", "Replicas that are asked for.", _desired_replicas
    ),
    _gauge_per_deployment(
        "modelplane_modeldeployment_status_replicas", "Replicas that have a cluster.", _placed_replicas
    ),
    _gauge_per_deployment("modelplane_modeldeployment_status_replicas_ready", "Replicas that answer.", _ready_replicas),
    Gauge(
        "modelplane_modeldeployment_status_replicas_unplaced",
        "Replicas that have no cluster, by the reason of ReplicasScheduled.",
        (*NAME, "reason"),
        _unplaced_samples,
    ),
)
