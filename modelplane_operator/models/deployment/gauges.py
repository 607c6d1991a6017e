"""What each ModelDeployment has of what it asks for, as gauges."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kubeloop.conditions import condition
from kubeloop.gauges import Gauge, Sample
from kubeloop.objects import Manifest, Section, is_terminating, key_of, section
from modelplane_operator.api.model_deployment import ReplicasScheduled

WHY = frozenset(one.reason for one in ReplicasScheduled if one.status == "False")
NAME = ("namespace", "name")


def _wanted(deployment: Manifest) -> int:
    return _count(section(deployment, "spec"), "replicas")


def _placed(deployment: Manifest) -> int:
    return _count(section(deployment, "status", "replicas"), "total")


def _ready(deployment: Manifest) -> int:
    return _count(section(deployment, "status", "replicas"), "ready")


def _unplaced(deployment: Manifest) -> Iterator[Sample]:
    lacking = _wanted(deployment) - _placed(deployment)
    if lacking > 0 and not is_terminating(deployment):
        yield (*key_of(deployment), _why(deployment)), lacking


def _why(deployment: Manifest) -> str:
    """The reason that was told last; while there is none, clusters are being chosen."""
    reason = condition(deployment, ReplicasScheduled.__name__).reason
    return reason if reason in WHY else ReplicasScheduled.SCHEDULING.reason


def _count(said: Section, name: str) -> int:
    count = said.get(name)
    return count if isinstance(count, int) else 0


def _of_each(name: str, meaning: str, count: Callable[[Manifest], int]) -> Gauge:
    return Gauge(name, meaning, NAME, lambda deployment: [(key_of(deployment), count(deployment))])


GAUGES = (
    _of_each("modelplane_modeldeployment_spec_replicas", "Replicas that are asked for.", _wanted),
    _of_each("modelplane_modeldeployment_status_replicas", "Replicas that have a cluster.", _placed),
    _of_each("modelplane_modeldeployment_status_replicas_ready", "Replicas that answer.", _ready),
    Gauge(
        "modelplane_modeldeployment_status_replicas_unplaced",
        "Replicas that have no cluster, by the reason of ReplicasScheduled.",
        (*NAME, "reason"),
        _unplaced,
    ),
)
