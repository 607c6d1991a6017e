"""Which transitions become Events, of which type, how many, and that nobody waits for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from modelplane_operator.api.conditions import Condition, ConditionStatus
from modelplane_operator.clients.errors import Unreachable
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.resources import EVENT
from modelplane_operator.controllers.events import NOTE_LENGTH, OF_ONE_OBJECT, QUEUED, Recorder, Transition, event

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def condition(status: ConditionStatus, reason: str, kind: str = "Ready", message: str | None = None) -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=NOW)


def subject(uid: str = "u", namespace: str | None = "ml") -> dict[str, Any]:
    metadata = {"name": "m", "uid": uid, "resourceVersion": "7", **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "modelplane.ai/v1alpha1", "kind": "ModelCache", "metadata": metadata}


TRUE, CREATING = condition("True", "Available"), condition("False", "Creating")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, TRUE, "Normal"),
        (None, CREATING, None),  # every new object has much that is not there yet
        (None, condition("False", "InvalidURL"), "Warning"),
        (None, condition("True", "ReconcileSuccess", "Synced"), None),
        (CREATING, TRUE, "Normal"),
        (CREATING, condition("False", "Starting"), "Normal"),
        (CREATING, condition("False", "Creating", message="2 of 3"), None),
        (TRUE, CREATING, "Warning"),
        (TRUE, condition("Unknown", "Unreachable"), "Warning"),
        (TRUE, condition("False", "Deleting"), "Normal"),
        (CREATING, condition("False", "NoClusters"), "Warning"),
        (condition("False", "Settled", "Progressing"), condition("True", "Moving", "Progressing"), "Normal"),
        (condition("True", "Moving", "Progressing"), condition("False", "Settled", "Progressing"), "Normal"),
        (condition("True", "ReconcileSuccess", "Synced"), condition("False", "ReconcileError", "Synced"), "Warning"),
        (condition("True", "ReconcileSuccess", "Synced"), condition("False", "ReconcilePaused", "Synced"), "Normal"),
        (condition("False", "ReconcileError", "Synced"), condition("True", "ReconcileSuccess", "Synced"), "Normal"),
    ],
)
def test_what_is_told_and_how(before: Condition | None, after: Condition, told: str | None) -> None:
    transition = Transition(before, after)

    assert (transition.kind if transition.worth_telling else None) == told


@dataclass
class Told:
    """A recorder whose events nobody writes, and what it counts."""

    now: float = 0.0
    counts: Counter[str] = field(default_factory=Counter[str])
    recorder: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.away, "op", lambda: self.now, self.count)

    def count(self, kind: str, outcome: str) -> None:
        assert kind == "ModelCache"
        self.counts[outcome] += 1

    def away(self) -> Kube:
        raise Unreachable("the hub is away")

    def flap(self, reason: str, uid: str = "u") -> None:
        self.recorder.record(subject(uid), TRUE, condition("False", reason))


async def test_the_same_again_within_a_minute_is_told_once() -> None:
    told = Told()
    for _ in range(3):
        told.flap("Gone")
    told.flap("Gone", uid="another")
    told.now = 61.0
    told.flap("Gone")

    assert told.recorder._queue.qsize() == 3
    assert told.counts == {"repeated": 2}


async def test_one_object_is_told_of_so_often_a_minute_and_no_more() -> None:
    told = Told()
    for number in range(OF_ONE_OBJECT + 5):
        told.now += 1.0
        told.flap(f"Reason{number}")
    assert (told.recorder._queue.qsize(), told.counts) == (OF_ONE_OBJECT, {"limited": 5})

    told.now += 60.0
    told.flap("Another")
    assert told.recorder._queue.qsize() == OF_ONE_OBJECT + 1
    assert list(told.recorder._told) == ["u"]


async def test_of_what_belongs_to_another_only_bad_news_is_told() -> None:
    told = Told()
    replica = subject()
    replica["metadata"]["ownerReferences"] = [{"kind": "ModelDeployment", "name": "d", "uid": "o", "controller": True}]

    told.recorder.record(replica, CREATING, TRUE)
    assert told.recorder._queue.qsize() == 0
    told.recorder.record(replica, TRUE, CREATING)
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

    assert list(told.recorder._told) == ["last"]


async def test_when_too_many_wait_the_newest_are_lost_and_counted() -> None:
    told = Told()
    for number in range(QUEUED + 2):
        told.flap("Gone", uid=str(number))

    assert told.counts == {"lost": 2}


async def test_a_hub_that_is_away_costs_the_event_and_nothing_else() -> None:
    told = Told()
    told.flap("Gone")
    running = asyncio.create_task(told.recorder.run())
    async with asyncio.timeout(60):
        while not told.counts["failed"]:  # noqa: ASYNC110 - only this loop runs the task
            await asyncio.sleep(0)
    running.cancel()

    assert told.counts == {"failed": 1}


def test_a_note_is_cut_where_kubernetes_would_refuse_it() -> None:
    long = condition("False", "Gone", message="ä" * NOTE_LENGTH)

    note = event(subject(), Transition(TRUE, long), "op", NOW)["note"]

    assert note.startswith("Ready is False: ää")
    assert NOTE_LENGTH - 1 <= len(note.encode()) <= NOTE_LENGTH


@pytest.mark.fleet
@pytest.mark.parametrize("namespaced", [True, False])
async def test_the_server_takes_events_about_all_objects(kube: Kube, namespace: str, namespaced: bool) -> None:  # noqa: FBT001
    about = subject(namespace=namespace if namespaced else None)
    long = condition("Unknown", "Gone", message="ä" * NOTE_LENGTH)

    stored = await kube.create(event(about, Transition(TRUE, long), "op", datetime.now(UTC)))

    assert stored["kind"] == EVENT.kind
    assert stored["metadata"]["namespace"] == (namespace if namespaced else "default")
