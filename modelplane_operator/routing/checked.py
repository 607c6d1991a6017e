"""The results of repeated checks, as an input of plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Checked(Generic[A]):
    """The results of checks since the checked object last changed."""

    answer: A | None = None
    """The last result; None before the first one."""
    failing: bool = field(default=False, kw_only=True)
    """True if so many checks in a row have failed that it is no accident."""
