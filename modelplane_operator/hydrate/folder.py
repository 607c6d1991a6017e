"""Files of the volume, each reached by the descriptors of the folders above it.

An engine of before may have the volume writable while it is filled: no link is followed, also where one is put into
the way between two steps, and nothing is opened that is no file.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from modelplane_operator.hydrate.source import PermanentError

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe is opened at once, and refused
_EVERYBODY: Final = 0o666


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
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise PermanentError(f"the volume has something else than a file {self._named(path)}: delete it")
        return os.fdopen(opened, "rb" if flags == os.O_RDONLY else "r+b")

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
        with suppress(FileNotFoundError), self._parent(".") as (here, _):
            for _, _, files, folder in os.fwalk(".", dir_fd=here, follow_symlinks=False):
                for name in files:
                    with suppress(FileNotFoundError):
                        found += os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        return found

    def files(self) -> Iterator[str]:
        """Yield the paths of all files below, but for what is in hidden folders or hidden itself at the top."""
        with self._parent(".") as (here, _):
            for top, folders, files, _ in os.fwalk(".", dir_fd=here, follow_symlinks=False):
                if top == ".":
                    folders[:] = [one for one in folders if not one.startswith(".")]
                yield from (str(PurePosixPath(top, one)) for one in files if top != "." or not one.startswith("."))

    def drop(self) -> None:
        """Delete the folder with all that is in it, as far as that can be done."""
        above = Folder(self.root, self.inside[:-1])
        with suppress(FileNotFoundError), above._parent(".") as (here, _):
            shutil.rmtree(self.inside[-1], ignore_errors=True, dir_fd=here)

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

    def _link(self, path: str) -> PermanentError:
        return _refused("/".join((*self.inside, path)))


def _refused(path: str) -> PermanentError:
    return PermanentError(f"the volume has a link {path[:100]!r}: delete it")
