"""Events for transitions of conditions, shown by `kubectl describe` and `kubectl get events`.

They are written in the background and at best effort: no reconcile waits for one, and none is written at rest. A
repetition increases the count of the existing Event. They are core/v1 Events, because those of events.k8s.io may not
carry `lastTimestamp`, by which `kubectl` sorts.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import structlog

from kubeloop.client.kube import Kube
from kubeloop.condition_types import STEP, Condition, ConditionType, Synced
from kubeloop.errors import ClientError, Conflict, NotFound
from kubeloop.objects import Manifest, key_of
from kubeloop.types import EVENT

QUEUED = 1000  # a fleet that changes completely writes some hundred a second; an Event minutes late is useless
MAX_EVENTS = 2000  # Events that are remembered for repetitions
MAX_PER_OBJECT = 10  # Events in a minute; by then a flapping object has been reported
MINUTE = 60.0
SERIES = 1800.0  # seconds after which a repetition is a new Event; API servers keep Events for an hour
MESSAGE_LENGTH = 1024  # the maximum that Kubernetes allows, in bytes

Kind = Literal["Normal", "Warning"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a condition of an object. `before` is None if the object did not have the condition."""

    before: Condition | None
    after: Condition
    reason: ConditionType | None
    """The declared reason of `after`; None where it is not declared."""

    @property
    def worth_telling(self) -> bool:
        """True if the transition deserves an Event. Intermediate steps are visible in the conditions only."""
        after, before = self.after, self.before
        if before is None:
            first_news = self.severity == "Normal" and after.status == "True" and after.type != Synced.__name__
            return self.kind == "Warning" or first_news
        changed = (before.status, before.reason) != (after.status, after.reason)
        lost = before.status == "True" and after.status != "True"
        return changed and (self.severity != STEP or lost)

    @property
    def severity(self) -> str:
        """The severity of the new reason."""
        return self.reason.severity if self.reason else STEP

    @property
    def kind(self) -> Kind:
        """The type of the Event: a Warning only for what a person has to do something about."""
        return "Warning" if self.severity == "Warning" else "Normal"

    @property
    def message(self) -> str:
        """The message of the Event; without a message of the condition, the meaning of its reason."""
        explanation = self.after.message or (self.reason.meaning if self.reason else self.after.reason)
        return f"{self.after.type} is {self.after.status}: {explanation}".encode()[:MESSAGE_LENGTH].decode(
            errors="ignore"
        )


@dataclass(slots=True)
class Series:
    """An Event and its repetitions."""

    manifest: Manifest
    count: int
    at: float
    """The time of the last occurrence."""
    due: float
    """The earliest time of the next write."""
    queued: bool = False
    stored: Manifest | None = None
    """The Event as it was last written."""


