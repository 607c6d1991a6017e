"""How often a status is written of which only counts move."""

from __future__ import annotations

import pytest

from kubeloop.objects import Manifest
from kubeloop.status_pace import PRUNED_AT, StatusPace


def status(ready: str = "False", *, count: int = 0, message: str = "", generation: int = 1) -> Manifest:
    condition = {"type": "Ready", "status": ready, "reason": "Starting", "message": message}
    return {"replicas": {"ready": count}, "conditions": [condition | {"observedGeneration": generation}]}


def live(known: Manifest | None, uid: str = "one") -> Manifest:
    return {"metadata": {"uid": uid}} | ({"status": known} if known else {})


@pytest.mark.parametrize(
    "told", [status("True"), status(generation=2), {"conditions": []}, {**status(), "conditions": [{"type": "Other"}]}]
)
def test_what_becomes_true_or_false_is_written_at_once(told: Manifest) -> None:
    pace = StatusPace()
    pace.on_write("one", 100.0)

    assert pace.wait(live(status()), told, 100.1) == 0.0


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1)])
def test_a_count_that_comes_to_zero_or_leaves_it_is_written_at_once(before: int, after: int) -> None:
    """What nobody uses any more may be deleted."""
    pace = StatusPace()
    pace.on_write("one", 100.0)

    assert pace.wait(live({"replicas": before}), {"replicas": after}, 100.1) == 0.0
    assert pace.wait(live({"replicas": 7}), {"replicas": 8}, 100.1) == pytest.approx(0.9)


def test_the_first_status_is_written_at_once() -> None:
    pace = StatusPace()

    assert pace.wait(live(None), status(), 100.0) == 0.0
    assert pace.wait(live(status()), status(count=1), 100.0) == 0.0


def test_counts_and_messages_are_written_a_second_after_the_last_write() -> None:
    pace = StatusPace()
    pace.on_write("one", 100.0)

    assert pace.wait(live(status()), status(count=1), 100.25) == pytest.approx(0.75)
    assert pace.wait(live(status()), status(message="1 of 3"), 100.25) == pytest.approx(0.75)
    assert pace.wait(live(status()), status(count=2), 101.0) == 0.0
    assert pace.wait(live(status(), "another"), status(count=1), 100.25) == 0.0


def test_objects_that_are_written_no_more_are_forgotten() -> None:
    pace = StatusPace()
    for number in range(3 * PRUNED_AT):
        pace.on_write(f"uid-{number}", number * 0.01)

    assert len(pace._written) <= 2 * PRUNED_AT
