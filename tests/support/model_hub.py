"""A stand-in for Hugging Face on loopback: what huggingface_hub asks to download a model, and its faults."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.web_server import on_loopback

COMMIT = "c" * 40
SMALL = 1000  # larger files are LFS's, which are named by SHA-256


@dataclass
class ModelHub:
    """Repositories by name, and what is wrong with them."""

    files: dict[str, bytes]
    repo: str = "org/model"
    token: str = ""
    """Without it a repository is gated."""
    listed: bool = False
    """Whether anybody may see what files there are, though not have them."""
    elsewhere: str = ""
    """Where files are, if not here."""
    tokens: set[str] = field(default_factory=set)
    """What was said to be the token, by whoever asked for a file."""
    answers: list[int] = field(default_factory=list)
    """Statuses to answer with first, one per request for a file's content."""
    broken_after: int = 0
    """Bytes after which the next transfer breaks off, once."""
    wrong: dict[str, bytes] = field(default_factory=dict)
    """Other contents, given once each."""
    paths: dict[str, str] = field(default_factory=dict)
    """Other names of files, as a hub that means ill says them."""
    ranges: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    url: str = ""


@contextmanager
def model_hub(files: dict[str, bytes], **faults: Any) -> Generator[ModelHub]:
    hub = ModelHub(files, **faults)

    class Handler(_Handler):
        told = hub

    with on_loopback(Handler) as hub.url:
        yield hub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    told: ModelHub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.told, self.path.partition("?")[0]
        if not path.startswith((f"/api/models/{hub.repo}", f"/{hub.repo}/")):
            return self._refuse(404, "RepoNotFound")
        listing = path.startswith("/api/")
        told = self.headers.get("Authorization", "")
        if hub.token and told != f"Bearer {hub.token}" and not (listing and hub.listed):
            return self._refuse(403, "GatedRepo")
        if listing:
            return self._info(path)
        hub.tokens.add(told)
        if hub.elsewhere:
            return self._headers(302, 0, {"Location": f"{hub.elsewhere}{path}"})
        found = re.fullmatch(rf"/{hub.repo}/resolve/({COMMIT}|main)/(.+)", path)
        return (
            self._file(found[2], body=body) if found and found[2] in hub.files else self._refuse(404, "EntryNotFound")
        )

    def _info(self, path: str) -> None:
        revision = path.rpartition("/revision/")[2] if "/revision/" in path else "main"
        if revision not in {"main", COMMIT}:
            return self._refuse(404, "RevisionNotFound")
        siblings = [self._sibling(name, content) for name, content in self.told.files.items()]
        body = json.dumps({"id": self.told.repo, "sha": COMMIT, "siblings": siblings}).encode()
        self._headers(200, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)
        return None

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        sha = hashlib.sha256(content).hexdigest()
        lfs = {"lfs": {"size": len(content), "sha256": sha, "pointerSize": 130}} if len(content) > SMALL else {}
        named = self.told.paths.get(name, name)
        return {"rfilename": named, "size": len(content), "blobId": _git(content), **lfs}

    def _file(self, name: str, *, body: bool) -> None:
        hub, content = self.told, self.told.files[name]
        etag = hashlib.sha256(content).hexdigest() if len(content) > SMALL else _git(content)
        if body and hub.answers:
            return self._refuse(hub.answers.pop(0), "")
        if body:
            hub.calls[name] += 1
            content = hub.wrong.pop(name, content)
        start = 0
        if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            start = int(asked[1])
            hub.ranges.append(asked[0])
        more = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        linked = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes", **more}
        self._headers(206 if start else 200, len(content) - start, linked)
        if not body:
            return None
        if 0 < hub.broken_after < len(content) - start:
            self.wfile.write(content[start : start + hub.broken_after])
            hub.broken_after, self.close_connection = 0, True
            return None
        self.wfile.write(content[start:])
        return None

    def _refuse(self, status: int, code: str) -> None:
        self._headers(status, 0, {"X-Error-Code": code, "X-Error-Message": "so says the hub", "Retry-After": "0"})

    def _headers(self, status: int, length: int, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nobody reads it."""


def _git(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
