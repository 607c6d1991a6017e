"""Waiting for a condition, with a deadline that says what was awaited."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from localfleet.errors import DeadlineError

T = TypeVar("T")


def until(condition: Callable[[], T | None], *, seconds: float, what: str, interval: float = 0.05) -> T:
    """The first answer of `condition` that is not None; a DeadlineError naming `what` when none comes in time."""
    deadline = time.monotonic() + seconds
    while (answer := condition()) is None:
        if time.monotonic() > deadline:
            raise DeadlineError(f"waited {seconds:g} s for {what}, in vain")
        time.sleep(interval)
    return answer
