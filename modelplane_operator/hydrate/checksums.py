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
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import google_crc32c as _crc32c

crc32c: Any = _crc32c  # its types say nothing

CHUNK: Final = 1 << 20


def verified(checksum: str, content: BinaryIO) -> str:
    """Return the SHA-256 of a content in one reading; empty when the checksum is another's. None is every content's."""
    kind, _, wanted = checksum.partition(":")
    every = hashlib.sha256()
    found = _of(kind, content, every)
    return every.hexdigest() if not checksum or found == wanted else ""


def is_strong(checksum: str) -> bool:
    """True if nobody can make another content for it: a CRC is made for whatever one likes."""
    return checksum.partition(":")[0] not in {"", "crc32c"}


def _of(kind: str, content: BinaryIO, every: hashlib._Hash) -> str:  # pyright: ignore[reportPrivateUsage]
    if kind == "crc32c":
        found = crc32c.Checksum()
        for chunk in _chunks(content, every):
            found.update(chunk)
        return base64.b64encode(found.digest()).decode()
    if kind.startswith("md5/"):
        pieces = [piece.digest() for piece in _pieces(content, int(kind.removeprefix("md5/")), every)]
        return f"{hashlib.md5(b''.join(pieces), usedforsecurity=False).hexdigest()}-{len(pieces)}"
    match kind:
        case "sha256" | "":
            digest = None
        case "git":
            size = os.fstat(content.fileno()).st_size
            digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        case "md5":
            digest = hashlib.md5(usedforsecurity=False)
        case _:
            raise ValueError(f"nobody knows a checksum {kind}")
    for chunk in _chunks(content, every):
        if digest:
            digest.update(chunk)
    return (digest or every).hexdigest()


def _chunks(content: BinaryIO, every: hashlib._Hash) -> Iterator[bytes]:  # pyright: ignore[reportPrivateUsage]
    while chunk := content.read(CHUNK):
        every.update(chunk)
        yield chunk


def _pieces(
    content: BinaryIO,
    size: int,
    every: hashlib._Hash,  # pyright: ignore[reportPrivateUsage]
) -> Iterator[hashlib._Hash]:  # pyright: ignore[reportPrivateUsage]
    """A digest for each piece of so many bytes."""
    digest, left = hashlib.md5(usedforsecurity=False), size
    while chunk := content.read(min(CHUNK, left)):
        every.update(chunk)
        digest.update(chunk)
        left -= len(chunk)
        if not left:
            yield digest
            digest, left = hashlib.md5(usedforsecurity=False), size
    if left < size:
        yield digest
