"""Find the replicas that roll now: those that the deployment asks for, in their windows, within the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kubeloop.conditions import condition
from kubeloop.objects import Key, Manifest, annotations_of, entries, is_terminating, key_of, labels_of, section
from kubeloop.resource import parse_stored
from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.maintenance import MaintenanceWindow
from modelplane_operator.api.model_deployment import UpToDate
from modelplane_operator.api.model_replica import ModelReady, OutdatedPods
from modelplane_operator.scheduling.disruptions import Disruption, DisruptionBudget, DisruptionScope
from modelplane_operator.scheduling.maintenance import find_opening

ROLL_PATIENCE = timedelta(hours=1)
"""Longest time that a replica keeps others from changing theirs: one that never answers must not stop them for ever."""

STANDING = frozenset({"always", "security"})
"""Values of the annotation that roll pods by themselves after an upgrade, and not at a time that its user chose."""


@dataclass(frozen=True, slots=True)
class Rolls:
    """The outdated replicas of a deployment that roll, now or later."""

    rolling: frozenset[Key] = frozenset()
    """Replicas whose pods change now."""
    closed: Mapping[Key, datetime | None] = field(default_factory=dict[Key, datetime | None])
    """Replicas that wait for their windows, with the time at which these open; None if never at the same time."""
    full: Mapping[Key, DisruptionScope] = field(default_factory=dict[Key, DisruptionScope])
    """Replicas that wait for others, with the scope whose limit is reached."""


def asks_to_roll(annotation: str, outdated: OutdatedPods) -> bool:
    """True if the annotation of a deployment asks to change these outdated pods."""
    which = annotation.removesuffix(labels.ROLL_NOW)
    return which in {"always", outdated.rendering} or (which == "security" and outdated.security)


def is_standing(annotation: str) -> bool:
    """True if the annotation rolls pods by themselves after an upgrade."""
    return annotation.removesuffix(labels.ROLL_NOW) in STANDING


def opens_at(
    annotation: str, windows: Iterable[MaintenanceWindow], cluster: InferenceCluster | None, now: datetime
) -> datetime | None:
    """Return when a replica may roll, which is not after `now` if it may at once; None if its windows never meet.

    `windows` are those of its deployment.
    """
    if annotation.endswith(labels.ROLL_NOW):
        return now
    return find_opening(now, tuple(windows), cluster.spec.maintenance if cluster else ())


def disruption_of(replica: Manifest) -> Disruption:
    """Return the change of a replica's pods."""
    spec = section(replica, "spec")
    members = [member for engine in entries(spec, "engines") for member in entries(engine, "members")]
    pools = sorted({str(member.get("nodePoolName") or "") for member in members})
    created = str(section(replica, "metadata").get("creationTimestamp") or "")
    return Disruption(created, key_of(replica), str(spec.get("clusterName") or ""), tuple(filter(None, pools)))


def answers(replica: Manifest) -> bool:
    """True if the model of the replica is ready, in the generation that the replica has now."""
    model_ready = condition(replica, ModelReady.__name__)
    return model_ready.current and model_ready.is_true


def read_outdated(replica: Manifest) -> OutdatedPods | None:
    """Return what the operator that runs would change in a replica's pods; None if nothing."""
    stored = section(replica, "status").get("outdated")
    return parse_stored(OutdatedPods, stored) if stored else None


def find_active(replicas: Iterable[Manifest], now: datetime) -> Iterator[Disruption]:
    """Yield the disruptions that count: of replicas that roll, for at most ROLL_PATIENCE."""
    earliest = (now - ROLL_PATIENCE).isoformat()
    for replica in replicas:
        if annotations_of(replica).get(labels.ROLLING, "") > earliest:
            yield disruption_of(replica)


def find_waiting(
    replicas: Iterable[Manifest],
    find_deployment: Callable[[Key], Manifest | None],
    clusters: Mapping[str, InferenceCluster],
    now: datetime,
) -> Iterator[Disruption]:
    """Yield the disruptions that could begin: of replicas that answer and roll, and whose windows are open.

    A deployment that reports another reason than Rolling waits for something else, and must not keep others waiting.
    """
    for replica in replicas:
        outdated = read_outdated(replica)
        if outdated is None or is_terminating(replica) or annotations_of(replica).get(labels.ROLLING):
            continue
        deployment = find_deployment(Key(key_of(replica).namespace, labels_of(replica).get(labels.DEPLOYMENT, "")))
        annotation = annotations_of(deployment).get(labels.ROLL, "") if deployment else ""
        if deployment is None or not asks_to_roll(annotation, outdated) or not answers(replica):
            continue
        if condition(deployment, UpToDate.__name__).reason != UpToDate.ROLLING.reason:
            continue
        windows = [parse_stored(MaintenanceWindow, window) for window in entries(deployment, "spec", "maintenance")]
        opening = opens_at(annotation, windows, clusters.get(replica["spec"]["clusterName"]), now)
        if opening is not None and opening <= now:
            yield disruption_of(replica)


def find_rolls(
    replicas: Mapping[Key, Manifest],
    annotation: str,
    *,
    windows: Iterable[MaintenanceWindow],
    clusters: Mapping[str, InferenceCluster],
    budget: DisruptionBudget,
    now: datetime,
) -> Rolls:
    """Return which of these replicas, which the annotation asks to roll, may change now, and what the others wait for.

    Those that have begun, or do not answer, wait for nothing.
    """
    started = {
        key for key, replica in replicas.items() if annotations_of(replica).get(labels.ROLLING) or not answers(replica)
    }
    openings = {
        key: opens_at(annotation, windows, clusters.get(replica["spec"]["clusterName"]), now)
        for key, replica in replicas.items()
        if key not in started
    }
    closed = {key: opening for key, opening in openings.items() if opening is None or opening > now}
    full = budget.find_full(disruption_of(replicas[key]) for key in openings if key not in closed)
    return Rolls(
        frozenset(started | {key for key, scope in full.items() if scope is None}),
        closed,
        {key: scope for key, scope in full.items() if scope is not None},
    )
