"""Conditions are read alike of every object, whoever has put them there."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.conditions import Condition, condition, gateways_of

SINCE = "2026-01-01T00:00:00Z"
FULL = {"type": "Ready", "status": "True", "reason": "Fine", "message": "All is well", "lastTransitionTime": SINCE}


def live(*conditions: dict[str, Any], generation: int | None = None) -> dict[str, Any]:
    return {
        "metadata": {} if generation is None else {"generation": generation},
        "status": {"conditions": list(conditions)},
    }


@pytest.mark.parametrize(
    ("one", "read"),
    [
        (live(FULL), Condition("Ready", "True", "Fine", "All is well", SINCE, current=True)),
        (live({**FULL, "type": "Other"}, FULL), Condition("Ready", "True", "Fine", "All is well", SINCE, current=True)),
        (live({"type": "Ready", "status": "False"}), Condition("Ready", "False", current=True)),
        (live({"type": "Ready", "status": "Unknown", "message": None}), Condition("Ready", "Unknown", current=True)),
        (live({"status": "True"}), Condition("Ready")),  # of a server that keeps no schema
        (live({**FULL, "type": "Other"}), Condition("Ready")),
        (live(), Condition("Ready")),
        ({"metadata": {}, "status": {"conditions": None}}, Condition("Ready")),
        ({"metadata": {}, "status": None}, Condition("Ready")),
        ({"metadata": {}}, Condition("Ready")),
        ({}, Condition("Ready")),  # an object that is not there
    ],
)
def test_a_condition_has_what_is_told_of_it_and_nothing_where_nothing_is(one: dict[str, Any], read: Condition) -> None:
    assert condition(one, "Ready") == read


@pytest.mark.parametrize(
    ("observed", "generation", "current"),
    [
        (2, 2, True),
        (1, 2, False),
        (7, 1, False),  # restored from a backup, with its status
        (None, 1, False),  # the API server's default for a new Gateway
        (None, None, True),  # a Node
        (0, None, True),
        ("2", 2, False),  # of a server that keeps no schema
    ],
)
def test_a_condition_is_current_when_it_was_judged_of_the_present_content(
    observed: Any, generation: int | None, *, current: bool
) -> None:
    told = {**FULL, **({} if observed is None else {"observedGeneration": observed})}
    assert condition(live(told, generation=generation), "Ready").current is current


def test_what_is_not_told_is_not_current() -> None:
    assert not condition(live(generation=1), "Ready").current
    assert not condition(live(), "Ready").current


def test_a_part_of_a_status_is_as_current_as_the_object_it_is_of() -> None:
    said = {**FULL, "type": "Accepted", "observedGeneration": 2}
    route = {"metadata": {"generation": 2}, "status": {"parents": [{"conditions": [said]}, {}]}}
    ours, silent = gateways_of(route)
    assert condition(route, "Accepted", ours) == Condition(
        "Accepted", "True", "Fine", "All is well", SINCE, current=True
    )
    assert condition(route, "Accepted", silent) == condition(route, "Accepted") == Condition("Accepted")
    assert not condition({**route, "metadata": {"generation": 3}}, "Accepted", ours).current


def test_a_gateway_speaks_of_a_policy_as_it_does_of_a_route() -> None:
    assert [*gateways_of({"status": {"ancestors": [{"controllerName": "a"}]}})] == [{"controllerName": "a"}]
    assert [*gateways_of({"status": {"parents": [{"controllerName": "b"}]}})] == [{"controllerName": "b"}]
    assert [*gateways_of({})] == []


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"reason": "Fine", "message": "All is well"}, "Fine: All is well"),
        ({"reason": "Fine"}, "Fine"),
        ({"message": "All is well"}, "All is well"),
        ({}, ""),
    ],
)
def test_why_is_the_reason_and_the_message_as_far_as_there_are(told: dict[str, str], why: str) -> None:
    assert condition(live({"type": "Ready", "status": "False", **told}), "Ready").why == why
