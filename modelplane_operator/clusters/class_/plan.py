"""Plan one InferenceClass: check that it is readable, count its users, and keep it while it has any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kubeloop.condition_types import Condition, Ready
from kubeloop.plan import KEEP, LET_GO, Plan
from kubeloop.words import list_names
from modelplane_operator.api.inference_class import Accepted, InferenceClass, InferenceClassStatus
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.clusters.cluster.plan.node_pools import problems, publish_devices


@dataclass(frozen=True, slots=True)
class Observed:
    """An InferenceClass, and its node count by the name of each cluster that references it."""

    inference_class: InferenceClass
    users: Mapping[str, int]
    """Node counts by the name of each cluster that references the class."""
    now: datetime


def plan(observed: Observed) -> Plan:
    """Return the plan of a class: the finalizer stays while clusters use it."""
    terminating = observed.inference_class.metadata.deletion_timestamp is not None
    # Kubernetes rejects new finalizers on an object that is being deleted.
    add_finalizer = () if terminating else (KEEP,)
    # Unused classes lose the finalizer, which lets a deletion finish.
    return Plan(add_finalizer if observed.users else (LET_GO,), _build_status(observed, terminating=terminating))


def _build_status(observed: Observed, *, terminating: bool) -> InferenceClassStatus:
    """Return the status of a class: its users, nodes and conditions."""
    malformed = problems(publish_devices(observed.inference_class))
    accepted = Accepted.INVALID_DEVICE if malformed else Accepted.AVAILABLE
    condition = accepted.condition(observed.now, message="; ".join(malformed))
    return InferenceClassStatus(
        clusters=len(observed.users),
        nodes=sum(observed.users.values()),
        conditions=(condition, _build_ready(observed, condition, terminating=terminating)),
    )


def _build_ready(observed: Observed, accepted: Condition, *, terminating: bool) -> Condition:
    """Return the Ready condition, which names the clusters that keep the class from being deleted."""
    users = f"clusters have pools of the class: {list_names(sorted(observed.users))}" if observed.users else ""
    if terminating:
        remedy = ": remove these pools, or give them another class"
        return Ready.DELETING.condition(observed.now, message=f"{users}{remedy}" if users else "")
    if accepted.status != "True":
        problem = f"the devices of the class cannot be read: {accepted.message}"
        return not_ready(InferenceClass.definition.kind, accepted, problem)
    return Ready.AVAILABLE.condition(observed.now, message=users)
