"""Limits on changes that the operator makes by itself: maintenance windows, and amounts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kubeloop.model import ATOMIC, Model, Rule, must

WINDOWS = 8  # a fleet has some for nights and some for weekends
"""Maximum number of maintenance windows of an object."""

_TIME = "^([0-9]{1,3}h)?([0-9]{1,4}m)?([0-9]{1,5}s)?$"
DURATION = Rule(
    f"self != '' && self.matches('{_TIME}')",
    "Write the duration as hours, minutes and seconds, for example 4h or 1h30m.",
)
DURATION_BOUNDS = Rule(
    f"self == '' || !self.matches('{_TIME}') || "
    "(duration(self) >= duration('10m') && duration(self) <= duration('168h'))",
    "Keep the window open for at least 10m, so that a change can begin, and for at most 168h.",
)
AMOUNT = Rule(
    "self.matches('^([0-9]{1,3}|1000|[1-9][0-9]?%|100%)$')",
    'Write a number from 0 to 1000, or a percentage from 1% to 100%, as a text, for example "2" or "10%".',
)


class MaintenanceWindow(Model):
    """A time that comes again and again, for changes that the operator makes by itself."""

    schedule: Annotated[str, Field(min_length=1, max_length=128)]
    """Time at which the window opens: minute, hour, day of the month, month and day of the week, as a CronJob has them,
    for example `0 2 * * SUN`."""
    duration: Annotated[str, Field(max_length=16), must(DURATION, DURATION_BOUNDS)]
    """Time for which the window stays open, for example `4h`. A change that has begun is finished after it."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] = "Etc/UTC"
    """Time zone of the schedule, by its name in the time zone database, for example `Europe/Berlin`."""


MaintenanceWindows = Annotated[tuple[MaintenanceWindow, ...], Field(max_length=WINDOWS), ATOMIC]
"""Windows of an object; changes may begin while any of them is open."""


Amount = Annotated[str, Field(max_length=4), must(AMOUNT)]
"""A number, or a percentage."""
