"""How long a server may make us wait: whatever its Retry-After says, a number of seconds or none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.clients.errors import LONGEST_PAUSE, origin, pause
from modelplane_operator.clients.repeats import Repeats

NOW = datetime(2026, 11, 22, 16, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("60", 60.0),
        ("3153600000", LONGEST_PAUSE),  # a century
        ("9" * 5000, LONGEST_PAUSE),
        ("0", None),
        ("-5", None),
        ("1.5", None),
        ("1e9", None),
        ("inf", None),
        ("nan", None),
        ("²", None),
        ("٣", None),
        ("Sun, 22 Nov 2026 16:00:09 GMT", 9.0),
        ("Sun, 22 Nov 2126 16:00:09 GMT", LONGEST_PAUSE),
        ("Sun, 22 Nov 2026 15:00:09 GMT", None),
        ("Sun, 22 Nov 2026 16:00:09 -0000", None),
        ("Sun, 99 Nov 99999999 16:00:09 GMT", None),
    ],
)
def test_a_pause_is_a_minute_at_most_and_what_is_no_pause_is_none(said: str | None, seconds: float | None) -> None:
    assert pause(said, now=NOW) == seconds


@given(st.text() | st.from_regex(r"\w{3}, \d+ (Jan|Nov) \d+ \d+:\d+:\d+ ([A-Z]{3}|[+-]\d+)"))
def test_nothing_that_a_server_says_is_too_strange(said: str) -> None:
    found = pause(said, now=NOW)

    assert found is None or 0 < found <= LONGEST_PAUSE


def test_a_defect_is_counted_by_where_it_arises() -> None:
    repeats = Repeats()

    def broken() -> int | None:
        try:
            raise RuntimeError("a defect")
        except RuntimeError as error:
            return repeats.worth(("reconcile failed", type(error), origin(error)))

    assert [broken() for _ in range(4)] == [1, 2, None, 4]
