"""Service account tokens as their claims describe them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Token:
    """The claims of a service account token. Only the server that accepts it has verified the signature."""

    namespace: str
    account: str
    since: datetime
    """The time at which it was issued."""
    until: datetime
    """The time at which it expires."""

    @property
    def lasts(self) -> timedelta:
        """The lifetime of the token."""
        return self.until - self.since
