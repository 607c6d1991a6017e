"""Verify files against the checksums of their sources.

sha256:HEX       Hugging Face's large files, OCI, manifests
git:HEX          Hugging Face's small files: SHA-1 of a Git blob
md5:HEX          S3, objects uploaded in one part
md5/SIZE:HEX-N   S3, objects of N parts of SIZE bytes: the MD5 of the parts' MD5s
crc32c:BASE64    Google Cloud Storage, and S3 if it was requested at upload
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import google_crc32c as _crc32c

crc32c: Any = _crc32c  # the library has no usable types

CHUNK: Final = 1 << 20
"""Bytes per read. Files are much larger than the pod's memory."""


def verify(checksum: str, content: BinaryIO) -> str:
    """Return the SHA-256 of a content if it matches the checksum, otherwise an empty string.

    The content is read once. An empty checksum matches everything.
    """
    kind, _, expected = checksum.partition(":")
    sha256 = hashlib.sha256()
    actual = _compute(kind, content, sha256)
    return sha256.hexdigest() if not checksum or actual == expected else ""


def is_strong(checksum: str) -> bool:
    """True if no other content can be constructed for the checksum, unlike for a CRC."""
    return checksum.partition(":")[0] not in {"", "crc32c"}


def _compute(kind: str, content: BinaryIO, sha256: hashlib._Hash) -> str:  # pyright: ignore[reportPrivateUsage]
    """Return the checksum of a content in the notation of its kind, and update its SHA-256. Raise ValueError for an
    unknown kind.
    """
    if kind == "crc32c":
        crc = crc32c.Checksum()
        for chunk in _chunks(content, sha256):
            crc.update(chunk)
        return base64.b64encode(crc.digest()).decode()
    if kind.startswith("md5/"):
        parts = [part.digest() for part in _pieces(content, int(kind.removeprefix("md5/")), sha256)]
        return f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"
    match kind:
        case "sha256" | "":
            digest = None
        case "git":
            size = os.fstat(content.fileno()).st_size
            # Git hashes a header with the size before the content.
            digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        case "md5":
            digest = hashlib.md5(usedforsecurity=False)
        case _:
            raise ValueError(f"checksum {kind} is not supported")
    for chunk in _chunks(content, sha256):
        if digest:
            digest.update(chunk)
    return (digest or sha256).hexdigest()


def _chunks(content: BinaryIO, sha256: hashlib._Hash) -> Iterator[bytes]:  # pyright: ignore[reportPrivateUsage]
    """Yield the chunks of a content, and add them to its SHA-256."""
    while chunk := content.read(CHUNK):
        sha256.update(chunk)
        yield chunk


def _pieces(
    content: BinaryIO,
    size: int,
    sha256: hashlib._Hash,  # pyright: ignore[reportPrivateUsage]
) -> Iterator[hashlib._Hash]:  # pyright: ignore[reportPrivateUsage]
    """Yield the MD5 of each part of the given size."""
    digest, remaining = hashlib.md5(usedforsecurity=False), size
    while chunk := content.read(min(CHUNK, remaining)):
        sha256.update(chunk)
        digest.update(chunk)
        remaining -= len(chunk)
        if not remaining:
            yield digest
            digest, remaining = hashlib.md5(usedforsecurity=False), size
    # The last part is usually shorter than the others.
    if remaining < size:
        yield digest
