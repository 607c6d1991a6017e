"""Files on any web server, named by a manifest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from modelplane_operator.hydrate.folder import Folder
from modelplane_operator.hydrate.source import File, FileListing, PermanentError, TransientError, is_name, selected
from modelplane_operator.hydrate.web import Web

_SHAPE = 'is no manifest: {"files": [{"path": ..., "size": ..., "sha256": ...}]}'


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest, and the files that it names: beside it, or where it says."""

    url: str
    web: Web
    sha256: str = ""
    """What the manifest has to hash to, if anybody has said."""
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    headers: Mapping[str, str] | None = None
    """For the server of the manifest, and no other."""

    def listing(self) -> FileListing:
        with self.web.get(self.url, self.headers) as response:
            content = self.web.read(response)
        found = hashlib.sha256(content).hexdigest()
        if self.sha256 and found != self.sha256:
            raise PermanentError(f"{self.web.named} hashes to {found}, and not to what sha256 says")
        files = selected(self._files(content), self.allow, self.ignore, self.web.named)
        return FileListing(f"sha256:{found}", files)

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        del listing
        try:
            where = urljoin(self.url, file.key or quote(file.path))
        except ValueError as error:
            raise PermanentError(f"{self.web.named} has an address that is none: {file.key[:100]!r}") from error
        same = _origin(where) == _origin(self.url)
        self.web.fetch(where, file, folder, self.headers if same else None)

    def _files(self, content: bytes) -> Iterator[File]:
        try:
            told: Any = json.loads(content)
            entries = [(one["path"], one["size"], one["sha256"], one.get("url")) for one in told["files"]]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise PermanentError(f"{self.web.named} {_SHAPE}") from error
        for path, size, sha256, url in entries:
            known = isinstance(path, str) and is_name(path) and type(size) is int and size >= 0
            known = known and isinstance(sha256, str)
            if not known or not re.fullmatch("[0-9a-fA-F]{64}", sha256) or not (url is None or isinstance(url, str)):
                raise PermanentError(f"{self.web.named} {_SHAPE}")
            yield File(path, size, f"sha256:{sha256.lower()}", url or "")


def _origin(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise TransientError(f"{url[:100]!r} is no address") from error
    return parts.scheme, parts.netloc
