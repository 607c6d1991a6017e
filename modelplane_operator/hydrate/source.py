"""Where weights come from, as the hydrator sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class HydrationError(Exception):
    """Why a volume was not filled. The message is for people, and holds no token."""


class Refused(HydrationError):  # noqa: N818
    """What trying again does not mend: somebody has to do something. The message says what."""


class Broken(HydrationError):  # noqa: N818
    """What may go better another time."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class File:
    """A file of a model."""

    path: str
    """Below the volume's root, with `/`."""
    size: int
    sha256: str | None = None
    """What its content must hash to; without it, `git`."""
    git: str | None = None
    """The name that Git gives to its content, which is a hash too."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of one revision."""

    revision: str
    """That very content: what was asked for may be a branch."""
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Source(Protocol):
    """One place that weights come from. Both raise Refused and Broken, and nothing else on purpose."""

    def listing(self) -> Listing:
        """What there is, and is asked for."""
        ...

    def fetch(self, listing: Listing, file: File, folder: Path) -> None:
        """Have the file in the folder, under its path; goes on where it broke off the last time."""
        ...
