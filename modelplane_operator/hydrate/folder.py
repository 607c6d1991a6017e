"""Access files of the volume through the descriptors of the folders above them.

An engine of an earlier version may write to the volume at the same time. So links are never followed, even if one is
created between two steps, and only regular files without hard links are opened.

`Staging` and the sources call this module for every access to the volume. The meaning of the files, and their
content, is left to them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from modelplane_operator.hydrate.source import DEEPEST, PermanentError

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe is opened without blocking, then rejected
"""Flags to open a file, besides those for its access."""
_EVERYBODY: Final = 0o666
"""Mode of files: pods with other users read the volume, and later hydrators replace the files."""
MAX_ENTRIES: Final = 400_000  # maximum files and folders; the largest model with the deepest folders has fewer


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the volume. Paths within it use `/`. Every method raises PermanentError for a link."""

    root: Path
    """Mount point of the volume, which nobody else can replace; links in it are followed."""
    inside: tuple[str, ...] = ()
    """Names of the folders from the root to this one."""

    def below(self, *names: str) -> Folder:
        """Return a folder within this one. It need not exist."""
        return Folder(self.root, (*self.inside, *names))

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if there is none."""
        try:
            with self._parent(path) as (above, name):
                status = os.stat(name, dir_fd=above, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(status.st_mode):
            raise self._link(path)
        self._refuse_hard_link(path, status)
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def open(self, path: str, flags: int = os.O_RDONLY) -> BinaryIO:
        """Return an open file. Folders above a new file are created."""
        with self._parent(path, make=bool(flags & os.O_CREAT)) as (above, name):
            try:
                # Checked after opening: between a check of the name and the open, another process could exchange the
                # file.
                descriptor = os.open(name, flags | _FILE, _EVERYBODY, dir_fd=above)
            except OSError:
                if self._is_link(name, above):
                    raise self._link(path) from None
                raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PermanentError(f"the volume has something else than a file {self._quote(path)}: delete it")
            self._refuse_hard_link(path, status)
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "r+b")

    def make(self, path: str) -> BinaryIO:
        """Return a new file, open for writing, that no other process has opened or linked."""
        self.remove(path)
        return self.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def remove(self, path: str) -> None:
        """Delete a file or a link, if there is one."""
        with suppress(FileNotFoundError, NotADirectoryError), self._parent(path) as (above, name):
            os.unlink(name, dir_fd=above)

    def move(self, path: str, to: Folder, new: str) -> None:
        """Move a file to another place. An existing file or link there is replaced."""
        with self._parent(path) as (above, name), to._parent(new, make=True) as (target, new_name):
            os.replace(name, new_name, src_dir_fd=above, dst_dir_fd=target)

    def bytes(self) -> int:
        """Return the total size of all files below. Files may disappear meanwhile."""
        total = 0
        with suppress(FileNotFoundError):
            for _, _, entry in islice(self._walk(), MAX_ENTRIES):
                with suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
        return total

    def files(self) -> Iterator[str]:
        """Yield the paths of files below, without hidden files and folders at the top.

        A folder at the maximum depth counts as a file.
        """
        for _, path, entry in islice(self._walk(hidden=False), MAX_ENTRIES):
            if path.count("/") == DEEPEST or not entry.is_dir(follow_symlinks=False):
                yield path

    def drop(self) -> None:
        """Delete the folder with its content, as far as possible."""
        with suppress(FileNotFoundError, NotADirectoryError):
            for folder, _, entry in islice(self._walk(), MAX_ENTRIES):
                with suppress(OSError):
                    # Each folder comes after its content, so it is empty here unless a deletion has failed.
                    remove = os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink
                    remove(entry.name, dir_fd=folder)
        above = Folder(self.root, self.inside[:-1])
        with suppress(OSError), above._parent(".") as (parent, _):
            os.rmdir(self.inside[-1], dir_fd=parent)

    def _walk(self, *, hidden: bool = True) -> Iterator[tuple[int, str, os.DirEntry[str]]]:
        """Yield all entries below, each with its folder's descriptor and its path. A folder comes after its content."""
        with self._parent(".") as (descriptor, _):
            yield from _walk_entries(descriptor, hidden=hidden)

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        """Yield the descriptor of the parent folder of a path, and the name in it.

        For `.`, yield this folder and an empty name.
        """
        *folders, name = (*self.inside, *(PurePosixPath(path).parts or ("",)))
        # One folder after the other, since the flag against links only protects the last part of a path.
        current = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for depth, item in enumerate(folders, start=1):
                if make:
                    # If the name is a link or a file, opening it as a folder fails below.
                    with suppress(FileExistsError):
                        os.mkdir(item, dir_fd=current)
                try:
                    subfolder = os.open(item, _FOLDER, dir_fd=current)
                except OSError:
                    if self._is_link(item, current):
                        raise _link_error("/".join(folders[:depth])) from None
                    raise
                os.close(current)
                current = subfolder
            yield current, name
        finally:
            os.close(current)

    def _is_link(self, name: str, above: int) -> bool:
        """True if the name is a symbolic link."""
        try:
            return stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def _quote(self, path: str) -> str:
        """Return a path from the root in quotes, for messages, cut to 100 characters."""
        return repr("/".join((*self.inside, path))[:100])

    def _refuse_hard_link(self, path: str, status: os.stat_result) -> None:
        """Raise PermanentError for a hard link: through it, a file could be changed after it was verified."""
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            raise PermanentError(f"the volume has a hard link {self._quote(path)}: delete it")

    def _link(self, path: str) -> PermanentError:
        """Return the error for a symbolic link at a path."""
        return _link_error("/".join((*self.inside, path)))


def _walk_entries(folder: int, prefix: str = "", *, hidden: bool = True) -> Iterator[tuple[int, str, os.DirEntry[str]]]:
    """Yield all entries, at most DEEPEST folders deep, since the tree may be arbitrarily deep."""
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            if not hidden and entry.name.startswith("."):
                continue
            if path.count("/") < DEEPEST and entry.is_dir(follow_symlinks=False):
                with suppress(OSError), _open_folder(entry.name, folder) as subfolder:
                    yield from _walk_entries(subfolder, f"{path}/")
            yield folder, path, entry


@contextmanager
def _open_folder(name: str, above: int) -> Generator[int]:
    """Yield the descriptor of a folder, which cannot be a link."""
    descriptor = os.open(name, _FOLDER, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _link_error(path: str) -> PermanentError:
    """Return the error for a symbolic link, given its path from the root."""
    return PermanentError(f"the volume has a link {path[:100]!r}: delete it")
