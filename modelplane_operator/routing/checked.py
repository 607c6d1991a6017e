"""What is known of something that is asked again and again, as planning sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Checked(Generic[A]):
    """What checks have met with since what is checked last changed."""

    answer: A | None = None
    """None: the first is on its way."""
    failing: bool = field(default=False, kw_only=True)
    """Whether the last ones have failed, as many in a row as are no accident."""
