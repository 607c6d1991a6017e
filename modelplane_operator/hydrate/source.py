"""The interface of the sources of weights."""

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

MOST: Final = 20_000  # maximum files of a model
LONGEST: Final = 255  # maximum bytes of a file's name
LONGEST_PATH: Final = 1024  # maximum bytes of its path
DEEPEST: Final = 16  # maximum depth of folders, including the file
PAGES: Final = 200  # maximum pages of a list: a bucket has a thousand names per page, folders included


class HydrationError(Exception):
    """The reason why a volume was not filled. The message is for people, and contains no token."""


class PermanentError(HydrationError):
    """An error that a retry cannot resolve. The message says what to do."""


class AccessDeniedError(PermanentError):
    """The source denies access with these credentials."""


class TransientError(HydrationError):
    """An error that a retry may resolve."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        """Create the error; `retry_after` is the time in seconds that the server wants, or None."""
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class File:
    """A file of a model."""

    path: str
    """Path below the volume's root, with `/`."""
    size: int
    """Size in bytes."""
    checksum: str = ""
    """Checksum of the content in the notation of `checksums`; empty if the source has none."""
    key: str = ""
    """Name of the file at the source."""
    version: str = ""
    """Version of the content at the source."""


@dataclass(frozen=True, slots=True)
class FileListing:
    """All files of one revision."""

    revision: str
    """Immutable id of the content, even if a branch was requested."""
    files: tuple[File, ...]
    """Files that match the patterns of the spec."""

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(file.size for file in self.files)


def below(prefix: str) -> str:
    """Return the common prefix of the names of objects in a folder."""
    return f"{prefix.strip('/')}/" if prefix.strip("/") else ""


def is_name(path: str) -> bool:
    """True if a file can have that path. The length is checked first, since later checks take time in proportion."""
    if len(path) > LONGEST_PATH or not path.isprintable():
        return False
    encoded = path.encode(errors="replace")
    return len(encoded) - encoded.count(b"/") < LONGEST_PATH and max(map(len, encoded.split(b"/"))) <= LONGEST


def path_of(key: str, prefix: str) -> str:
    """Return the path of an object below a prefix; empty if it is no file."""
    above = below(prefix)
    return "" if key.endswith("/") or not key.startswith(above) else key.removeprefix(above)


def select_files(
    files: Iterable[File], allow: Sequence[str], ignore: Sequence[str], description: str
) -> tuple[File, ...]:
    """Return the files that match the patterns. Raise PermanentError if there are none, or too many."""
    # One more than allowed: the lists of a source are read page by page, and may never end.
    all_files = tuple(islice(files, MOST + 1))
    if len(all_files) > MOST:
        raise PermanentError(f"{description} has more than {MOST} files")
    matching = tuple(
        file
        for file in all_files
        if (not allow or _matches_any(allow, file.path)) and not _matches_any(ignore, file.path)
    )
    if not matching:
        hint = ": no file matches allowPatterns and ignorePatterns" if all_files else ""
        raise PermanentError(f"{description} has no files{hint}")
    return matching


def _matches_any(patterns: Sequence[str], path: str) -> bool:
    """True if a pattern matches, with the rules of Hugging Face's tools: `*` also matches `/`, and a folder its
    content.
    """
    return any(fnmatchcase(path, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in patterns)


def pin_files(files: Sequence[File]) -> FileListing:
    """Return the listing of a source without revisions. The revision is a hash of names, sizes and versions."""
    content = sorted((file.path, file.size, file.version or file.checksum) for file in files)
    revision = f"sha256:{hashlib.sha256(json.dumps(content).encode()).hexdigest()}"
    return FileListing(revision, tuple(files))


class Source(Protocol):
    """A source of weights. Both methods raise PermanentError or TransientError for expected errors."""

    def list_files(self) -> FileListing:
        """Return the requested files."""
        ...

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        """Fetch a file into the folder, under its path. Continue an interrupted transfer."""
        ...
