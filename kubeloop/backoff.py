"""Exponential backoff with jitter."""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE = 10  # maximum factor on a server's Retry-After: the server works and is only busy


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay that doubles from `first` to `longest` seconds."""

    first: float
    longest: float

    def delay(self, failures: int, jitter: float, *, at_least: float | None = None) -> float:
        """Return the seconds to wait after this number of consecutive failures.

        `jitter`, from 0 to 1, is the jitter.

        The jitter spreads the delay over the upper half. `at_least` is a server's Retry-After: the delay is never
        shorter, and at most `PATIENCE` times as long.
        """
        if failures <= 0:
            return 0.0
        doubled = self.first * 2.0 ** min(failures - 1, 32)
        longest = min(self.longest, PATIENCE * at_least) if at_least else self.longest
        spread = min(doubled, longest) * (0.5 + jitter / 2)
        return max(spread, (at_least or 0.0) * (1 + jitter / 4))
