"""Counts repetitions of log events, so that the log reports them without filling up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

MOST = 1000  # events that are counted separately


@dataclass(slots=True)
class Repeats:
    """Counts events, and selects the first, second, fourth, eighth occurrence and so on for the log."""

    _counts: Counter[Hashable] = field(default_factory=Counter[Hashable], init=False)

    def worth(self, what: Hashable) -> int | None:
        """Count an event and return the count if it should be logged, else None."""
        if what not in self._counts and len(self._counts) >= MOST:
            self._counts.clear()
        self._counts[what] += 1
        count = self._counts[what]
        return count if is_power_of_two(count) else None


def is_power_of_two(number: int) -> bool:
    """True for powers of two, and for 0."""
    return number & (number - 1) == 0
