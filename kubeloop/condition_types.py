"""Condition types and reasons as declarations, and how conditions are merged into a status.

A condition type is an enum, and each member is a reason with its status. So a type, its reasons and their documentation
are declared once, next to the kind. Types and reasons are part of the API: we add some, and never rename any.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from kubeloop.model import Model
from kubeloop.words import legible, sentence

ConditionStatus = Literal["True", "False", "Unknown"]

Severity = Literal["Step", "Normal", "Warning"]
"""The type of the Event for a reason: a Warning for what a person has to do something about. A "Step" makes no Event,
unless it ends a condition that was True: then a normal one."""

STEP: Severity = "Step"
NORMAL: Severity = "Normal"
WARNING: Severity = "Warning"

MESSAGE_LENGTH = 32768  # the maximum that Kubernetes allows for a condition's message


class Condition(Model):
    """One aspect of an object's state, in the form every Kubernetes tool reads."""

    type: str
    """Which aspect this is about, in CamelCase."""
    status: ConditionStatus
    """Whether it holds: `True`, `False`, or `Unknown`."""
    reason: str
    """Why, as one CamelCase word that a script can compare."""
    message: str | None = None
    """Why, as a sentence for a person, with the names and numbers to act on."""
    last_transition_time: datetime
    """When `status` last changed."""
    observed_generation: Annotated[int | None, Field(json_schema_extra={"format": "int64"})] = None
    """The `metadata.generation` that the condition is about; if the object's is newer, the condition is outdated."""


class ConditionType(Enum):
    """The base of condition types.

    A subclass is a type and its docstring the description; a member is a tuple of reason, status, meaning and severity.
    """

    def __init__(self, reason: str, status: ConditionStatus, meaning: str, severity: Severity = STEP) -> None:
        self.reason = reason
        self.status: ConditionStatus = status
        self.meaning = meaning
        self.severity: Severity = severity

    @property
    def type(self) -> str:
        return self.__class__.__name__

    def condition(self, now: datetime, *, message: str = "", generation: int | None = None) -> Condition:
        """Return this reason as a condition that holds from `now`."""
        return Condition(
            type=self.type,
            status=self.status,
            reason=self.reason,
            message=legible(sentence(message)[:MESSAGE_LENGTH]),
            last_transition_time=now.replace(microsecond=0),  # as Kubernetes writes times
            observed_generation=generation,
        )


class Synced(ConditionType):
    """Whether the last attempt to bring the object's children in line with it went through."""

    RECONCILE_SUCCESS = "ReconcileSuccess", "True", "All objects that belong to it were written.", NORMAL
    RECONCILE_ERROR = (
        "ReconcileError",
        "False",
        "A write failed, with the error in the message. The operator tries again.",
        WARNING,
    )
    RECONCILE_PAUSED = (
        "ReconcilePaused",
        "False",
        "The pause annotation is set: the operator does nothing but what the message names.",
        NORMAL,
    )
    QUARANTINED = (
        "Quarantined",
        "False",
        "The operator's process died twice while it reconciled the object. "
        "The operator leaves it alone until it changes.",
        WARNING,
    )


class Ready(ConditionType):
    """Whether all that the object asks for is there and works. While something is wrong that does not mend by itself,
    the reason is that of the condition that says what."""

    AVAILABLE = "Available", "True", "Everything exists.", NORMAL
    DEGRADED = "Degraded", "True", "It can be used, but something is missing; the message names it.", WARNING
    CREATING = "Creating", "False", "Something is still missing; the message names it.", STEP
    PARTIAL = "Partial", "False", "Some parts work, others do not; the message names those that do not.", STEP
    UNREACHABLE = "Unreachable", "Unknown", "What it depends on does not answer; the message names it.", WARNING
    DELETING = "Deleting", "False", "The object is being deleted; the message names what blocks that.", NORMAL


class ServerVerified(ConditionType):
    """Whether the cluster's API server has to prove who it is before it is told the operator's credentials."""

    CERTIFICATE_VERIFIED = "CertificateVerified", "True", "The API server's certificate is checked."
    NOT_VERIFIED = (
        "NotVerified",
        "False",
        "The kubeconfig disables the check; the message says how to enable it.",
        WARNING,
    )


def merge(previous: Iterable[Condition], new: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the known conditions updated with the new ones, sorted by type, with `Ready` last, where people look
    first.

    The transition time changes only with the status, so that merging the same conditions again changes nothing.
    """
    merged = {condition.type: condition for condition in previous}
    for condition in new:
        old = merged.get(condition.type)
        same_status = old is not None and old.status == condition.status
        merged[condition.type] = (
            condition.model_copy(update={"last_transition_time": old.last_transition_time})
            if old is not None and same_status
            else condition
        )
    return tuple(merged[name] for name in sorted(merged, key=lambda name: (name == Ready.__name__, name)))


def has_reason(conditions: Iterable[Condition], reason: ConditionType) -> bool:
    """True if the condition of this type exists and has this reason."""
    return any((condition.type, condition.reason) == (reason.type, reason.reason) for condition in conditions)


def explain_ready(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions with the words of `Synced` in `Ready`, if only `Synced` has the cause.

    That is so while a write fails and `Ready` merely waits, and whenever an object has no `Ready` yet.
    """
    by_type = {condition.type: condition for condition in conditions}
    synced, ready = by_type.get(Synced.__name__), by_type.get(Ready.__name__)
    if synced is None or synced.status == "True":
        return tuple(by_type.values())
    replaceable = {Ready.CREATING.reason, *(reason.reason for reason in Synced)}
    waits = ready is not None and ready.status == "False" and ready.reason in replaceable
    if ready is not None and not (waits and synced.reason == Synced.RECONCILE_ERROR.reason):
        return tuple(by_type.values())
    since = ready.last_transition_time if ready else synced.last_transition_time
    update = {"type": Ready.__name__, "status": "False", "last_transition_time": since}
    return (*(item for item in by_type.values() if item is not ready), synced.model_copy(update=update))


def is_true(conditions: Iterable[Condition], kind: type[ConditionType]) -> bool:
    """True if this condition exists and is `True`."""
    return any(condition.type == kind.__name__ and condition.status == "True" for condition in conditions)
