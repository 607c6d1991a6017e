"""Staging: all files beside their places first, each one verified, and in their places when all of them are there.

Whoever mounts the volume meanwhile finds no model, and never half of one. A process that is ended anywhere goes on
where the one before was: what is in its place was verified before it was put there.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from modelplane_operator.hydrate.checksums import matches
from modelplane_operator.hydrate.source import File, FileListing, PermanentError, Source, TransientError

HOME: Final = ".modelplane"  # in the volume: what is ours
MARKER: Final = "complete.json"
AT_ONCE: Final = 4  # files: more fill no disk sooner, and each takes some 30 MB
TRIES: Final = 4  # of one file, in this process; then Kubernetes starts another
LONGEST: Final = 255  # bytes of a file's name
SPARE: Final = 64 << 20  # bytes that file systems need for themselves
LAST: Final = ("config.json", "model_index.json")  # what engines look for first is put in its place last


@dataclass(slots=True)
class Progress:
    """How far it is; written here, and read by whoever tells of it."""

    listing: FileListing | None = None
    files: int = 0


@dataclass(frozen=True, slots=True)
class Staging:
    """The volume, and what it is to hold; `content` names that, as the operator does."""

    volume: Path
    content: str
    pause: Callable[[float], None] = time.sleep
    done: Progress = field(default_factory=Progress)

    @property
    def folder(self) -> Path:
        return self.volume / HOME / self.content

    @property
    def marker(self) -> Path:
        return self.volume / HOME / MARKER

    def complete(self) -> str:
        """The revision that the volume holds all of; empty when it does not."""
        try:
            told = json.loads(self.marker.read_text())
        except (FileNotFoundError, ValueError):
            return ""
        linked = self.marker.is_symlink() or self.marker.parent.is_symlink()
        return str(told["revision"]) if told.get("content") == self.content and not linked else ""

    def fill(self, source: Source) -> FileListing:
        """Bring the volume to the content; raises PermanentError, TransientError, and an OSError of the volume."""
        listing = source.listing()
        _check(listing.files)
        for file in listing.files:
            self._refuse_links(file)
        self.done.listing = listing
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_room(listing)
        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            under_way = [pool.submit(self._have, source, listing, file) for file in listing.files]
            for one in wait(under_way, return_when=FIRST_EXCEPTION).done:
                one.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # a process that fails leaves what it has to the next
        self._promote(listing)
        return listing

    def staged(self) -> int:
        """The bytes that are there, verified or not."""
        placed = self.done.listing.files if self.done.listing else ()
        in_place = sum(file.size for file in placed if self._is_placed(file))
        return in_place + _size(self.folder)

    def _check_room(self, listing: FileListing) -> None:
        needed = listing.size - self.staged() + SPARE
        free = shutil.disk_usage(self.volume).free
        if needed > free:
            raise PermanentError(
                f"{len(listing.files)} files need {_told(listing.size)}, and the volume has room for "
                f"{_told(max(free + listing.size - needed, 0))} of that: raise sizeGiB, or leave files out by "
                "ignorePatterns"
            )

    def _have(self, source: Source, listing: FileListing, file: File) -> None:
        """One file, verified."""
        for tried in range(1, TRIES + 1):
            if self._is_placed(file):
                break
            try:
                source.fetch(listing, file, self.folder)
                _verify(file, self.folder / file.path)
                break
            except TransientError as error:
                if tried == TRIES:
                    raise
                self.pause(min(error.retry_after or 2.0**tried, 60.0))
        self.done.files += 1

    def _refuse_links(self, file: File) -> None:
        """Raise PermanentError where whoever has the volume, too, has put a link in the way."""
        for path in (self.folder / file.path, self.volume / file.path, self.marker, self._placing):
            if link := next(
                (one for one in (path, *path.parents) if self.volume in one.parents and one.is_symlink()), None
            ):
                raise PermanentError(f"the volume has a link {str(link.relative_to(self.volume))[:100]!r}: delete it")

    def _is_placed(self, file: File) -> bool:
        """Whether it is in its place: a process that was ended meanwhile had verified all of them."""
        place = self.volume / file.path
        placing = self._placing.exists() and not (self.folder / file.path).exists()
        return placing and place.is_file() and place.stat().st_size == file.size

    @property
    def _placing(self) -> Path:
        return self.volume / HOME / f"{self.content}.placing"

    def _promote(self, listing: FileListing) -> None:
        for file in listing.files:
            self._refuse_links(file)
        self._placing.touch()
        for file in sorted(listing.files, key=lambda one: (one.path in LAST, one.path)):
            staged, place = self.folder / file.path, self.volume / file.path
            if staged.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                staged.replace(place)
        told = {
            "content": self.content,
            "revision": listing.revision,
            "files": [{"path": one.path, "size": one.size, "checksum": one.checksum} for one in listing.files],
        }
        written = self.marker.with_suffix(".new")
        with written.open("w") as file:
            json.dump(told, file)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self.marker)
        self._placing.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)


def _check(files: Iterable[File]) -> None:
    """That what a server names are files of this volume, each of them once."""
    places = dict[PurePosixPath, bool]()  # whether it is a file, and no folder
    for file in files:
        place, told = PurePosixPath(file.path), repr(file.path[:100])
        parts = place.parts
        if not parts or file.path.startswith("/") or "\\" in file.path or {"..", "."} & {*parts} or parts[0] == HOME:
            raise PermanentError(f"the source names a file that leads out of the volume: {told}")
        if not file.path.isprintable() or any(len(part.encode(errors="replace")) > LONGEST for part in parts):
            raise PermanentError(f"the source names a file as none can be called: {told}")
        if file.size < 0:
            raise PermanentError(f"the source says that file {told} has {file.size} bytes")
        if place in places or any(places.get(above) for above in place.parents):
            raise PermanentError(f"the source names file {told} twice, or another below it")
        places |= dict.fromkeys(place.parents, False) | {place: True}


def _verify(file: File, path: Path) -> None:
    """Raises TransientError, and has it fetched anew, when it is not that file. Else it outlasts the node from here on:
    the marker would, too, and speak for what was lost."""
    if path.stat().st_size == file.size and matches(file.checksum, path):
        with path.open("rb") as content:
            os.fsync(content.fileno())
        return
    path.unlink()
    raise TransientError(f"file {file.path} has come with another content than the source says it has")


def _size(folder: Path) -> int:
    """The bytes of all files below; they may go while they are counted."""
    found = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                found += (Path(path) / name).stat().st_size
            except FileNotFoundError:
                continue
    return found


def _told(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
