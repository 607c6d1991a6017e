"""How often a thing has happened, for a log that is to say so, and not to fill up with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

MOST = 1000  # things that are told apart


@dataclass(slots=True)
class Repeats:
    """Counts, and says which times are worth a line: the first, the second, the fourth, and so on."""

    _counts: Counter[Hashable] = field(default_factory=Counter[Hashable], init=False)

    def worth(self, what: Hashable) -> int | None:
        """How often it has happened, when that is worth telling."""
        if what not in self._counts and len(self._counts) >= MOST:
            self._counts.clear()
        self._counts[what] += 1
        count = self._counts[what]
        return count if is_power_of_two(count) else None


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
