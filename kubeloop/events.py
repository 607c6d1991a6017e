"""Events: a transition of a condition, told to whoever runs `kubectl describe` or `kubectl get events`.

They are written in the background and at best effort: a reconcile never waits for one, and none is written at rest.
What comes again is the same Event with a higher count. They are core/v1 Events: those of events.k8s.io may not carry
`lastTimestamp`, by which everybody sorts them.
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

QUEUED = 1000  # a fleet that turns over writes some hundred a second; what is told minutes late is of no use
KEPT = 2000  # Events that may yet come again
OF_ONE_OBJECT = 10  # in a minute: one that flaps has said so by then
MINUTE = 60.0
SERIES = 1800.0  # seconds after which what comes again is another Event; the first may be gone after an hour
MESSAGE_LENGTH = 1024  # what Kubernetes allows, in bytes

Kind = Literal["Normal", "Warning"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Transition:
    """A condition of an object that has become another; None before: it was not there."""

    before: Condition | None
    after: Condition
    reason: ConditionType | None
    """The declared reason of `after`; None where it is not declared."""

    @property
    def worth_telling(self) -> bool:
        """Whether something happened that people wait for or must know; the steps on the way are in the conditions."""
        after, before = self.after, self.before
        if before is None:
            first_news = self.told == "Normal" and after.status == "True" and after.type != Synced.__name__
            return self.kind == "Warning" or first_news
        changed = (before.status, before.reason) != (after.status, after.reason)
        return changed and (self.kind == "Warning" or self.told == "Normal")

    @property
    def told(self) -> str:
        return self.reason.severity if self.reason else STEP

    @property
    def kind(self) -> Kind:
        lost = self.before is not None and self.before.status == "True" and self.after.status != "True"
        return "Warning" if self.told == "Warning" or (self.told == STEP and lost) else "Normal"

    @property
    def message(self) -> str:
        """What happened, never without a word on what that means."""
        words = self.after.message or (self.reason.meaning if self.reason else self.after.reason)
        return f"{self.after.type} is {self.after.status}: {words}".encode()[:MESSAGE_LENGTH].decode(errors="ignore")


@dataclass(slots=True)
class Series:
    """One Event, and how often what it tells has happened."""

    manifest: Manifest
    count: int
    at: float
    """When it happened last."""
    due: float
    """When it may be written again."""
    queued: bool = False
    stored: Manifest | None = None
    """As it was written last."""


@dataclass(slots=True)
class Recorder:
    """Writes events. `count` is told the subject's kind and `written`, `repeated`, `limited`, `lost` or `failed`."""

    kube: Callable[[], Kube]
    component: str
    """The name of the operator, as Events give their source."""
    identity: str
    """The name of this very process."""
    reason_of: Callable[[str, Condition], ConditionType | None]
    """Returns the declared reason of a condition of an object of that kind."""
    now: Callable[[], float]
    count: Callable[[str, str], None]
    _queue: asyncio.Queue[Series] = field(default_factory=lambda: asyncio.Queue[Series](QUEUED), init=False)
    _told: dict[str, list[float]] = field(default_factory=dict[str, list[float]], init=False)
    _series: dict[tuple[str, str], Series] = field(default_factory=dict[tuple[str, str], Series], init=False)
    _latest: tuple[str, str, frozenset[str]] = field(default=("", "", frozenset()), init=False)

    def record(self, subject: Manifest, before: Condition | None, after: Condition) -> None:
        """Have a transition told, if it is worth it. Good news of what belongs to another are part of that one's."""
        transition = Transition(before, after, self.reason_of(subject["kind"], after))
        if not transition.worth_telling:
            return
        belongs = _belongs(subject)
        silent = (transition.kind == "Normal" and belongs) or self._is_said(subject, after.reason)
        outcome = None if silent else self._enter(subject, transition)
        # What is made for another may be thousands, and the other tells of them; what flaps has said so by then.
        tell = log.debug if silent or belongs or outcome else log.info
        tell(
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
        """Write until cancelled."""
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
        kube, manifest = self.kube(), series.manifest
        if series.stored is not None:
            try:
                series.stored = await kube.replace({**manifest, "metadata": series.stored["metadata"]})
            except (Conflict, NotFound):  # its hour is over
                series.stored = None
            else:
                return
        name = f"{manifest['involvedObject']['name'][:200]}.{uuid.uuid4().hex[:16]}"
        series.stored = await kube.create({**manifest, "metadata": {**manifest["metadata"], "name": name}})

    def _is_said(self, subject: Manifest, reason: str) -> bool:
        """Whether another condition has told the same reason of the same write: `Ready` says why it is not true."""
        metadata = subject["metadata"]
        uid, version, said = self._latest
        same = (uid, version) == (metadata["uid"], metadata["resourceVersion"])
        self._latest = metadata["uid"], metadata["resourceVersion"], (said if same else frozenset()) | {reason}
        return same and reason in said

    def _enter(self, subject: Manifest, transition: Transition) -> str | None:
        """Queue an Event, or its next count; why not, when that is not to be."""
        now, uid, after = self.now(), subject["metadata"]["uid"], transition.after
        self._forget(now)
        key = (uid, f"{after.type} {after.status} {after.reason}")
        series = self._series.pop(key, None)
        if series is None:
            series = Series(event(subject, transition, (self.component, self.identity), datetime.now(UTC)), 1, now, now)
        else:
            series.count, series.at = series.count + 1, now
            series.manifest = again(series.manifest, transition, series.count, datetime.now(UTC))
        self._series[key] = series  # at the end: the first is the one that has been silent for longest
        if series.queued or series.due > now:
            return "repeated"
        told = [when for when in self._told.pop(uid, ()) if when > now - MINUTE]
        self._told[uid] = told
        if len(told) >= OF_ONE_OBJECT:
            return "limited"
        try:
            self._queue.put_nowait(series)
        except asyncio.QueueFull:
            return "lost"
        told.append(now)
        series.queued, series.due = True, now + MINUTE
        return None

    def _forget(self, now: float) -> None:
        while self._told and (not (first := next(iter(self._told.values()))) or first[-1] < now - MINUTE):
            del self._told[next(iter(self._told))]
        while self._series and (len(self._series) >= KEPT or next(iter(self._series.values())).at < now - SERIES):
            del self._series[next(iter(self._series))]


def _belongs(subject: Manifest) -> bool:
    """Whether somebody made it for another object: a deployment's replicas are hundreds, and each event is a write."""
    return any(owner.get("controller") for owner in subject["metadata"].get("ownerReferences") or ())


def event(subject: Manifest, transition: Transition, source: tuple[str, str], at: datetime) -> Manifest:
    """A transition as an object of the API, about its subject; whoever writes it gives it a name."""
    metadata, (component, identity) = subject["metadata"], source
    namespace = metadata.get("namespace")
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"namespace": namespace or "default"},  # where Kubernetes has those of objects without one
        "eventTime": _micro(at),
        "firstTimestamp": _second(at),
        "lastTimestamp": _second(at),
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
    """The same Event, once what it tells has happened so often, with the latest words."""
    return {
        **before,
        "type": transition.kind,
        "message": transition.message,
        "count": count,
        "lastTimestamp": _second(at),
        "series": {"count": count, "lastObservedTime": _micro(at)},
    }


def _micro(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _second(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
