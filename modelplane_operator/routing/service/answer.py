"""What a request through the hub gateway met with: the client fills it in, and plans judge it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """What a request met with."""

    status: int = 0
    """0: it was not answered."""
    lack: str = ""
    """Why not, in words that follow the gateway's name."""
    connected: bool = field(default=True, kw_only=True)
    """Whether the gateway took the connection and said anything, if only by keeping silent."""
    unrouted: bool = field(default=False, kw_only=True)
    """Whether it is the 404 of a gateway that knows no such route."""
    key_missing: bool = field(default=False, kw_only=True)
    """Whether it is what the key service says to a request without an API key."""
