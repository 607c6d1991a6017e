"""One connection to one API server, as small as the fleet's own programs need it: request, and mirror a collection.

    ApiError        the server said no: status, reason, message
    KubeconfigError the kubeconfig does not say what we need

The usual client libraries cost some 50 MB and a third of a second per process; a fleet of eight clusters runs sixteen
of these.
"""

import asyncio
import base64
import http.client
import io
import json
import logging
import ssl
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import orjson
import yaml

log = logging.getLogger(__name__)

Manifest = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name; the namespace of a cluster-scoped object is empty."""

STRATEGIC_MERGE = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"

REQUEST_DEADLINE = 30.0
WATCH_SECONDS = 240
# The server sends a bookmark about once a minute: two missed ones mean that the connection is dead.
WATCH_SILENCE = 130.0
FIRST_BACKOFF, LAST_BACKOFF = 0.1, 5.0


class KubeconfigError(Exception):
    """The kubeconfig lacks something, or names something that is not there."""


class ApiError(Exception):
    """The API server refused: its HTTP status, and reason and message of its Status object."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Access:
    """How one kubeconfig reaches one API server."""

    server: str
    cluster: str
    user: str
    context: str
    tls: ssl.SSLContext
    tls_without_certificate: ssl.SSLContext
    """The same trust, but nobody's identity: for those who bring a token of their own."""
    token: str | None


def once(
    access: Access, method: str, path: str, body: Manifest | None = None, *, accept: str = "application/json"
) -> tuple[int, bytes]:
    """Status and content of one answer, for those who have no event loop; raises OSError, http.client.HTTPException."""
    headers = {"Accept": accept, "Content-Type": "application/json"}
    if access.token:
        headers["Authorization"] = f"Bearer {access.token}"
    to = http.client.HTTPSConnection(urlsplit(access.server).netloc, timeout=REQUEST_DEADLINE, context=access.tls)
    with closing(to):
        to.request(method, path, None if body is None else json.dumps(body), headers)
        answer = to.getresponse()
        return answer.status, answer.read()


def read_kubeconfig(path: Path) -> Access:
    """What the current context of a kubeconfig says."""
    config = yaml.safe_load(path.read_text())
    if not isinstance(config, dict):
        raise KubeconfigError(f"{path} is not a kubeconfig")
    config = cast(Manifest, config)
    context_name = config.get("current-context") or ""
    context = _named(config, "context", context_name, path)
    cluster = _named(config, "cluster", context.get("cluster", ""), path)
    user = _named(config, "user", context.get("user", ""), path)
    certificate, key = _content(user, "client-certificate", path), _content(user, "client-key", path)
    with_certificate = _trust(cluster, path)
    if certificate and key:
        with tempfile.NamedTemporaryFile(suffix=".pem") as pem:  # ssl reads certificates from files only
            pem.write(certificate + b"\n" + key)
            pem.flush()
            with_certificate.load_cert_chain(pem.name)
    token = user.get("token") or (Path(user["tokenFile"]).read_text().strip() if user.get("tokenFile") else None)
    return Access(
        server=str(cluster.get("server", "")).rstrip("/"),
        cluster=context["cluster"],
        user=context["user"],
        context=context_name,
        tls=with_certificate,
        tls_without_certificate=_trust(cluster, path),
        token=token,
    )


def _named(config: Manifest, kind: str, name: str, path: Path) -> Manifest:
    for entry in entries(config, f"{kind}s"):
        if entry.get("name") == name:
            return section(entry, kind)
    raise KubeconfigError(f"{path} has no {kind} named {name!r}")


def _content(entry: Manifest, field: str, path: Path) -> bytes | None:
    if data := entry.get(f"{field}-data"):
        return base64.b64decode(data)
    if file := entry.get(field):
        return (path.parent / file).read_bytes()
    return None


def _trust(cluster: Manifest, path: Path) -> ssl.SSLContext:
    authority = _content(cluster, "certificate-authority", path)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class KubeClient:
    """Requests to one API server; made by `connect`."""

    def __init__(self, access: Access, session: aiohttp.ClientSession) -> None:
        self.access = access
        self._session = session

    async def request(
        self,
        method: str,
        path: str,
        body: Manifest | None = None,
        *,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        """The server's answer, parsed; raises ApiError, aiohttp.ClientError or TimeoutError."""
        async with (
            asyncio.timeout(REQUEST_DEADLINE),
            self._session.request(
                method,
                self.access.server + path,
                data=None if body is None else io.BytesIO(_json(body)),
                headers={"Content-Type": content_type} if body is not None else {},
                params=params,
            ) as response,
        ):
            payload = await response.read()
            if response.status >= 400:
                raise refusal(response.status, payload)
            return orjson.loads(payload)

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Manifest]:
        """The events of one watch, until the server ends it."""
        async with self._session.get(
            self.access.server + path,
            params={
                **params,
                "watch": "true",
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(WATCH_SECONDS),
            },
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=WATCH_SILENCE),
        ) as response:
            if response.status >= 400:
                raise refusal(response.status, await response.read())
            async for line in lines(response.content):
                yield orjson.loads(line)