@dataclass(slots=True)
class Recorder:
    """Writes Events. `count` is called with the kind and `written`, `repeated`, `limited`, `lost` or `failed`."""

    kube: Callable[[], Kube]
    component: str
    """The name of the operator, as the source of its Events."""
    identity: str
    """The name of this process."""
    reason_of: Callable[[str, Condition], ConditionType | None]
    """Returns the declared reason of a condition of a kind."""
    now: Callable[[], float]
    count: Callable[[str, str], None]
    _queue: asyncio.Queue[Series] = field(default_factory=lambda: asyncio.Queue[Series](QUEUED), init=False)
    _recorded: dict[str, list[float]] = field(default_factory=dict[str, list[float]], init=False)
    """The times of recent Events by the uid of their object."""
    _series: dict[tuple[str, str], Series] = field(default_factory=dict[tuple[str, str], Series], init=False)
    """The remembered Events by uid and condition, the longest silent one first."""
    _latest: tuple[str, str, frozenset[str]] = field(default=("", "", frozenset()), init=False)
    """The uid and resourceVersion of the last object, and the reasons that were reported for that version."""

    def record(self, subject: Manifest, before: Condition | None, after: Condition) -> None:
        """Queue an Event for a transition that deserves one.

        Owned objects get Warnings only, since their owner sums them up.
        """
        transition = Transition(before, after, self.reason_of(subject["kind"], after))
        if not transition.worth_telling:
            return
        # A deployment may have hundreds of replicas, and each Event is a write.
        has_owner = any(owner.get("controller") for owner in subject["metadata"].get("ownerReferences") or ())
        silent = (transition.kind == "Normal" and has_owner) or self._is_reported(subject, after.reason)
        outcome = None if silent else self._enqueue(subject, transition)
        # Owned objects may be thousands, and their owner reports them; repetitions of a flapping object are noise.
        log_at_level = log.debug if silent or has_owner or outcome else log.info
        log_at_level(
            "transition",
            kind=subject["kind"],
            key=str(key_of(subject)),
            condition=after.type,
            status=after.status,
            reason=after.reason,
            message=after.message,
        )
        if outcome is not None:
            self.count(subject["kind"], outcome)

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        while True:
            series = await self._queue.get()
            series.queued = False
            kind = series.manifest["involvedObject"]["kind"]
            try:
                await self._write(series)
                self.count(kind, "written")
            except ClientError as error:
                self.count(kind, "failed")
                log.debug("event not written", kind=kind, error=str(error))

    async def _write(self, series: Series) -> None:
        """Create an Event, or replace it with a higher count."""
        kube, manifest = self.kube(), series.manifest
        if series.stored is not None:
            try:
                series.stored = await kube.replace({**manifest, "metadata": series.stored["metadata"]})
            except (Conflict, NotFound):  # the API server has expired it
                series.stored = None
            else:
                return
        name = f"{manifest['involvedObject']['name'][:200]}.{uuid.uuid4().hex[:16]}"
        series.stored = await kube.create({**manifest, "metadata": {**manifest["metadata"], "name": name}})

    def _is_reported(self, subject: Manifest, reason: str) -> bool:
        """True if another condition reported the same reason in the same write, as `Ready` repeats reasons."""
        metadata = subject["metadata"]
        uid, version, reported_reasons = self._latest
        same = (uid, version) == (metadata["uid"], metadata["resourceVersion"])
        self._latest = (
            metadata["uid"],
            metadata["resourceVersion"],
            (reported_reasons if same else frozenset()) | {reason},
        )
        return same and reason in reported_reasons

    def _enqueue(self, subject: Manifest, transition: Transition) -> str | None:
        """Queue an Event or its next count. Return None, or the reason why it is not queued."""
        now, uid, after = self.now(), subject["metadata"]["uid"], transition.after
        # Forget old Events, and the oldest if there are too many.
        while self._recorded and (not (first := next(iter(self._recorded.values()))) or first[-1] < now - MINUTE):
            del self._recorded[next(iter(self._recorded))]
        while self._series and (len(self._series) >= MAX_EVENTS or next(iter(self._series.values())).at < now - SERIES):
            del self._series[next(iter(self._series))]
        key = (uid, f"{after.type} {after.status} {after.reason}")
        series = self._series.pop(key, None)
        if series is None:
            series = Series(event(subject, transition, (self.component, self.identity), datetime.now(UTC)), 1, now, now)
        else:
            series.count, series.at = series.count + 1, now
            series.manifest = again(series.manifest, transition, series.count, datetime.now(UTC))
        self._series[key] = series  # at the end, so that the longest silent one is first
        if series.queued or series.due > now:
            return "repeated"
        recent = [at for at in self._recorded.pop(uid, ()) if at > now - MINUTE]
        self._recorded[uid] = recent
        if len(recent) >= MAX_PER_OBJECT:
            return "limited"
        try:
            self._queue.put_nowait(series)
        except asyncio.QueueFull:
            return "lost"
        recent.append(now)
        series.queued, series.due = True, now + MINUTE
        return None


def event(subject: Manifest, transition: Transition, source: tuple[str, str], at: datetime) -> Manifest:
    """Return a transition as a new Event about its subject, without a name."""
    metadata, (component, identity) = subject["metadata"], source
    namespace = metadata.get("namespace")
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"namespace": namespace or "default"},  # as for all Events of cluster-scoped objects
        "eventTime": _format_micro(at),
        "firstTimestamp": _format_second(at),
        "lastTimestamp": _format_second(at),
        "count": 1,
        "type": transition.kind,
        "reason": transition.after.reason,
        "action": transition.after.type,
        "message": transition.message,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": identity,
        "involvedObject": {
            "apiVersion": subject["apiVersion"],
            "kind": subject["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            **({"namespace": namespace} if namespace else {}),
        },
    }


def again(before: Manifest, transition: Transition, count: int, at: datetime) -> Manifest:
    """Return the Event with a new count, time and message."""
    return {
        **before,
        "type": transition.kind,
        "message": transition.message,
        "count": count,
        "lastTimestamp": _format_second(at),
        "series": {"count": count, "lastObservedTime": _format_micro(at)},
    }


def _format_micro(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _format_second(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
