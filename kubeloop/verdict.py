"""What the webhook answers about one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST: Final = 5  # of each list: an API server passes on 4 KiB of warnings, and a person reads fewer


@dataclass(frozen=True, slots=True)
class Verdict:
    """An object with refusals is not stored. What was stored before never has any for what has not changed."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Told whenever the object is written."""
    forecast: tuple[str, ...] = ()
    """What would come of it although nothing is wrong: told in a dry run alone, which asks for it."""

    def told(self, *, dry_run: bool) -> tuple[str, ...]:
        """The warnings of the answer."""
        found = (*(self.forecast if dry_run else ()), *self.warnings)
        more = (f"{len(found) - MOST} more warnings",) if len(found) > MOST else ()
        return (*found[:MOST], *more)


NOTHING: Final = Verdict()
