"""Files of the volume, each reached by the descriptors of the folders above it.

An engine of before may have the volume writable while it is filled: no link is followed, also where one is put into
the way between two steps, and nothing is opened that is no file, or one that has another name too.
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
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe is opened at once, and refused
_EVERYBODY: Final = 0o666
MOST_COUNTED: Final = 400_000  # files and folders: the largest model with as many folders as can be has fewer


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the volume. Paths are below it, with `/`. Each method raises PermanentError where it meets a link."""

    root: Path
    """Where the volume is mounted: it is nobody's to change, and opened as it is."""
    inside: tuple[str, ...] = ()
    """The names of the folders from there to this one."""

    def below(self, *names: str) -> Folder:
        return Folder(self.root, (*self.inside, *names))

    def size(self, path: str) -> int | None:
        """Return the bytes of a file; None when there is none."""
        try:
            with self._parent(path) as (above, name):
                found = os.stat(name, dir_fd=above, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(found.st_mode):
            raise self._link(path)
        self._refuse_second_name(path, found)
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def open(self, path: str, flags: int = os.O_RDONLY) -> BinaryIO:
        """Return an open file; makes the folders above where it is one that is made."""
        with self._parent(path, make=bool(flags & os.O_CREAT)) as (above, name):
            try:
                opened = os.open(name, flags | _FILE, _EVERYBODY, dir_fd=above)
            except OSError:
                if self._is_link(name, above):
                    raise self._link(path) from None
                raise
        try:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode):
                raise PermanentError(f"the volume has something else than a file {self._named(path)}: delete it")
            self._refuse_second_name(path, found)
        except BaseException:
            os.close(opened)
            raise
        return os.fdopen(opened, "rb" if flags == os.O_RDONLY else "r+b")

    def make(self, path: str) -> BinaryIO:
        """Return a file that is open for writing, and that nobody has opened or linked before."""
        self.remove(path)
        return self.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError), self._parent(path) as (above, name):
            os.unlink(name, dir_fd=above)

    def move(self, path: str, to: Folder, new: str) -> None:
        """Put a file into another place; takes what is there, a link itself too."""
        with self._parent(path) as (above, name), to._parent(new, make=True) as (there, called):
            os.replace(name, called, src_dir_fd=above, dst_dir_fd=there)

    def bytes(self) -> int:
        """Return the size of all files below; they may go while they are counted."""
        found = 0
        with suppress(FileNotFoundError):
            for _, _, entry in islice(self._walk(), MOST_COUNTED):
                with suppress(FileNotFoundError):
                    found += entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
        return found

    def files(self) -> Iterator[str]:
        """Yield the paths of files below, but for what is in hidden folders or hidden itself at the top.

        A folder that is too deep to be looked into counts as one.
        """
        for _, path, entry in islice(self._walk(hidden=False), MOST_COUNTED):
            if path.count("/") == DEEPEST or not entry.is_dir(follow_symlinks=False):
                yield path

    def drop(self) -> None:
        """Delete the folder with all that is in it, as far as that can be done."""
        with suppress(FileNotFoundError, NotADirectoryError):
            for folder, _, entry in islice(self._walk(), MOST_COUNTED):
                with suppress(OSError):
                    remove = os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink
                    remove(entry.name, dir_fd=folder)
        above = Folder(self.root, self.inside[:-1])
        with suppress(OSError), above._parent(".") as (here, _):
            os.rmdir(self.inside[-1], dir_fd=here)

    def _walk(self, *, hidden: bool = True) -> Iterator[tuple[int, str, os.DirEntry[str]]]:
        """Yield what is below, with the folder that it is in and its path; a folder after what is in it."""
        with self._parent(".") as (here, _):
            yield from _walked(here, hidden=hidden)

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        """The folder above something, as a descriptor, and its name there; of `.` this folder, and no name."""
        *folders, name = (*self.inside, *(PurePosixPath(path).parts or ("",)))
        here = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for depth, one in enumerate(folders, start=1):
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(one, dir_fd=here)
                try:
                    deeper = os.open(one, _FOLDER, dir_fd=here)
                except OSError:
                    if self._is_link(one, here):
                        raise _refused("/".join(folders[:depth])) from None
                    raise
                os.close(here)
                here = deeper
            yield here, name
        finally:
            os.close(here)

    def _is_link(self, name: str, above: int) -> bool:
        try:
            return stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def _named(self, path: str) -> str:
        return repr("/".join((*self.inside, path))[:100])

    def _refuse_second_name(self, path: str, found: os.stat_result) -> None:
        """What has another name is changed by that one, too, after it was verified."""
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise PermanentError(f"the volume has a hard link {self._named(path)}: delete it")

    def _link(self, path: str) -> PermanentError:
        return _refused("/".join((*self.inside, path)))


def _walked(here: int, above: str = "", *, hidden: bool = True) -> Iterator[tuple[int, str, os.DirEntry[str]]]:
    """At most DEEPEST folders deep: somebody may have made thousands, each in the one before."""
    with os.scandir(here) as entries:
        for entry in entries:
            path = f"{above}{entry.name}"
            if not hidden and entry.name.startswith("."):
                continue
            if path.count("/") < DEEPEST and entry.is_dir(follow_symlinks=False):
                with suppress(OSError), _opened(entry.name, here) as deeper:
                    yield from _walked(deeper, f"{path}/")
            yield here, path, entry


@contextmanager
def _opened(name: str, above: int) -> Generator[int]:
    opened = os.open(name, _FOLDER, dir_fd=above)
    try:
        yield opened
    finally:
        os.close(opened)


def _refused(path: str) -> PermanentError:
    return PermanentError(f"the volume has a link {path[:100]!r}: delete it")
