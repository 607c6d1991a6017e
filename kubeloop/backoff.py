"""How long to wait before the next attempt."""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE = 10  # times what a server asked for, at most: it is there, and only busy


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubling from `first` to `longest` seconds."""

    first: float
    longest: float

    def delay(self, failures: int, chance: float, *, at_least: float | None = None) -> float:
        """The seconds after so many failures in a row; `chance`, from 0 to 1, spreads it over its upper half.

        Whoever was told by a server how long to wait gives that as `at_least`; it is spread too, upwards, and never
        becomes much longer than that.
        """
        if failures <= 0:
            return 0.0
        doubled = self.first * 2.0 ** min(failures - 1, 32)
        longest = min(self.longest, PATIENCE * at_least) if at_least else self.longest
        spread = min(doubled, longest) * (0.5 + chance / 2)
        return max(spread, (at_least or 0.0) * (1 + chance / 4))
