"""Staging: all files beside their places first, each one verified, and in their places when all of them are there.

Whoever mounts the volume meanwhile finds no model, and never half of one. A process that is ended anywhere goes on
where the one before was, and so does one on a volume that was complete before: what is in its place is held against
what it should be, by its content, as somebody may have changed it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Final

from modelplane_operator.hydrate.checksums import is_strong, verified
from modelplane_operator.hydrate.folder import Folder
from modelplane_operator.hydrate.source import (
    DEEPEST,
    LONGEST_PATH,
    File,
    FileListing,
    PermanentError,
    Source,
    TransientError,
    is_name,
)

HOME: Final = ".modelplane"  # in the volume: what is ours
MARKER: Final = "complete.json"
AT_ONCE: Final = 4  # files: more fill no disk sooner, and each takes some 30 MB
TRIES: Final = 4  # of one file, in this process; then Kubernetes starts another
LARGEST: Final = 1 << 62  # bytes of a file
SPARE: Final = 64 << 20  # bytes that file systems need for themselves
LONGEST_LIST: Final = 64 << 20  # bytes of the volume's list of files: 20,000 with long paths take 25 MB
LAST: Final = ("config.json", "model_index.json")  # what engines look for first is put in its place last


@dataclass(slots=True)
class Progress:
    """How far it is; written here, and read by whoever tells of it."""

    listing: FileListing | None = None
    files: int = 0
    hashes: dict[str, str] = field(default_factory=dict[str, str])
    """SHA-256 of each file that is verified."""
    known: bool = False
    """Whether the volume has the list of what was verified in it before."""
    placed: int = 0
    """Bytes of those that were in their places already."""
    changed: int = 0
    """Files that were in their places with another content."""
    unlisted: int = 0
    """Files that are there besides."""
    digest: str = ""
    """What the list of all files hashes to, once the volume is complete."""
    lock: Lock = field(default_factory=Lock)


@dataclass(frozen=True, slots=True)
class Staging:
    """The volume, and what it is to hold; `content` names that, as the operator does."""

    volume: Path
    content: str
    pause: Callable[[float], None] = time.sleep
    done: Progress = field(default_factory=Progress)

    @property
    def places(self) -> Folder:
        """Where engines look for files."""
        return Folder(self.volume)

    @property
    def home(self) -> Folder:
        return self.places.below(HOME)

    @property
    def folder(self) -> Folder:
        return self.home.below(self.content)

    def held(self, digest: str) -> FileListing | None:
        """Return the list that the volume has of its files, if it is the one that was verified; None if not.

        Whoever has the volume writable can change the list, and cannot change what it hashes to.
        """
        try:
            with self.home.open(MARKER) as file:
                content = file.read(LONGEST_LIST)
        except FileNotFoundError:
            return None
        if not digest or f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            return None
        try:
            told = json.loads(content)
            files = tuple(File(one["path"], one["size"], f"sha256:{one['sha256']}") for one in told["files"])
            listing = FileListing(str(told["revision"]), files)
            check_listing(listing)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, PermanentError):
            return None
        return listing if told.get("content") == self.content else None

    def verify(self, listing: FileListing) -> bool:
        """Hold what is in its place against a list, by content; return whether all of it is there."""
        self.done.listing, self.done.known = listing, True
        with ThreadPoolExecutor(AT_ONCE) as pool:
            whole = all(list(pool.map(self._holds, listing.files)))
        if whole:
            self._promote(listing)
        return whole

    def fill(self, source: Source, held: FileListing | None = None) -> FileListing:
        """Bring the volume to the content; raises PermanentError, TransientError, and an OSError of the volume.

        `held`: what was verified in it just now, as far as it was there.
        """
        listing = source.listing()
        check_listing(listing)
        for file in listing.files:
            self._refuse_links(file)
        if not held or held.revision != listing.revision:
            self.done.hashes, self.done.files, self.done.placed, self.done.known = {}, 0, 0, False
        self.done.listing = listing
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
        """The bytes that are there: those in their places verified, the others beside verified or not."""
        return self.done.placed + self.folder.bytes()

    def _check_room(self, listing: FileListing) -> None:
        unverified = (one for one in listing.files if one.path not in self.done.hashes)
        there = sum(min(self.places.size(one.path) or 0, one.size) for one in unverified)  # kept, or deleted
        needed = listing.size - self.staged() - there + SPARE
        free = shutil.disk_usage(self.volume).free
        if needed > free:
            raise PermanentError(
                f"{len(listing.files)} files need {_told(listing.size)}, and the volume has room for "
                f"{_told(max(free + listing.size - needed, 0))} of that: raise sizeGiB, or leave files out by "
                "ignorePatterns"
            )

    def _have(self, source: Source, listing: FileListing, file: File) -> None:
        """One file, verified."""
        if self._is_placed(file):
            return
        for tried in range(1, TRIES + 1):
            try:
                source.fetch(listing, file, self.folder)
                self.done.hashes[file.path] = _verify(file, self.folder)
                break
            except TransientError as error:
                if tried == TRIES:
                    raise
                self.pause(min(error.retry_after or 2.0**tried, 60.0))
        self.done.files += 1

    def _refuse_links(self, file: File) -> None:
        """Raise PermanentError where whoever has the volume, too, has put a link in the way."""
        for folder, path in ((self.folder, file.path), (self.places, file.path), (self.home, MARKER)):
            folder.size(path)

    def _is_placed(self, file: File) -> bool:
        """Whether it is in its place, by its content; what else is there is deleted, as it may be anybody's."""
        if file.path in self.done.hashes:
            return True
        if self.places.size(file.path) is None:
            return False
        if is_strong(file.checksum) and self._holds(file):
            return True
        with self.done.lock:
            self.done.changed += self.done.known or is_strong(file.checksum)
        self.places.remove(file.path)
        return False

    def _holds(self, file: File) -> bool:
        """Whether the file in its place has the content of its checksum."""
        if self.places.size(file.path) != file.size:
            return False
        with self.places.open(file.path) as content:
            found = verified(file.checksum, content)
        if found:
            with self.done.lock:
                self.done.hashes[file.path] = found
                self.done.files += 1
                self.done.placed += file.size
        return bool(found)

    def _promote(self, listing: FileListing) -> None:
        for file in sorted(listing.files, key=lambda one: (one.path in LAST, one.path)):
            if file.path in self.done.hashes and self.folder.size(file.path) is not None:
                self.folder.move(file.path, self.places, file.path)
        every = sorted((one.path, one.size, self.done.hashes[one.path]) for one in listing.files)
        told = {
            "content": self.content,
            "revision": listing.revision,
            "files": [{"path": path, "size": size, "sha256": sha256} for path, size, sha256 in every],
        }
        content = json.dumps(told).encode()
        with self.home.make(f"{MARKER}.new") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.home.move(f"{MARKER}.new", self.home, MARKER)
        self.folder.drop()
        known = {str(PurePosixPath(one.path)) for one in listing.files}
        self.done.unlisted = sum(one not in known for one in self.places.files())
        self.done.digest = f"sha256:{hashlib.sha256(content).hexdigest()}"


