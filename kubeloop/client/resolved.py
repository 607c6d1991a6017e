"""The result of a DNS lookup as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address


@dataclass(frozen=True, slots=True)
class Resolved:
    """The addresses of a host name."""

    addresses: tuple[IPv4Address | IPv6Address, ...] = ()
    error: str = ""
    """The error of the latest lookup."""
    unknown: bool = field(default=False, kw_only=True)
    """True if the DNS says that the name does not exist or has no address."""
