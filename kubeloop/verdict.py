"""The result of the admission webhook for one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST: Final = 5  # of each list, since an API server passes on only 4 KiB of warnings


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a review. An object with refusals is not stored. Unchanged parts of a stored object cause none."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Warnings to return at every write."""
    forecast: tuple[str, ...] = ()
    """Warnings to return in a dry run only, about consequences of a valid object."""

    def messages(self, *, dry_run: bool) -> tuple[str, ...]:
        """Return the warnings to send, shortened to MOST."""
        warnings = (*(self.forecast if dry_run else ()), *self.warnings)
        remainder = (f"{len(warnings) - MOST} more warnings",) if len(warnings) > MOST else ()
        return (*warnings[:MOST], *remainder)


NOTHING: Final = Verdict()