@asynccontextmanager
async def connect(kubeconfig: Path) -> AsyncGenerator[KubeClient]:
    """A client for the kubeconfig's current context, closed at the end."""
    access = read_kubeconfig(kubeconfig)
    headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=access.tls, limit=32),
        headers={**headers, "Accept": "application/json"},
    ) as session:
        yield KubeClient(access, session)


def refusal(status: int, payload: bytes) -> ApiError:
    """The error in an answer's body, which is a Status object unless something in between wrote it."""
    try:
        body = orjson.loads(payload)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        return ApiError(status, "Unknown", payload[:200].decode(errors="replace"))
    said = cast(Manifest, body)
    return ApiError(status, said.get("reason") or "Unknown", said.get("message") or "")


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a body without their ends, of any length (StreamReader's own reader refuses long ones)."""
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


class Mirror:
    """One collection as its watch has last seen it.

    `changed` is told the key of every object that appeared, changed or went; it reads `objects` for the rest. After a
    broken watch the collection is listed again, and `changed` hears of the difference.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        *,
        changed: Callable[[Key], None],
        params: Mapping[str, str] | None = None,
    ) -> None:
        self.objects: dict[Key, Manifest] = {}
        self.synced = asyncio.Event()
        self._client = client
        self._path = path
        self._params = dict(params or {})
        self._changed = changed
        self._seen = 0

    async def run(self) -> None:
        """Keep `objects` current, for ever."""
        backoff = FIRST_BACKOFF
        while True:
            try:
                version = await self._list()
                backoff = FIRST_BACKOFF
                while True:
                    began = time.monotonic()
                    version = await self._watch(version)
                    if time.monotonic() - began < FIRST_BACKOFF:
                        await asyncio.sleep(FIRST_BACKOFF)  # a server that ends watches at once is not hammered
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
                log.info("watch of %s broke, listing again: %s", self._path, error or type(error).__name__)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LAST_BACKOFF)

    def note(self, manifest: Manifest) -> None:
        """Take in an object that a write of ours got back, unless the watch is past it (and may have seen it go)."""
        if int(manifest["metadata"]["resourceVersion"]) > self._seen:
            self.objects[key_of(manifest)] = manifest

    async def _list(self) -> str:
        collection = await self._client.request("GET", self._path, params=self._params)
        listed = {key_of(item): item for item in collection["items"]}
        before, self.objects = self.objects, listed
        self._seen = int(collection["metadata"]["resourceVersion"])
        self.synced.set()
        for key in before.keys() | listed.keys():
            if before.get(key) != listed.get(key):
                self._changed(key)
        return collection["metadata"]["resourceVersion"]

    async def _watch(self, version: str) -> str:
        async for event in self._client.watch(self._path, {**self._params, "resourceVersion": version}):
            manifest = event["object"]
            if event["type"] != "ERROR":
                self._seen = int(manifest["metadata"]["resourceVersion"])
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self.objects[key_of(manifest)] = manifest
                    self._changed(key_of(manifest))
                case "DELETED":
                    self.objects.pop(key_of(manifest), None)
                    self._changed(key_of(manifest))
                case "BOOKMARK":
                    pass
                case _:
                    raise refusal(manifest.get("code", 500), orjson.dumps(manifest))
            version = manifest["metadata"]["resourceVersion"]
        return version


def section(manifest: Manifest, *path: str) -> Manifest:
    """The object at a path inside a manifest; empty when it is absent or null."""
    found: Any = manifest
    for field in path:
        found = found.get(field) or {}
    return found


def _json(body: Manifest) -> bytes:
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:  # it is nested deeper than 254 levels, which an API server takes
        return json.dumps(body).encode()


def entries(manifest: Manifest, *path: str) -> list[Manifest]:
    """The list of objects at a path inside a manifest; empty when it is absent or null."""
    return section(manifest, *path[:-1]).get(path[-1]) or []


def words(manifest: Manifest, *path: str) -> list[str]:
    """The list of strings at a path inside a manifest; empty when it is absent or null."""
    return section(manifest, *path[:-1]).get(path[-1]) or []


def key_of(manifest: Manifest) -> Key:
    """Namespace and name of an object."""
    return manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]
