"""What a host name leads to."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a name was found to stand for."""

    addresses: tuple[IPv4Address | IPv6Address, ...] = ()
    error: str = ""
    """Why that is not known, or not any more."""
    unknown: bool = field(default=False, kw_only=True)
    """Whether there is no such name, or none with an address, as those say who have to know."""
