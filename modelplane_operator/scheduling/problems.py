"""Problems of a deployment that prevent any search for places, whatever the fleet has."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class InvalidSelector:
    """A selector that the API server would reject, so the requirements are unknown."""

    engine: str
    role: str
    """Role of the member with the selector."""
    request: str
    """Name of the device request."""
    message: str
    """Error of the compiler, with the position."""


@dataclass(frozen=True, slots=True)
class Overdrawn:
    """The selectors of the deployment exceed the scheduler's limits, so the requirements are unknown."""

    what: str
    """Name of the limit."""
    has: int | None
    """Amount used; None if counting stopped at the limit."""
    most: int
    """Limit."""


@dataclass(frozen=True, slots=True)
class NoEngines:
    """The deployment has no engines."""


@dataclass(frozen=True, slots=True)
class LabelConflict:
    """The deployment and its cache require different values of one label."""

    key: str
    deployment: str
    """Value that the deployment requires."""
    cache: str
    """Value that the ModelCache requires."""


@dataclass(frozen=True, slots=True)
class CacheNotRead:
    """The cache that restricts the placement has not been read yet."""

    cache: str
    """Name of the ModelCache."""


@dataclass(frozen=True, slots=True)
class CacheNotFound:
    """The cache does not exist."""

    cache: str


@dataclass(frozen=True, slots=True)
class NoClusters:
    """The fleet has no clusters, or none has been read yet."""


Problem: TypeAlias = InvalidSelector | Overdrawn | NoEngines | LabelConflict | CacheNotRead | CacheNotFound | NoClusters
