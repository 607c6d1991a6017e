"""What carries requests to one API server, whichever version of HTTP it speaks."""

# ruff: noqa: N818 - a finding is named for what was found

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from yarl import URL

CONNECT_SECONDS = 5.0
CONNECTIONS = 64  # to one server: over HTTP/1.1 each watch takes one, and requests share the rest


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as it is sent."""

    method: str
    url: URL
    headers: Mapping[str, str]
    payload: bytes | None = None
    stays: bool = False
    """Whether its answer goes on for ever, as that of a watch does."""


class Response(Protocol):
    """An answer whose body has not been read."""

    status: int

    def header(self, name: str) -> str | None:
        """A header by its name in lower case; None when the answer has none."""
        ...

    async def chunk(self) -> bytes:
        """What has come of the body since, at least a byte; empty at its end. Raises an OSError."""
        ...

    def cut(self) -> None:
        """Let go of it; what has not come yet is not waited for."""
        ...


class Transport(Protocol):
    """Carries requests; raises an OSError, an error of aiohttp's, or NotHttp."""

    async def send(self, asking: Outgoing) -> Response:
        """The answer, as soon as its headers are there."""
        ...


class Carrier(Transport, Protocol):
    """The transport to one server, for as long as it is open."""

    on_broken: Callable[[str], object]
    """Called with what the server has said that is no HTTP, also while no request is under way."""


class NotHttp(Exception):
    """The server answers what is no HTTP, or more than its answers may have."""


class NotConnected(TimeoutError):
    """The server has taken no connection in time."""


class BrokenOff(ConnectionError):
    """The answer has ended before it was whole."""


class Unprocessed(ConnectionError):
    """The server has not looked at the request, and says so: it may be sent again."""


class Dead(ConnectionError):
    """The other side of the connection gives no sign of life."""


class Worded(ConnectionError):
    """Why there is no answer, in words to pass on as they are."""
