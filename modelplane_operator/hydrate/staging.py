"""Stage a volume: fetch and verify all files in a hidden folder, then move them to their places.

An engine that mounts the volume meanwhile finds no model, and never part of one. After a crash, the next process
continues. On a volume that was complete before, the existing files are verified by content, since they may have been
changed.

The hidden folder has a subfolder for each content, and the list of files of the last complete one. The operator
stores the hash of this list, and passes it to later processes.
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

from modelplane_operator.hydrate.checksums import is_strong, verify
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

HOME: Final = ".modelplane"  # the hidden folder in the volume
MARKER: Final = "complete.json"
"""Name of the list of files. Its presence says that the content was complete."""
AT_ONCE: Final = 4  # parallel files: more do not fill a disk sooner, and each takes some 30 MB
TRIES: Final = 4  # tries of one file in this process; then Kubernetes starts another pod
LARGEST: Final = 1 << 62  # maximum bytes of a file
SPARE: Final = 64 << 20  # bytes that file systems need for themselves
LONGEST_LIST: Final = 64 << 20  # maximum bytes of the volume's list of files: 20,000 with long paths take 25 MB
LAST: Final = ("config.json", "model_index.json")  # engines look for these files first, so they are moved last


@dataclass(slots=True)
class Progress:
    """The progress of a staging, read by the reporter."""

    listing: FileListing | None = None
    """Files of the content; None until the source has listed them."""
    files: int = 0
    """Number of files that are verified and staged or in place."""
    hashes: dict[str, str] = field(default_factory=dict[str, str])
    """SHA-256 of each verified file."""
    is_verified: bool = False
    """True if the volume has the list of the files that were verified earlier."""
    placed_bytes: int = 0
    """Bytes of the files that were already in place."""
    changed: int = 0
    """Number of files that were in place with another content."""
    unlisted: int = 0
    """Number of additional files in the volume."""
    digest: str = ""
    """Hash of the list of all files, once the volume is complete."""
    lock: Lock = field(default_factory=Lock)
    """Lock for the counts, which several threads change."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A volume, and the content that it should have. `content` is the operator's name for it."""

    volume: Path
    """Mount point of the volume."""
    content: str
    """Name of the staging folder, different for each content of a ModelCache."""
    pause: Callable[[float], None] = time.sleep
    """Function that waits between tries."""
    done: Progress = field(default_factory=Progress)
    """Progress for the reporter."""

    @property
    def places(self) -> Folder:
        """Return the folder in which engines look for files."""
        return Folder(self.volume)

    @property
    def home(self) -> Folder:
        """Hidden folder for staged files and the list of files."""
        return self.places.below(HOME)

    @property
    def folder(self) -> Folder:
        """Folder for staged files of this content."""
        return self.home.below(self.content)

    def read_list(self, digest: str) -> FileListing | None:
        """Return the volume's list of its files if it has the given hash; None otherwise.

        A process that can write to the volume can change the list, but not its hash.
        """
        try:
            with self.home.open(MARKER) as file:
                content = file.read(LONGEST_LIST)
        except FileNotFoundError:
            return None
        if not digest or f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            return None
        try:
            parsed = json.loads(content)
            files = tuple(File(entry["path"], entry["size"], f"sha256:{entry['sha256']}") for entry in parsed["files"])
            listing = FileListing(str(parsed["revision"]), files)
            check_listing(listing)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, PermanentError):
            return None
        return listing if parsed.get("content") == self.content else None

    def verify(self, listing: FileListing) -> bool:
        """Verify the files in place by content; return True if all are there."""
        self.done.listing, self.done.is_verified = listing, True
        with ThreadPoolExecutor(AT_ONCE) as pool:
            is_complete = all(list(pool.map(self._verify_in_place, listing.files)))
        if is_complete:
            self._publish(listing)
        return is_complete

    def fill(self, source: Source, verified: FileListing | None = None) -> FileListing:
        """Fill the volume with the content of the source. Raise PermanentError, TransientError, or an OSError of the
        volume.

        `verified` lists the files that were just verified, as far as they were there.
        """
        listing = source.list_files()
        check_listing(listing)
        for file in listing.files:
            # Raises PermanentError if another process with access to the volume has created a link.
            for folder, path in ((self.folder, file.path), (self.places, file.path), (self.home, MARKER)):
                folder.size(path)
        # The content has changed since, so that the verified files say nothing about the new one.
        if not verified or verified.revision != listing.revision:
            self.done.hashes, self.done.files, self.done.placed_bytes, self.done.is_verified = {}, 0, 0, False
        self.done.listing = listing
        self._check_room(listing)
        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            futures = [pool.submit(self._fetch_file, source, listing, file) for file in listing.files]
            # The first error ends the process; files in transfer are continued by the next one.
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        finally:
            # After a failure, staged files are left for the next process.
            pool.shutdown(wait=False, cancel_futures=True)
        self._publish(listing)
        return listing

    def count_bytes(self) -> int:
        """Return the number of bytes present: verified files in place, and staged files."""
        return self.done.placed_bytes + self.folder.bytes()

    def _check_room(self, listing: FileListing) -> None:
        """Raise PermanentError if the volume is too small for the missing files."""
        unverified = (file for file in listing.files if file.path not in self.done.hashes)
        in_place = sum(min(self.places.size(file.path) or 0, file.size) for file in unverified)  # kept, or deleted
        required = listing.size - self.count_bytes() - in_place + SPARE
        free = shutil.disk_usage(self.volume).free
        if required > free:
            raise PermanentError(
                f"{len(listing.files)} files need {_format_size(listing.size)}, and the volume has room for "
                f"{_format_size(max(free + listing.size - required, 0))} of that: raise sizeGiB, or leave files out by "
                "ignorePatterns"
            )

    def _fetch_file(self, source: Source, listing: FileListing, file: File) -> None:
        """Fetch and verify a file. Transient errors are retried."""
        if self._is_in_place(file):
            return
        for attempt in range(1, TRIES + 1):
            try:
                source.fetch(listing, file, self.folder)
                self.done.hashes[file.path] = _verify_staged(file, self.folder)
                break
            except TransientError as error:
                if attempt == TRIES:
                    raise
                # At most a minute, since a server may name any time.
                self.pause(min(error.retry_after or 2.0**attempt, 60.0))
        self.done.files += 1

    def _is_in_place(self, file: File) -> bool:
        """True if the file is in place with the right content. Anything else in its place is deleted."""
        if file.path in self.done.hashes:
            return True
        if self.places.size(file.path) is None:
            return False
        # Another content can be constructed for a CRC, so such a file is fetched again.
        if is_strong(file.checksum) and self._verify_in_place(file):
            return True
        with self.done.lock:
            self.done.changed += self.done.is_verified or is_strong(file.checksum)
        self.places.remove(file.path)
        return False

    def _verify_in_place(self, file: File) -> bool:
        """True if the file in place matches its checksum."""
        if self.places.size(file.path) != file.size:
            return False
        with self.places.open(file.path) as content:
            sha256 = verify(file.checksum, content)
        if sha256:
            with self.done.lock:
                self.done.hashes[file.path] = sha256
                self.done.files += 1
                self.done.placed_bytes += file.size
        return bool(sha256)

    def _publish(self, listing: FileListing) -> None:
        """Move all files to their places, and write the list of files."""
        for file in sorted(listing.files, key=lambda item: (item.path in LAST, item.path)):
            if file.path in self.done.hashes and self.folder.size(file.path) is not None:
                self.folder.move(file.path, self.places, file.path)
        entries = sorted((item.path, item.size, self.done.hashes[item.path]) for item in listing.files)
        document = {
            "content": self.content,
            "revision": listing.revision,
            "files": [{"path": path, "size": size, "sha256": sha256} for path, size, sha256 in entries],
        }
        content = json.dumps(document).encode()
        with self.home.make(f"{MARKER}.new") as file:
            file.write(content)
            file.flush()
            # The list must never be complete on disk before the files are.
            os.fsync(file.fileno())
        self.home.move(f"{MARKER}.new", self.home, MARKER)
        self.folder.drop()
        expected = {str(PurePosixPath(item.path)) for item in listing.files}
        self.done.unlisted = sum(item not in expected for item in self.places.files())
        self.done.digest = f"sha256:{hashlib.sha256(content).hexdigest()}"


