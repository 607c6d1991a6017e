"""When maintenance windows are open: clocks that change, windows that meet, and ones that cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.resource import parse_stored
from modelplane_operator.api.maintenance import MaintenanceWindow
from modelplane_operator.scheduling.maintenance import describe_windows, find_opening, find_problem, local_time

BERLIN = ZoneInfo("Europe/Berlin")


def window(schedule: str, duration: str = "1h", zone: str = "Europe/Berlin") -> MaintenanceWindow:
    """Return a window as it may be stored, even if its bounds refuse it today."""
    return parse_stored(MaintenanceWindow, {"schedule": schedule, "duration": duration, "timeZone": zone})


def berlin(text: str, *, fold: int = 0) -> datetime:
    """Return a time of the clocks in Berlin."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).astimezone(UTC)


SUNDAYS = window("0 2 * * SUN", "4h")


@pytest.mark.parametrize(
    ("now", "opening"),
    [
        ("2026-11-28 12:00", "2026-11-29 02:00"),
        ("2026-11-29 01:59", "2026-11-29 02:00"),
        ("2026-11-29 02:00", "2026-11-29 02:00"),
        ("2026-11-29 05:59", "2026-11-29 05:59"),
        ("2026-11-29 06:00", "2026-12-06 02:00"),
    ],
)
def test_a_window_is_open_from_its_opening_on_for_its_duration(now: str, opening: str) -> None:
    assert find_opening(berlin(now), [SUNDAYS]) == berlin(opening)


def test_seconds_do_not_matter() -> None:
    assert find_opening(berlin("2026-11-29 02:00") + timedelta(seconds=59), [SUNDAYS]) == berlin("2026-11-29 02:00")


def test_without_windows_every_time_is_right() -> None:
    now = berlin("2026-11-28 12:00")

    assert find_opening(now) == find_opening(now, [], []) == now


# Where the clocks change: on 29 March 2026 there is no 02:30 in Berlin, and on 25 October there are two -


def test_an_opening_in_the_skipped_hour_comes_right_after_it() -> None:
    daily = window("30 2 * * *")

    assert find_opening(berlin("2026-03-28 12:00"), [daily]) == berlin("2026-03-29 03:00")
    assert find_opening(berlin("2026-03-29 03:59"), [daily]) == berlin("2026-03-29 03:59")
    assert find_opening(berlin("2026-03-29 04:00"), [daily]) == berlin("2026-03-30 02:30")


def test_an_opening_in_the_repeated_hour_comes_once_and_the_duration_is_that_of_a_stopwatch() -> None:
    daily = window("30 2 * * *", "2h")

    opening = find_opening(berlin("2026-10-24 12:00"), [daily])

    assert opening == berlin("2026-10-25 02:30")
    # Two hours later the clocks show 03:30.
    assert find_opening(berlin("2026-10-25 03:29"), [daily]) == berlin("2026-10-25 03:29")
    assert find_opening(berlin("2026-10-25 03:30"), [daily]) == berlin("2026-10-26 02:30")
    assert find_opening(berlin("2026-10-25 02:45", fold=1), [daily]) == berlin("2026-10-25 02:45", fold=1)


def test_a_night_in_which_the_clocks_change_is_an_hour_shorter_or_longer_by_the_clock() -> None:
    night = window("0 1 * * *", "4h")

    assert find_opening(berlin("2026-03-29 05:59"), [night]) == berlin("2026-03-29 05:59")
    assert find_opening(berlin("2026-03-29 06:00"), [night]) == berlin("2026-03-30 01:00")
    assert find_opening(berlin("2026-10-25 03:59"), [night]) == berlin("2026-10-25 03:59")
    assert find_opening(berlin("2026-10-25 04:00"), [night]) == berlin("2026-10-26 01:00")


# Several windows ------------------------------------------------------------------------------------------------------


