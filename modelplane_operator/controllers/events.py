"""Events: a transition of a condition, told to whoever runs `kubectl describe` or `kubectl get events`.

They are written in the background and at best effort: a reconcile never waits for one, and none is written at rest.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import structlog

from modelplane_operator.api.conditions import Condition, Synced
from modelplane_operator.api.model import Manifest
from modelplane_operator.clients.errors import ClientError
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.resources import EVENT, key_of

CONTROLLER = "modelplane.ai/operator"
QUEUED = 1000  # a fleet that turns over writes some hundred a second; what is told minutes late is of no use
OF_ONE_OBJECT = 10  # in a minute: one that flaps has said so by then
MINUTE = 60.0
NOTE_LENGTH = 1024  # what Kubernetes allows, in bytes

# Words in reasons that are bad news whatever the condition was before.
TROUBLE = re.compile("Error|Failed|Invalid|Insufficient|Missing|NotFound|NotServed|Unreachable|Unresolved|^No[A-Z]")
INTENDED = {"Deleting", Synced.RECONCILE_PAUSED.reason}
TOLD = {"Ready", "ReplicasScheduled", "Progressing"}  # good news worth a write: each event is one
NEUTRAL = {"Progressing"}  # that it ends is what everybody waits for

Kind = Literal["Normal", "Warning"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Transition:
    """A condition of an object that has become another; None before: it was not there."""

    before: Condition | None
    after: Condition

    @property
    def worth_telling(self) -> bool:
        """Whether something happened that people wait for or must know; the steps on the way are in the conditions."""
        after, before = self.after, self.before
        if before is None:
            return self.kind == "Warning" or (after.status == "True" and after.type in TOLD)
        changed = (before.status, before.reason) != (after.status, after.reason)
        return changed and (self.kind == "Warning" or after.type in {*TOLD, Synced.__name__})

    @property
    def kind(self) -> Kind:
        after = self.after
        if after.status == "True" or after.reason in INTENDED:
            return "Normal"
        lost = self.before is not None and self.before.status == "True" and after.type not in NEUTRAL
        return "Warning" if lost or TROUBLE.search(after.reason) else "Normal"


@dataclass(slots=True)
class Recorder:
    """Writes events. `count` is told the subject's kind and `written`, `repeated`, `limited`, `lost` or `failed`."""

    kube: Callable[[], Kube]
    identity: str
    now: Callable[[], float]
    count: Callable[[str, str], None]
    _queue: asyncio.Queue[Manifest] = field(default_factory=lambda: asyncio.Queue[Manifest](QUEUED), init=False)
    _told: dict[str, list[tuple[float, str]]] = field(default_factory=dict[str, list[tuple[float, str]]], init=False)

    def record(self, subject: Manifest, before: Condition | None, after: Condition) -> None:
        """Have a transition told, if it is worth it. Good news of what belongs to another are part of that one's."""
        transition = Transition(before, after)
        if not transition.worth_telling:
            return
        belongs = _belongs(subject)
        good = transition.kind == "Normal"
        outcome = None
        if not (good and belongs):
            outcome = self._refusal(subject["metadata"]["uid"], f"{after.type} {after.status} {after.reason}")
        # What is made for another may be thousands, and the other tells of them; what flaps has said so by then.
        tell = log.debug if belongs or outcome else log.info
        tell(
            "transition",
            kind=subject["kind"],
            key=str(key_of(subject)),
            condition=after.type,
            status=after.status,
            reason=after.reason,
            message=after.message,
        )
        if good and belongs:
            return
        if outcome is None:
            try:
                self._queue.put_nowait(event(subject, transition, self.identity, datetime.now(UTC)))
            except asyncio.QueueFull:
                outcome = "lost"
        if outcome is not None:
            self.count(subject["kind"], outcome)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            manifest = await self._queue.get()
            kind = manifest["regarding"]["kind"]
            try:
                await self.kube().create(manifest)
                self.count(kind, "written")
            except ClientError as error:
                self.count(kind, "failed")
                log.debug("event not written", kind=kind, error=str(error))

    def _refusal(self, uid: str, said: str) -> str | None:
        """Why this is not told, when it is not; otherwise it counts as told."""
        now = self.now()
        while self._told and next(iter(self._told.values()))[-1][0] < now - MINUTE:
            del self._told[next(iter(self._told))]
        told = [(when, what) for when, what in self._told.pop(uid, ()) if when > now - MINUTE]
        outcome = None
        if any(what == said for _, what in told):
            outcome = "repeated"
        elif len(told) >= OF_ONE_OBJECT:
            outcome = "limited"
        else:
            told.append((now, said))
        self._told[uid] = told  # at the end: the first is the one that has been silent for longest
        return outcome


def _belongs(subject: Manifest) -> bool:
    """Whether somebody made it for another object: a deployment's replicas are hundreds, and each event is a write."""
    return any(owner.get("controller") for owner in subject["metadata"].get("ownerReferences") or ())


def event(subject: Manifest, transition: Transition, identity: str, at: datetime) -> Manifest:
    """A transition as an object of the API, about its subject."""
    metadata, after = subject["metadata"], transition.after
    namespace = metadata.get("namespace")
    said = f"{after.type} is {after.status}" + (f": {after.message}" if after.message else "")
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "name": f"{metadata['name'][:200]}.{uuid.uuid4().hex[:16]}",
            "namespace": namespace or "default",  # where Kubernetes has those of objects without one
        },
        "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": transition.kind,
        "reason": after.reason,
        "action": after.type,
        "note": said.encode()[:NOTE_LENGTH].decode(errors="ignore"),
        "reportingController": CONTROLLER,
        "reportingInstance": identity,
        "regarding": {
            "apiVersion": subject["apiVersion"],
            "kind": subject["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            **({"namespace": namespace} if namespace else {}),
        },
    }
