"""One class of nodes: whether it can be read, who uses it, and that it stays while somebody does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kubeloop.condition_types import Condition, Ready
from kubeloop.plan import KEEP, LET_GO, Plan
from kubeloop.words import listed
from modelplane_operator.api.inference_class import Accepted, InferenceClass, InferenceClassStatus
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.clusters.cluster.plan.node_pools import problems, published


@dataclass(frozen=True, slots=True)
class Observed:
    """A class, and the clusters that name it with the nodes that their pools of it have."""

    inference_class: InferenceClass
    users: Mapping[str, int]
    now: datetime


def plan(seen: Observed) -> Plan:
    terminating = seen.inference_class.metadata.deletion_timestamp is not None
    # A class that is terminating and was never held is gone before anybody could be told.
    held = () if terminating else (KEEP,)
    return Plan(held if seen.users else (LET_GO,), _status(seen, terminating=terminating))


def _status(seen: Observed, *, terminating: bool) -> InferenceClassStatus:
    wrong = problems(published(seen.inference_class))
    accepted = Accepted.INVALID_DEVICE if wrong else Accepted.AVAILABLE
    judged = accepted.condition(seen.now, message="; ".join(wrong))
    return InferenceClassStatus(
        clusters=len(seen.users),
        nodes=sum(seen.users.values()),
        conditions=(judged, _ready(seen, judged, terminating=terminating)),
    )


def _ready(seen: Observed, accepted: Condition, *, terminating: bool) -> Condition:
    if terminating:
        waiting = f"clusters have pools of the class: {listed(sorted(seen.users))}" if seen.users else ""
        return Ready.DELETING.condition(seen.now, message=waiting)
    if accepted.status != "True":
        words = f"what the class says of its devices cannot be read: {accepted.message}"
        return not_ready(InferenceClass.definition.kind, accepted, words)
    return Ready.AVAILABLE.condition(seen.now)
