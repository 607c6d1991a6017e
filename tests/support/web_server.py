"""A web server on loopback, and what is wrong with it: registries, buckets and manifests are pages of one."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class WebServer:
    """Pages by path, without what comes after `?`."""

    pages: dict[str, bytes] = field(default_factory=dict)
    authorization: str = ""
    """Without it in a request, everything is refused but what is `open`."""
    challenge: str = ""
    """What a refusal says to do about it."""
    open: frozenset[str] = frozenset()
    answers: list[int] = field(default_factory=list)
    """Statuses to answer with first, for pages that are not open."""
    broken_after: int = 0
    """Bytes after which the next transfer breaks off, once."""
    wrong: dict[str, bytes] = field(default_factory=dict)
    """Other contents, given once each."""
    redirects: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of every page."""
    packed: dict[str, bytes] = field(default_factory=dict)
    """How pages come to whoever takes gzip."""
    pause: float = 0.0
    """Seconds between two halves of an answer."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    @property
    def ranges(self) -> list[str]:
        return [headers["range"] for _, headers in self.requests if "range" in headers]

    def sent(self, path: str) -> list[dict[str, str]]:
        """The headers of the requests for a path."""
        return [headers for asked, headers in self.requests if asked == path]


@contextmanager
def on_loopback(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    """A server of these answers, in a thread for each request; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def web_server(**given: Any) -> Generator[WebServer]:
    told = WebServer(**given)

    class Handler(_Handler):
        server_of = told

    with on_loopback(Handler) as told.url:
        yield told


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: WebServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def do_GET(self) -> None:
        told, path = self.server_of, self.path.partition("?")[0]
        told.requests.append((path, {name.lower(): value for name, value in self.headers.items()}))
        if path not in told.open and told.answers:
            return self._answer(told.answers.pop(0), b"so says the server", {"Retry-After": "0"})
        if path not in told.open and told.authorization and self.headers.get("Authorization") != told.authorization:
            return self._answer(401, b"", {"WWW-Authenticate": told.challenge})
        if path in told.redirects:
            return self._answer(302, b"", {"Location": told.redirects[path]})
        if path not in told.pages:
            return self._answer(404, b"")
        content, start = told.wrong.pop(path, told.pages[path]), 0
        if path in told.packed and "gzip" in self.headers.get("Accept-Encoding", ""):
            return self._answer(200, told.packed[path], {"Content-Encoding": "gzip"})
        if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            start = int(asked[1])
        return self._answer(206 if start else 200, content[start:], told.headers)

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        told = self.server_of
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if 0 < told.broken_after < len(content):
            self.wfile.write(content[: told.broken_after])
            told.broken_after, self.close_connection = 0, True
            return
        half = len(content) // 2
        self.wfile.write(content[:half])
        time.sleep(told.pause)
        self.wfile.write(content[half:])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nobody reads it."""
