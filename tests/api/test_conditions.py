"""Conditions change when what they say changes, and not otherwise."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from kubeloop.condition_types import (
    MESSAGE_LENGTH,
    STEP,
    WARNING,
    Condition,
    ConditionType,
    Ready,
    Synced,
    explain_ready,
    is_true,
    merge,
)
from modelplane_operator.api import KINDS
from modelplane_operator.api.clusters.provisioning import CapacityAvailable
from modelplane_operator.api.model_cache import ArtifactReady
from modelplane_operator.api.model_replica import ModelReady
from modelplane_operator.api.reasons import LONGEST, not_ready
from modelplane_operator.api.remedies import REMEDIES, remedy
from scripts import troubleshooting
from tests.support.messages import faults

BEFORE = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)
NOW = BEFORE + timedelta(minutes=5)

ALL = sorted({condition for kind in KINDS for condition in kind.definition.conditions}, key=repr)


def test_judging_the_same_again_changes_nothing() -> None:
    known = (Ready.CREATING.condition(BEFORE, message="2 of 3", generation=4),)

    assert merge(known, [Ready.CREATING.condition(NOW, message="2 of 3", generation=4)]) == known


def test_a_new_message_keeps_the_time_of_the_transition() -> None:
    known = (Ready.CREATING.condition(BEFORE, message="1 of 3"),)

    assert merge(known, [Ready.CREATING.condition(NOW, message="2 of 3")]) == (
        Ready.CREATING.condition(BEFORE, message="2 of 3"),
    )


def test_a_new_status_moves_the_time_of_the_transition() -> None:
    known = (Ready.CREATING.condition(BEFORE), Synced.RECONCILE_SUCCESS.condition(BEFORE))

    merged = merge(known, [Ready.AVAILABLE.condition(NOW)])

    assert merged == (Synced.RECONCILE_SUCCESS.condition(BEFORE), Ready.AVAILABLE.condition(NOW))
    assert is_true(merged, Ready)
    assert not is_true(known, Ready)


def test_a_message_is_cut_to_what_kubernetes_takes() -> None:
    assert Ready.CREATING.condition(NOW, message="X" * 40_000).message == "X" * MESSAGE_LENGTH


def test_a_message_begins_with_a_capital_whatever_clause_comes_first() -> None:
    assert Ready.CREATING.condition(NOW, message="pool a: none; pool b: none").message == "Pool a: none; pool b: none"
    assert Ready.AVAILABLE.condition(NOW).message == ""


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("its gateway is on its way", "subject"),
        ("metallb is not installed", "a name"),
        ("waiting for 1 pods to end", "'1 pods'"),
        ("requests go to 2 endpoint(s)", "count"),
        ("0 of 1 replica placed; 1 is on its way, and 11 pods run on 10.0.0.1 items", ""),
    ],
)
def test_what_messages_are_held_to_is_seen_to_be_broken(words: str, fault: str) -> None:
    found = [*faults(words)]
    assert len(found) == bool(fault)
    assert all(fault in one for one in found)


@pytest.mark.parametrize("condition", ALL, ids=lambda condition: condition.__name__)
def test_reasons_are_words_that_scripts_can_compare(condition: type[ConditionType]) -> None:
    assert all(reason.reason.isalnum() and reason.reason[0].isupper() for reason in condition)
    assert len({reason.reason for reason in condition}) == len(condition)
    assert all(reason.meaning.endswith(".") for reason in condition)


REASONS = sorted((one for of in ALL for one in of), key=repr)


@pytest.mark.parametrize("reason", REASONS, ids=str)
def test_a_reason_that_tells_of_trouble_or_may_last_says_what_to_do(reason: ConditionType) -> None:
    needed = reason.severity == WARNING or (reason.severity == STEP and reason.status != "True")
    remedy = REMEDIES.get(reason)

    assert (remedy is not None) == needed
    if remedy is not None:
        assert re.fullmatch(r"[A-Z][^|]*[.]", remedy.do)


def test_every_reason_of_trouble_is_found_by_what_people_see() -> None:
    covered = {of for symptom in troubleshooting.SYMPTOMS for of in symptom.conditions}

    assert {of for of in ALL if any(one.severity == WARNING for one in of)} - covered == set()


def test_what_ready_borrows_from_another_condition_has_the_same_remedy() -> None:
    why = ModelReady.IMAGE_PULL_FAILED.condition(NOW, message="no such image")
    ready = not_ready("ModelReplica", why)

    assert ready.type == "Ready"
    assert remedy("ModelReplica", ready) == remedy("ModelReplica", why) == REMEDIES[ModelReady.IMAGE_PULL_FAILED].do
    assert remedy("ModelReplica", Ready.AVAILABLE.condition(NOW)) == ""


def test_a_terminal_obeys_nothing_of_what_a_message_repeats() -> None:
    said = "Pod x ended: \x1b]0;owned\x07\x1b[2J\x9b31m\rall is well\u202egnorw\x00, Zürich\tok\nnext"

    message = Ready.CREATING.condition(NOW, message=said).message

    shown = "Pod x ended: \ufffd]0;owned\ufffd\ufffd[2J\ufffd31m\ufffdall is well\ufffdgnorw\ufffd, Zürich\tok\nnext"
    assert message == shown
    assert Ready.CREATING.condition(NOW, message=message).message == message


@pytest.mark.parametrize(
    ("kind", "reason", "do"),
    [
        ("ModelDeployment", "CrashLoop", REMEDIES[ModelReady.CRASH_LOOP].do),
        ("LLMInference", "CrashLoop", REMEDIES[ModelReady.CRASH_LOOP].do),
        ("ModelReplica", "VolumeNotBound", REMEDIES[ArtifactReady.VOLUME_NOT_BOUND].do),
        ("LLMInference", "VolumeNotBound", REMEDIES[ArtifactReady.VOLUME_NOT_BOUND].do),
        ("InferenceCluster", "Exhausted", REMEDIES[CapacityAvailable.EXHAUSTED].do),
        ("ModelDeployment", "ReconcileError", REMEDIES[Synced.RECONCILE_ERROR].do),
    ],
)
def test_the_reason_of_a_part_is_the_owners_and_so_is_its_remedy(kind: str, reason: str, do: str) -> None:
    ready = not_ready(kind, Ready.CREATING.condition(NOW, message="so it is"), reason=reason)

    assert (ready.type, ready.status, ready.reason, ready.message) == ("Ready", "False", reason, "So it is")
    assert remedy(kind, ready) == do


def test_ready_without_a_message_has_the_meaning_of_its_reason() -> None:
    assert (
        not_ready("ModelReplica", ModelReady.MODEL_STARTING.condition(NOW)).message == ModelReady.MODEL_STARTING.meaning
    )


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("X" * 300, "X" * 300),
        ("; ".join(["cause", "x" * 200, "y" * 200]), f"Cause; {'x' * 200}; see ModelReady"),
        (f"cause {'x' * 200} {'y' * 200}", f"Cause {'x' * 200} ...; see ModelReady"),
        (f"cause. {'x' * 200} {'y' * 200}", "Cause; see ModelReady"),
        (
            "; ".join(["cause", "x" * 150, "y" * 150, "see kubectl logs x", "z"]),
            f"Cause; {'x' * 150}; see kubectl logs x; see ModelReady",
        ),
        (
            "; ".join(["0 of 1", f"cause {'x' * 150} {'y' * 150}", "z"]),
            f"0 of 1; cause {'x' * 150} ...; see ModelReady",
        ),
    ],
)
def test_ready_has_as_many_clauses_as_a_line_takes(message: str, shown: str) -> None:
    found = not_ready("ModelReplica", ModelReady.CRASH_LOOP.condition(NOW, message=message)).message

    assert found == shown
    assert len(found) <= LONGEST


def test_ready_says_what_synced_says_if_only_a_write_fails() -> None:
    failed = Synced.RECONCILE_ERROR.condition(NOW, message="apply Deployment x: exceeded quota", generation=2)

    def ready(*others: Condition, synced: Condition = failed) -> Condition:
        return explain_ready(merge((), (*others, synced)))[-1]

    waits = Ready.CREATING.condition(BEFORE)
    assert ready(waits) == failed.model_copy(update={"type": "Ready", "last_transition_time": BEFORE})
    assert ready() == failed.model_copy(update={"type": "Ready"})
    assert ready(ready(waits), synced=failed.model_copy(update={"message": "another"})).message == "another"


@pytest.mark.parametrize(
    ("ready", "synced"),
    [
        (Ready.AVAILABLE, Synced.RECONCILE_ERROR),
        (Ready.DELETING, Synced.RECONCILE_ERROR),
        (Ready.UNREACHABLE, Synced.RECONCILE_ERROR),
        (Ready.CREATING, Synced.RECONCILE_SUCCESS),
        (Ready.CREATING, Synced.RECONCILE_PAUSED),
    ],
)
def test_ready_keeps_its_own_words(ready: Ready, synced: Synced) -> None:
    conditions = merge((), (ready.condition(NOW, message="mine"), synced.condition(NOW, message="theirs")))

    assert explain_ready(conditions) == conditions
