"""Compute when maintenance windows are open.

A window opens by a cron expression in a time zone, and stays open for a duration. Where the clocks change, an opening
in a skipped hour comes right after it, and one in a repeated hour comes once; the duration is that of a stopwatch.

A window that cannot be read, or that never opens, is left out, as if it were not there: a mistake must not keep a
fleet from its security fixes. Admission rejects such windows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from modelplane_operator.api.maintenance import MaintenanceWindow

FIELDS = 5
"""Fields of a cron expression: minute, hour, day of the month, month, day of the week."""
REPEATED = timedelta(hours=2)
"""More than the time that clocks ever repeat: cron begins at a time of the clock."""
MAX_TRIES = 64  # a daily and a weekly window need at most seven
"""Openings to try until several lists of windows are open at the same time."""

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)


def find_opening(now: datetime, *calendars: Sequence[MaintenanceWindow]) -> datetime | None:
    """Return the first time, not before the current minute, at which every list of windows has an open one.

    A list without a usable window is always open. Returns None if they are never open at the same time.
    """
    return _find_common_opening(now.replace(second=0, microsecond=0), tuple(map(tuple, calendars)))


def describe_windows(windows: Sequence[MaintenanceWindow]) -> str:
    """Return when the usable windows are open, in words."""
    return " or ".join(
        f"{_explain(window.schedule)} for {window.duration}, {window.time_zone}" for window in _usable(windows)
    )


def find_problem(window: MaintenanceWindow) -> str:
    """Return why a window cannot be used; "" if it can."""
    return _find_problem(window.schedule, window.duration, window.time_zone)


def local_time(time: datetime, windows: Sequence[MaintenanceWindow]) -> str:
    """Return a time in the zone of the first usable window."""
    zone = next((window.time_zone for window in _usable(windows)), "Etc/UTC")
    return f"{time.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M} {zone}"


def _usable(windows: Sequence[MaintenanceWindow]) -> Sequence[MaintenanceWindow]:
    return [window for window in windows if not find_problem(window)]


@lru_cache(maxsize=1024)
def _find_common_opening(now: datetime, calendars: tuple[tuple[MaintenanceWindow, ...], ...]) -> datetime | None:
    usable = [windows for windows in map(_usable, calendars) if windows]
    time = now
    for _ in range(MAX_TRIES):
        latest = max((min(_opens_at(window, time) for window in windows) for windows in usable), default=time)
        if latest == time:
            return time
        time = latest
    return None


def _opens_at(window: MaintenanceWindow, now: datetime) -> datetime:
    """Return `now`, in full minutes, if a window is open, otherwise its next opening."""
    duration = _parse_duration(window.duration)
    start = (now - duration - REPEATED).astimezone(ZoneInfo(window.time_zone))
    # In UTC, because a sum in a time zone would count the hours of the clock.
    openings = (opening.astimezone(UTC) for opening in CronSim(window.schedule, start))
    return max(now, next(opening for opening in openings if now < opening + duration))


def _parse_duration(text: str) -> timedelta:
    """Parse hours, minutes and seconds. Returns 0 for anything else."""
    match = _DURATION.fullmatch(text)
    hours, minutes, seconds = (int(number or 0) for number in match.groups()) if match else (0, 0, 0)
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)


@lru_cache(maxsize=1024)
def _find_problem(schedule: str, duration: str, time_zone: str) -> str:
    try:
        zone = ZoneInfo(time_zone)
    except (KeyError, ValueError, OSError):  # an unknown name, one that is a path, one that is a folder
        return f"there is no time zone {time_zone}: use a name such as Europe/Berlin"
    if len(schedule.split()) != FIELDS:
        return (
            f"the schedule {schedule!r} has not five fields: write minute, hour, day of the month, month and day of "
            "the week, such as 0 2 * * SUN"
        )
    try:
        opening = next(CronSim(schedule, datetime(2024, 1, 1, tzinfo=zone)), None)
    except CronSimError as error:
        return f"the schedule {schedule!r} is not one of cron: {str(error)[:1].lower()}{str(error)[1:]}"
    if opening is None:
        return f"the schedule {schedule!r} never comes: no year has such a day"
    return "" if _parse_duration(duration) else f"the duration {duration!r} is not one such as 4h or 1h30m"


@lru_cache(maxsize=1024)
def _explain(schedule: str) -> str:
    """Return a valid schedule in words."""
    text = CronSim(schedule, datetime(2024, 1, 1, tzinfo=UTC)).explain()
    return f"{text[:1].lower()}{text[1:]}"