def test_any_window_of_a_list_will_do() -> None:
    both = [window("0 2 * * SAT"), window("0 2 * * SUN")]

    assert find_opening(berlin("2026-11-28 12:00"), both) == berlin("2026-11-29 02:00")


def test_lists_must_be_open_at_the_same_time() -> None:
    daily, weekly = window("0 2 * * *", "2h", "Etc/UTC"), window("0 4 * * MON", "2h", "Europe/Berlin")

    opening = find_opening(berlin("2026-11-28 12:00"), [daily], [weekly])

    assert opening == berlin("2026-11-30 04:00") == datetime(2026, 11, 30, 3, tzinfo=UTC)


def test_lists_that_are_never_open_at_the_same_time_have_no_opening() -> None:
    assert find_opening(berlin("2026-11-28 12:00"), [window("0 2 * * *")], [window("0 4 * * *")]) is None


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "zone", "because"),
    [
        ("0 2 * *", "Etc/UTC", "has not five fields"),
        ("0 0 2 * * *", "Etc/UTC", "has not five fields"),
        ("@weekly", "Etc/UTC", "has not five fields"),
        ("0 25 * * *", "Etc/UTC", "is not one of cron: bad hour"),
        ("0 2 * * SUNDAY", "Etc/UTC", "is not one of cron: bad day-of-week"),
        ("0 2 30 2 *", "Etc/UTC", "cron: bad day-of-month|never comes"),
        ("0 2 * * *", "Europe/Atlantis", "there is no time zone Europe/Atlantis"),
        ("0 2 * * *", "Europe", "there is no time zone Europe:"),
        ("0 2 * * *", "../../etc/passwd", "there is no time zone"),
        ("0 2 * * *", "", "there is no time zone"),
    ],
)
def test_a_window_that_cannot_be_used_says_why_and_freezes_nothing(schedule: str, zone: str, because: str) -> None:
    bad = window(schedule, "1h", zone)
    now = berlin("2026-11-28 12:00")

    assert any(part in find_problem(bad) for part in because.split("|"))
    assert find_opening(now, [bad]) == now
    assert find_opening(now, [bad, SUNDAYS]) == berlin("2026-11-29 02:00"), "the other window counts"
    assert describe_windows([bad]) == ""


@pytest.mark.parametrize("duration", ["", "4", "4 hours", "-1h"])
def test_a_duration_that_cannot_be_read_freezes_nothing(duration: str) -> None:
    bad = window("0 2 * * SUN", duration)

    assert find_problem(bad)
    assert find_opening(berlin("2026-11-28 12:00"), [bad]) == berlin("2026-11-28 12:00")


def test_windows_are_described_in_words() -> None:
    assert describe_windows([SUNDAYS]) == "at 02:00 on Sunday for 4h, Europe/Berlin"
    assert local_time(berlin("2026-11-29 02:00"), [SUNDAYS]) == "2026-11-29 02:00 Europe/Berlin"


# Whatever is written --------------------------------------------------------------------------------------------------

FIELD = st.sampled_from(["*", "*/2", "0", "1", "5", "2-4", "1,3", "7", "31", "L", "-1", "60", "1#2", "MON", ""])
WINDOWS = st.lists(
    st.builds(
        window,
        st.lists(FIELD, min_size=5, max_size=5).map(" ".join) | st.text(max_size=12),
        st.sampled_from(["10m", "1h", "4h", "168h", "90s", "", "x"]),
        st.sampled_from(["Europe/Berlin", "Etc/UTC", "America/St_Johns", "Australia/Lord_Howe", "Mars/Olympus"]),
    ),
    max_size=2,
)


@given(st.integers(0, 6 * 365 * 24 * 60), WINDOWS, WINDOWS)
def test_an_opening_is_never_past_and_is_open(
    minutes: int, deployment: list[MaintenanceWindow], cluster: list[MaintenanceWindow]
) -> None:
    now = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)

    opening = find_opening(now, deployment, cluster)

    if opening is not None:
        assert opening >= now
        assert find_opening(opening, deployment, cluster) == opening