def check_listing(listing: FileListing) -> None:
    """Raise PermanentError unless all paths lie within the volume, and each is listed once."""
    files, folders = set[str](), set[str]()
    for file in listing.files:
        quoted, parts = (
            repr(file.path[:100]),
            [part for part in file.path[: LONGEST_PATH + 1].split("/") if part not in {"", "."}],
        )
        if not parts or file.path.startswith("/") or "\\" in file.path or ".." in parts or parts[0] == HOME:
            raise PermanentError(f"the source lists a file outside of the volume: {quoted}")
        if not is_name(file.path) or len(parts) > DEEPEST:
            raise PermanentError(f"the source lists a file with an impossible name: {quoted}")
        if not 0 <= file.size <= LARGEST:
            raise PermanentError(f"the source says that file {quoted} has an impossible size")
        *above, path = accumulate(parts, "{}/{}".format)
        if path in files or path in folders or not files.isdisjoint(above):
            raise PermanentError(f"the source names file {quoted} twice, or another below it")
        files.add(path)
        folders.update(above)


def _verify_staged(file: File, folder: Folder) -> str:
    """Return the SHA-256 of a staged file, flushed to disk. Raise TransientError and delete it if the content is
    wrong.

    Without the flush, the list of files could survive a crash of the node that loses a file.
    """
    with folder.open(file.path) as content:
        if os.fstat(content.fileno()).st_size == file.size and (sha256 := verify(file.checksum, content)):
            os.fsync(content.fileno())
            return sha256
    folder.remove(file.path)
    raise TransientError(f"file {file.path} arrived with other content than the source lists")


def _format_size(size: float) -> str:
    """Return a size in GiB as text."""
    return f"{size / 2**30:.1f} GiB"
