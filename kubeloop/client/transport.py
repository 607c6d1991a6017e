"""The interface of whatever carries requests to one API server, independent of the HTTP version."""

# ruff: noqa: N818 - a finding is named for what was found

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from yarl import URL

CONNECT_SECONDS = 5.0
CONNECTIONS = 64  # to one server; over HTTP/1.1 each watch takes one, and requests share the rest


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request to be sent."""

    method: str
    url: URL
    headers: Mapping[str, str]
    payload: bytes | None = None
    keep_open: bool = False
    """True if the response is a stream without end, as of a watch."""


class Response(Protocol):
    """A response whose body has not been read."""

    status: int

    def header(self, name: str) -> str | None:
        """Return a header by its name in lower case, or None."""
        ...

    async def chunk(self) -> bytes:
        """Return the data that has arrived, at least one byte; empty at the end. Raises an OSError."""
        ...

    def abort(self) -> None:
        """Drop the response, without waiting for the rest."""
        ...


class Transport(Protocol):
    """Carries requests; raises an OSError, an error of aiohttp's, or NotHttp."""

    async def send(self, asking: Outgoing) -> Response:
        """Send a request and return the response when its headers have arrived."""
        ...


class Carrier(Transport, Protocol):
    """The transport to one server while it is open."""

    on_broken: Callable[[str], object]
    """Called with a message when the server sends something that is not HTTP, even without a request in progress."""


class NotHttp(Exception):
    """The response is not HTTP, or exceeds a limit."""


class NotConnected(TimeoutError):
    """The server has accepted no connection in time."""


class BrokenOff(ConnectionError):
    """The response has ended early."""


class Unprocessed(ConnectionError):
    """The server says that it has not processed the request, so it may be sent again."""


class Dead(ConnectionError):
    """The peer of the connection gives no sign of life."""


class Worded(ConnectionError):
    """A failure whose message can be shown as it is."""
