"""Which transitions become Events, of which type, how many, and that nobody waits for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubeloop.client.kube import Kube
from kubeloop.condition_types import Condition, ConditionStatus, ConditionType
from kubeloop.errors import Unreachable
from kubeloop.events import (
    MAX_EVENTS,
    MAX_PER_OBJECT,
    MESSAGE_LENGTH,
    MINUTE,
    QUEUED,
    SERIES,
    Recorder,
    Transition,
    again,
    event,
)
from modelplane_operator.api import KINDS, Kind, reasons

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def condition(status: ConditionStatus, reason: str, kind: str = "Ready", message: str | None = None) -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=NOW)


def subject(uid: str = "u", namespace: str | None = "ml", version: int = 7) -> dict[str, Any]:
    metadata = {"name": "m", "uid": uid, "resourceVersion": str(version)}
    metadata |= {"namespace": namespace} if namespace else {}
    return {"apiVersion": "modelplane.ai/v1alpha1", "kind": "ModelCache", "metadata": metadata}


TRUE, CREATING = condition("True", "Available"), condition("False", "Creating")


OF = {"ReplicasScheduled": "ModelDeployment", "Progressing": "ModelDeployment", "RoutingReady": "ModelEndpoint"}


SOURCE = ("modelplane.ai/operator", "op")


def transition_of(kind: str, before: Condition | None, after: Condition) -> Transition:
    return Transition(before, after, reasons.find(kind, after))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, TRUE, "Normal"),
        (None, CREATING, None),  # every new object has much that is not there yet
        (None, condition("False", "InvalidURL", "RoutingReady"), "Warning"),
        (None, condition("True", "ReconcileSuccess", "Synced"), None),
        (None, condition("True", "ReplicasCreated", "ReplicasScheduled"), "Normal"),
        (CREATING, TRUE, "Normal"),
        (CREATING, condition("False", "Creating", message="2 of 3"), None),
        (CREATING, condition("False", "WhatANewerVersionSays"), None),
        (TRUE, CREATING, "Normal"),  # it mends by itself
        (TRUE, condition("Unknown", "Unreachable"), "Warning"),
        (TRUE, condition("False", "Deleting"), "Normal"),
        (CREATING, condition("False", "NoClusters", "ReplicasScheduled"), "Warning"),
        (condition("False", "Settled", "Progressing"), condition("True", "Moving", "Progressing"), "Normal"),
        (condition("True", "Moving", "Progressing"), condition("False", "Settled", "Progressing"), "Normal"),
        (condition("True", "ReconcileSuccess", "Synced"), condition("False", "ReconcileError", "Synced"), "Warning"),
        (condition("True", "ReconcileSuccess", "Synced"), condition("False", "ReconcilePaused", "Synced"), "Normal"),
        (condition("False", "ReconcileError", "Synced"), condition("True", "ReconcileSuccess", "Synced"), "Normal"),
    ],
)
def test_what_is_told_and_how(before: Condition | None, after: Condition, told: str | None) -> None:
    transition = transition_of(OF.get(after.type, "InferenceGateway"), before, after)

    assert (transition.kind if transition.worth_telling else None) == told


REASONS = [(kind, one) for kind in KINDS for of in kind.definition.conditions for one in of]


@pytest.mark.parametrize(
    ("kind", "reason"), REASONS, ids=[f"{kind.definition.kind}-{one.type}-{one.reason}" for kind, one in REASONS]
)
def test_every_reason_says_which_event_it_makes(kind: Kind, reason: ConditionType) -> None:
    """Beside the reason, and not by how it sounds; and the Event has a word for it even when nobody wrote any."""
    if reason.status != "True":
        assert len(reason.value) == 4, "say STEP, NEWS or WARNING beside it"
    after = condition(reason.status, reason.reason, reason.type)
    transition = transition_of(kind.definition.kind, condition("False", "Before", reason.type), after)
    expected = {"Step": None, "Normal": "Normal", "Warning": "Warning"}[reason.severity]

    assert (transition.kind if transition.worth_telling else None) == expected
    assert transition.message == f"{reason.type} is {reason.status}: {reason.meaning}"[:MESSAGE_LENGTH]


def test_what_nobody_mends_but_a_person_is_a_warning() -> None:
    warnings = {one.reason for _, one in REASONS if one.severity == "Warning"}

    assert warnings >= {"NotPermitted", "UnsupportedSource", "CertificateUnusable", "RolledBack"}
    assert {one.reason for _, one in REASONS if one.severity == "Warning" and one.status == "True"} == {
        "Degraded",
        "Limited",
        "Stalled",
    }


@dataclass
class Told:
    """A recorder whose events nobody writes, and what it counts."""

    now: float = 0.0
    counts: Counter[str] = field(default_factory=Counter[str])
    version: int = 0
    recorder: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.away, SOURCE[0], SOURCE[1], reasons.find, lambda: self.now, self.count)

    def count(self, kind: str, outcome: str) -> None:
        assert kind == "ModelCache"
        self.counts[outcome] += 1

    def away(self) -> Kube:
        raise Unreachable("the hub is away")

    def flap(self, reason: str, uid: str = "u") -> None:
        self.version += 1
        self.recorder.record(subject(uid, version=self.version), TRUE, condition("False", reason))

    def written(self) -> list[tuple[str, int]]:
        """What would have been written by now: reasons, and how often each has happened."""
        found: list[tuple[str, int]] = []
        while not self.recorder._queue.empty():
            series = self.recorder._queue.get_nowait()
            series.queued = False
            found.append((series.manifest["reason"], series.manifest["count"]))
        return found


async def test_the_same_again_is_counted_in_the_same_event_once_a_minute() -> None:
    told = Told()
    told.flap("Gone")
    told.flap("Gone")
    assert told.written() == [("Gone", 2)]  # nobody had written it yet
    told.flap("Gone")
    told.flap("Gone", uid="another")
    assert told.written() == [("Gone", 1)]
    told.now = MINUTE + 1
    told.flap("Gone")

    assert told.written() == [("Gone", 4)]
    assert told.counts == {"repeated": 2}


async def test_what_comes_again_after_long_is_another_event() -> None:
    told = Told()
    told.flap("Gone")
    assert told.written() == [("Gone", 1)]
    told.now = SERIES + 1
    told.flap("Gone")

    assert told.written() == [("Gone", 1)]
    assert len(told.recorder._series) == 1


async def test_ready_does_not_tell_again_what_another_condition_has_told() -> None:
    told = Told()
    gone = subject(version=8)
    told.recorder.record(gone, None, condition("False", "NoClusters", "ArtifactReady"))
    told.recorder.record(gone, TRUE, condition("False", "NoClusters"))
    assert told.written() == [("NoClusters", 1)]
    told.recorder.record(subject(version=9), TRUE, condition("False", "NoClusters"))

    assert told.written() == [("NoClusters", 1)]


async def test_one_object_is_told_of_so_often_a_minute_and_no_more() -> None:
    told = Told()
    for number in range(MAX_PER_OBJECT + 5):
        told.now += 1.0
        told.flap(f"Reason{number}")
    assert (told.recorder._queue.qsize(), told.counts) == (MAX_PER_OBJECT, {"limited": 5})

    told.now += 60.0
    told.flap("Another")
    assert told.recorder._queue.qsize() == MAX_PER_OBJECT + 1
    assert list(told.recorder._recorded) == ["u"]


async def test_of_what_belongs_to_another_only_bad_news_is_told() -> None:
    told = Told()
    replica = subject()
    replica["metadata"]["ownerReferences"] = [{"kind": "ModelDeployment", "name": "d", "uid": "o", "controller": True}]

    told.recorder.record(replica, CREATING, TRUE)
    assert told.recorder._queue.qsize() == 0
    told.recorder.record(replica, TRUE, CREATING)  # it mends by itself
    assert told.recorder._queue.qsize() == 0
    told.recorder.record(replica, TRUE, condition("Unknown", "Unreachable"))
    assert told.recorder._queue.qsize() == 1


async def test_the_log_has_no_lines_of_what_belongs_to_another_and_one_of_what_flaps() -> None:
    told = Told()
    replica = subject("replica")
    replica["metadata"]["ownerReferences"] = [{"kind": "ModelDeployment", "name": "d", "uid": "o", "controller": True}]

    with capture_logs() as lines:
        for _ in range(3):
            told.flap("Gone")
            told.recorder.record(replica, TRUE, CREATING)
            told.recorder.record(replica, CREATING, TRUE)

    assert [(line["key"], line["reason"]) for line in lines if line["log_level"] == "info"] == [("ml/m", "Gone")]


async def test_what_was_told_long_ago_is_forgotten() -> None:
    told = Told()
    for number in range(5):
        told.flap("Gone", uid=str(number))
    told.now = 61.0
    told.flap("Gone", uid="last")

    assert list(told.recorder._recorded) == ["last"]


async def test_when_too_many_wait_the_newest_are_lost_and_counted() -> None:
    told = Told()
    for number in range(QUEUED + 2):
        told.flap("Gone", uid=str(number))

    assert told.counts == {"lost": 2}


async def test_no_more_than_so_many_events_are_kept_for_what_may_come_again() -> None:
    told = Told()
    for number in range(MAX_EVENTS + 5):
        told.flap("Gone", uid=str(number))
        told.written()

    assert len(told.recorder._series) == MAX_EVENTS


async def test_a_hub_that_is_away_costs_the_event_and_nothing_else() -> None:
    told = Told()
    told.flap("Gone")
    running = asyncio.create_task(told.recorder.run())
    async with asyncio.timeout(60):
        while not told.counts["failed"]:  # noqa: ASYNC110 - only this loop runs the task
            await asyncio.sleep(0)
    running.cancel()

    assert told.counts == {"failed": 1}


def test_a_message_is_cut_where_kubernetes_would_refuse_it() -> None:
    long = condition("False", "Gone", message="ä" * MESSAGE_LENGTH)

    message = event(subject(), transition_of("ModelCache", TRUE, long), SOURCE, NOW)["message"]

    assert message.startswith("Ready is False: ää")
    assert MESSAGE_LENGTH - 1 <= len(message.encode()) <= MESSAGE_LENGTH


@pytest.mark.fleet
@pytest.mark.parametrize("namespaced", [True, False])
async def test_the_server_takes_events_about_all_objects(kube: Kube, namespace: str, namespaced: bool) -> None:  # noqa: FBT001
    about = subject(namespace=namespace if namespaced else None)
    long = transition_of("ModelCache", TRUE, condition("Unknown", "Gone", message="ä" * MESSAGE_LENGTH))
    made = event(about, long, SOURCE, datetime.now(UTC))
    named = {**made, "metadata": {**made["metadata"], "name": f"m.{namespace}"}}

    stored = await kube.create(named)
    repeated = await kube.replace({**again(stored, long, 2, datetime.now(UTC)), "metadata": stored["metadata"]})

    assert stored["metadata"]["namespace"] == (namespace if namespaced else "default")
    assert stored["lastTimestamp"]
    assert (repeated["count"], repeated["series"]["count"]) == (2, 2)
