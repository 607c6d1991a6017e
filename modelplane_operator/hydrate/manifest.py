"""Fetch files from any web server, listed by a manifest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from modelplane_operator.hydrate.folder import Folder
from modelplane_operator.hydrate.source import File, FileListing, PermanentError, TransientError, is_name, select_files
from modelplane_operator.hydrate.web import Web

_SHAPE = 'is no manifest: {"files": [{"path": ..., "size": ..., "sha256": ...}]}'
"""End of the message for an invalid manifest."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest, and the files that it lists: next to it, or at their own URLs."""

    url: str
    """Address of the manifest. Relative addresses of files refer to it."""
    web: Web
    """HTTP client with the description for messages."""
    sha256: str = ""
    """Expected SHA-256 of the manifest; empty if the spec has none."""
    allow: tuple[str, ...] = ()
    """Patterns of files to fetch; empty for all."""
    ignore: tuple[str, ...] = ()
    """Patterns of files to leave out."""
    headers: Mapping[str, str] | None = None
    """Headers for the manifest's server only."""

    def list_files(self) -> FileListing:
        """Fetch the manifest, verify its hash, and list its files."""
        with self.web.get(self.url, self.headers) as response:
            content = self.web.read(response)
        digest = hashlib.sha256(content).hexdigest()
        if self.sha256 and digest != self.sha256:
            raise PermanentError(
                f"{self.web.description} hashes to {digest}, which is not the value of sha256: correct that, or the URL"
            )
        files = select_files(self._parse_files(content), self.allow, self.ignore, self.web.description)
        return FileListing(f"sha256:{digest}", files)

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        """Fetch a file. The headers are only sent to the manifest's own server."""
        del listing
        try:
            url = urljoin(self.url, file.key or quote(file.path))
        except ValueError as error:
            raise PermanentError(f"{self.web.description} has an invalid address: {file.key[:100]!r}") from error
        # A manifest can name files of other servers, which must not get the token.
        is_same_origin = _origin(url) == _origin(self.url)
        self.web.fetch(url, file, folder, self.headers if is_same_origin else None)

    def _parse_files(self, content: bytes) -> Iterator[File]:
        """Yield the files of a manifest. Raise PermanentError if it is invalid."""
        try:
            parsed: Any = json.loads(content)
            entries = [(entry["path"], entry["size"], entry["sha256"], entry.get("url")) for entry in parsed["files"]]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise PermanentError(f"{self.web.description} {_SHAPE}") from error
        for path, size, sha256, url in entries:
            is_valid = isinstance(path, str) and is_name(path) and type(size) is int and size >= 0
            is_valid = is_valid and isinstance(sha256, str)
            if not is_valid or not re.fullmatch("[0-9a-fA-F]{64}", sha256) or not (url is None or isinstance(url, str)):
                raise PermanentError(f"{self.web.description} {_SHAPE}")
            yield File(path, size, f"sha256:{sha256.lower()}", url or "")


def _origin(url: str) -> tuple[str, str]:
    """Return the scheme and the host of an address. Raise TransientError if it is none."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise TransientError(f"{url[:100]!r} is no address") from error
    return parts.scheme, parts.netloc
