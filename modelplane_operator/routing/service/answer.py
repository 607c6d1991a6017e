"""The result of a request through the hub gateway: filled in by the client, evaluated by plans."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """The result of a request."""

    status: int = 0
    """The HTTP status; 0 without a response."""
    lack: str = ""
    """The reason why there was no response, in words that follow the gateway's name."""
    connected: bool = field(default=True, kw_only=True)
    """True if the gateway accepted the connection, even if it sent no response."""
    silent: bool = field(default=False, kw_only=True)
    """True if the gateway has sent nothing at all: it refused the connection, or did not respond in time."""
    unrouted: bool = field(default=False, kw_only=True)
    """True if the response is the 404 of a gateway that has no such route."""
    key_missing: bool = field(default=False, kw_only=True)
    """True if the response is the key service's to a request without an API key."""
