"""The programs of a fleet as one file, so that another machine of the same kind need not build them.

`pack` writes what is in the cache; `unpack` takes `path-or-url#sha256`, which FLEET_BINARIES names, puts what is in it
beside what the cache has, and never twice. Nothing of a file is looked at before its digest is the one that was named.
Without that variable, RELEASED says where the archives of the latest release are, one for each kind of machine.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from localfleet.errors import ArchiveError

VARIABLE = "FLEET_BINARIES"
ABOUT = "fleet-binaries.json"
LARGEST = 8 << 30  # of an archive, and of what comes out of it: there is a mistake somewhere when it is more
AT_ONCE = 1 << 20
RELEASED = Path(__file__).parent / "released.json"


@dataclass(frozen=True, slots=True)
class Released:
    """An archive that a release has."""

    address: str
    """The archive's URL and digest, as FLEET_BINARIES has them."""
    go: str
    """The Go that built the programs."""
    content: str
    """The digest of the names of its folders, by which programs of other pins are known before a download."""


def released() -> Released | None:
    """Return the archive of the latest release for this kind of machine."""
    found = all_released().get(machine())
    return Released(**found) if found else None


def write_released(archive: Released) -> None:
    """Write down the archive of this kind of machine, for everybody who has this source."""
    archives = {**all_released(), machine(): asdict(archive)}
    RELEASED.write_text(json.dumps(archives, indent=2, sort_keys=True) + "\n")


def all_released() -> dict[str, dict[str, str]]:
    return json.loads(RELEASED.read_text()) if RELEASED.exists() else {}


def machine() -> str:
    """This kind of machine, as Go names it: programs run on no other."""
    named = {"x86_64": "amd64", "aarch64": "arm64"}
    return f"{platform.system().lower()}-{named.get(platform.machine(), platform.machine())}"


def pack(folders: Iterable[Path], go: str, target: Path) -> str:
    """Write an archive of folders of a cache, built by that Go; the same ones make the same file; its digest."""
    about = json.dumps({"machine": machine(), "go": go}, sort_keys=True).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        target.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        archive.addfile(_plain(ABOUT, len(about)), io.BytesIO(about))
        for folder in sorted(folders):
            for path in [folder, *sorted(folder.rglob("*"))]:
                name = path.relative_to(folder.parent).as_posix()
                if path.is_dir():
                    archive.addfile(_plain(name, 0, tarfile.DIRTYPE, 0o755))
                elif path.is_file():
                    with path.open("rb") as content:
                        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
                        archive.addfile(_plain(name, path.stat().st_size, mode=mode), content)
    return digest(target)


def _plain(name: str, size: int, kind: bytes = tarfile.REGTYPE, mode: int = 0o644) -> tarfile.TarInfo:
    """An entry without anything of this machine in it: no owner, no time."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.mode = size, kind, mode
    return entry


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def built_by(cache: Path) -> str:
    """The Go that built what was unpacked into a cache; empty where nothing was."""
    try:
        return json.loads((cache / ABOUT).read_text())["go"]
    except FileNotFoundError:
        return ""


def unpack(named: str, cache: Path) -> bool:
    """Put what the archive has into the cache; False when it is there already. Raises ArchiveError."""
    where, _, wanted = named.rpartition("#")
    if not where or not re.fullmatch(r"(sha256[:=])?[0-9a-f]{64}", wanted):
        raise ArchiveError(f"{VARIABLE} is PATH-OR-URL#SHA256, with 64 hexadecimal digits: not {named}")
    wanted = wanted[-64:]
    mark = cache / "archives" / wanted
    if mark.exists():
        return False
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".partial-") as partial:
        file = fetched(where, Path(partial) / "archive")
        if (found := digest(file)) != wanted:
            raise ArchiveError(f"{where} is another file than the one that was named: its sha256 is {found}")
        whole = Path(partial) / "whole"
        extract(file, whole)
        about = json.loads((whole / ABOUT).read_text())
        if about["machine"] != machine():
            raise ArchiveError(f"{where} has programs for {about['machine']}, and this is {machine()}")
        for folder in sorted(path for path in whole.iterdir() if path.is_dir()):
            if not (cache / folder.name).exists():
                folder.rename(cache / folder.name)
        (whole / ABOUT).rename(cache / ABOUT)
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    return True


def fetched(where: str, target: Path) -> Path:
    """A copy of a file, or of what a URL has, at the target: nobody changes it while it is looked at."""
    at_url = re.match(r"https?://", where)
    if not at_url and not Path(where).expanduser().is_file():
        raise ArchiveError(f"there is no file {where}, which {VARIABLE} names")
    try:
        source = urllib.request.urlopen(where, timeout=60) if at_url else Path(where).expanduser().open("rb")  # noqa: S310 - http(s) alone
        with source as answer, target.open("wb") as file:
            for piece in pieces(answer, f"what {where} sends"):
                file.write(piece)
    except (urllib.error.URLError, OSError) as error:
        raise ArchiveError(f"{where} cannot be fetched: {error}") from error
    return target


def pieces(source: IO[bytes], what: str, *, most: int = LARGEST) -> Iterator[bytes]:
    """All of it, piece by piece, up to a bound."""
    got = 0
    while piece := source.read(AT_ONCE):
        if (got := got + len(piece)) > most:
            raise ArchiveError(f"{what} is more than {most} bytes")
        yield piece


def extract(file: Path, folder: Path, *, most: int = LARGEST) -> None:
    """Write an archive's files and folders, nothing else of it and nowhere else; raises ArchiveError."""
    folder.mkdir()
    left = most
    try:
        with tarfile.open(file, "r:gz") as archive:
            for entry in archive:
                path = target(entry, folder)
                if entry.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                content = archive.extractfile(entry)
                if content is None:
                    raise ArchiveError(f"{file} is no archive of a fleet: {entry.name} has no content")
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as written:
                    for piece in pieces(content, f"what is in {file}", most=left):
                        left -= len(piece)
                        written.write(piece)
                path.chmod(0o755 if entry.mode & 0o100 else 0o644)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ArchiveError(f"{file} is no archive of a fleet: {error}") from error
    if not (folder / ABOUT).is_file():
        raise ArchiveError(f"{file} is no archive of a fleet: it lacks {ABOUT}")


def target(entry: tarfile.TarInfo, folder: Path) -> Path:
    """Where an entry goes: within the folder, by a name that is none of another place."""
    path = PurePosixPath(entry.name)
    if not (entry.isfile() or entry.isdir()):
        raise ArchiveError(f"{entry.name} is neither a file nor a folder")
    if path.is_absolute() or ".." in path.parts or not path.parts or any(c in entry.name for c in "\0\\"):
        raise ArchiveError(f"{entry.name} leads out of the folder")
    return folder.joinpath(*path.parts)


def chosen() -> str:
    """What FLEET_BINARIES names; empty when it does not."""
    return os.environ.get(VARIABLE, "")
