"""What a source names a file's content by, and whether a file is that content.

sha256:HEX       Hugging Face's large files, OCI, manifests
git:HEX          Hugging Face's small files: SHA-1 as Git makes it
md5:HEX          S3, of objects that were put there in one piece
md5/SIZE:HEX-N   S3, of N pieces of SIZE bytes: the MD5 of the pieces' MD5s
crc32c:BASE64    Google Cloud Storage, and S3 where it was asked for
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import google_crc32c as _crc32c

crc32c: Any = _crc32c  # its types say nothing

CHUNK: Final = 1 << 20


def matches(checksum: str, path: Path) -> bool:
    """Whether it does; nothing is held against a checksum that nobody names."""
    kind, _, wanted = checksum.partition(":")
    return not checksum or _of(kind, path) == wanted


def _of(kind: str, path: Path) -> str:
    if kind == "crc32c":
        found = crc32c.Checksum()
        for chunk in _chunks(path):
            found.update(chunk)
        return base64.b64encode(found.digest()).decode()
    if kind.startswith("md5/"):
        pieces = [piece.digest() for piece in _pieces(path, int(kind.removeprefix("md5/")))]
        return f"{hashlib.md5(b''.join(pieces), usedforsecurity=False).hexdigest()}-{len(pieces)}"
    match kind:
        case "sha256":
            digest = hashlib.sha256()
        case "git":
            digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        case "md5":
            digest = hashlib.md5(usedforsecurity=False)
        case _:
            raise ValueError(f"nobody knows a checksum {kind}")
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            yield chunk


def _pieces(path: Path, size: int) -> Iterator[hashlib._Hash]:  # pyright: ignore[reportPrivateUsage]
    """A digest for each piece of so many bytes."""
    with path.open("rb") as content:
        while chunk := content.read(min(CHUNK, size)):
            digest, left = hashlib.md5(chunk, usedforsecurity=False), size - len(chunk)
            while left and (chunk := content.read(min(CHUNK, left))):
                digest.update(chunk)
                left -= len(chunk)
            yield digest
