"""Where weights come from, as the hydrator sees it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from modelplane_operator.hydrate.folder import Folder

MOST: Final = 20_000  # files of a model
LONGEST: Final = 255  # bytes of a file's name
LONGEST_PATH: Final = 1024  # bytes of its path
DEEPEST: Final = 16  # folders, and the file
PAGES: Final = 200  # of a list: a bucket has a thousand names on each, and folders among them


class HydrationError(Exception):
    """Why a volume was not filled. The message is for people, and holds no token."""


class PermanentError(HydrationError):
    """What trying again does not mend: somebody has to do something. The message says what."""


class AccessDeniedError(PermanentError):
    """What the source gives to somebody else, or with another token."""


class TransientError(HydrationError):
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
    checksum: str = ""
    """What its content must come to, as `checksums` reads it; empty when the source names nothing."""
    key: str = ""
    """What the source calls it."""
    version: str = ""
    """Which content of that name it is, to the source."""


@dataclass(frozen=True, slots=True)
class FileListing:
    """All files of one revision."""

    revision: str
    """That very content: what was asked for may be a branch."""
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def below(prefix: str) -> str:
    """What the names of objects below a prefix begin with."""
    return f"{prefix.strip('/')}/" if prefix.strip("/") else ""


def is_name(path: str) -> bool:
    """Whether a file can have that path. What is longer costs as much as it is long, and more."""
    if len(path) > LONGEST_PATH or not path.isprintable():
        return False
    parts = path.encode(errors="replace").split(b"/")
    return sum(map(len, parts)) < LONGEST_PATH and max(map(len, parts)) <= LONGEST


def path_of(key: str, prefix: str) -> str:
    """The path of an object below a prefix; empty for what is no file."""
    above = below(prefix)
    return "" if key.endswith("/") or not key.startswith(above) else key.removeprefix(above)


def selected(files: Iterable[File], allow: Sequence[str], ignore: Sequence[str], named: str) -> tuple[File, ...]:
    """Those that are asked for; raises PermanentError when there are none, or too many."""
    every = tuple(islice(files, MOST + 1))
    if len(every) > MOST:
        raise PermanentError(f"{named} has more than {MOST} files")
    found = tuple(one for one in every if (not allow or _any(allow, one.path)) and not _any(ignore, one.path))
    if not found:
        left = ": no file matches allowPatterns and ignorePatterns" if every else ""
        raise PermanentError(f"{named} has no files{left}")
    return found


def _any(patterns: Sequence[str], path: str) -> bool:
    """As Hugging Face's own tools have it: `*` is `/` too, and a folder is all that is in it."""
    return any(fnmatchcase(path, f"{one}*" if one.endswith("/") else one) for one in patterns)


def pinned(files: Sequence[File]) -> FileListing:
    """The listing of a source that has no revisions of its own: they are made of names, sizes and versions."""
    told = sorted((one.path, one.size, one.version or one.checksum) for one in files)
    found = f"sha256:{hashlib.sha256(json.dumps(told).encode()).hexdigest()}"
    return FileListing(found, tuple(files))


class Source(Protocol):
    """One place that weights come from. Both raise PermanentError and TransientError, and nothing else on purpose."""

    def listing(self) -> FileListing:
        """What there is, and is asked for."""
        ...

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        """Have the file in the folder, under its path; goes on where it broke off the last time."""
        ...