def check_listing(listing: FileListing) -> None:
    """That what a server names are files of this volume, each of them once."""
    places = dict[str, bool]()  # whether it is a file, and no folder
    for file in listing.files:
        told, parts = (
            repr(file.path[:100]),
            [one for one in file.path[: LONGEST_PATH + 1].split("/") if one not in {"", "."}],
        )
        if not parts or file.path.startswith("/") or "\\" in file.path or ".." in parts or parts[0] == HOME:
            raise PermanentError(f"the source names a file that leads out of the volume: {told}")
        if not is_name(file.path) or len(parts) > DEEPEST:
            raise PermanentError(f"the source names a file as none can be called: {told}")
        if not 0 <= file.size <= LARGEST:
            raise PermanentError(f"the source says that file {told} has a size that no file has")
        *above, place = accumulate(parts, "{}/{}".format)
        if place in places or any(places.get(one) for one in above):
            raise PermanentError(f"the source names file {told} twice, or another below it")
        places |= dict.fromkeys(above, False) | {place: True}


def _verify(file: File, folder: Folder) -> str:
    """Return the SHA-256 of a file. Raises TransientError, and has it fetched again, when it is not that file. Else it
    outlasts the node from here on: the marker would, too, and speak for what was lost."""
    with folder.open(file.path) as content:
        if os.fstat(content.fileno()).st_size == file.size and (found := verified(file.checksum, content)):
            os.fsync(content.fileno())
            return found
    folder.remove(file.path)
    raise TransientError(f"file {file.path} has come with another content than the source says it has")


def _told(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
