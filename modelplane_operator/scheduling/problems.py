"""Why no place is looked for at all, whatever the fleet has."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class InvalidSelector:
    """A selector that the API server would refuse: it is not known what is asked for."""

    engine: str
    role: str
    request: str
    message: str


@dataclass(frozen=True, slots=True)
class Overdrawn:
    """The selectors of the deployment are more than the scheduler looks at: it is not known what is asked for."""

    what: str
    has: int | None
    """None when nobody has counted to the end."""
    most: int


@dataclass(frozen=True, slots=True)
class NoEngines:
    """The deployment says nothing of what to run."""


@dataclass(frozen=True, slots=True)
class LabelConflict:
    """The deployment and its cache ask for different values of one label."""

    key: str
    deployment: str
    cache: str


@dataclass(frozen=True, slots=True)
class CacheNotRead:
    """The cache that says where replicas may go has not been read yet."""

    cache: str


@dataclass(frozen=True, slots=True)
class CacheNotFound:
    """There is no such cache."""

    cache: str


@dataclass(frozen=True, slots=True)
class NoClusters:
    """The fleet has no cluster at all, or none has been read yet."""


Problem: TypeAlias = InvalidSelector | Overdrawn | NoEngines | LabelConflict | CacheNotRead | CacheNotFound | NoClusters
