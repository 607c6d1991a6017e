"""The token of a service account, as far as it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Token:
    """What a service account's token says of itself. Nobody has checked its signature but the server that takes it."""

    namespace: str
    account: str
    since: datetime
    until: datetime

    @property
    def lasts(self) -> timedelta:
        return self.until - self.since
