"""One API server: read, write and watch objects.

    async with connect(read_kubeconfig(text)) as kube:
        stored = await kube.apply(manifest)

Every call has a deadline and raises one of the errors of `errors.py` when it was not done. Nothing is repeated behind
the caller's back, but for one thing: after a 401 a token file is read again, and a new token is tried once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final, Literal, NamedTuple, NoReturn, TypeVar, get_args

import orjson

from kubeloop.client.access import Access
from kubeloop.client.channel import OpenChannel, open_channel
from kubeloop.client.errors import from_event, translated
from kubeloop.client.limits import ServerLimits, Share, shown
from kubeloop.client.lists import Listing, Lists
from kubeloop.client.responses import Answers, check_namespace, checked
from kubeloop.client.transport import CONNECT_SECONDS
from kubeloop.client.wire import JSON, OnCall, Request, Wire, open_wire, uncounted
from kubeloop.errors import Gone, NotFound
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, key_of, section
from kubeloop.types import SECRET, SERVICE_ACCOUNT, ResourceType, type_of

T = TypeVar("T")

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
BARE = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"

LIST_SECONDS = 300.0  # of all its pages: etcd forgets the moment that they are of after about so long
SETS_HEADERS: Final = b'"requestHeaderModifier":{"set":'  # a route may carry the credentials of an endpoint
VERSION_SIZE = 64  # of what a server calls its version, which goes into a status
BOOKMARK_SECONDS = 60.0  # about how often an API server sends a bookmark
SILENCE = 2 * BOOKMARK_SECONDS + 10  # two missed bookmarks mean a dead connection

Propagation = Literal["Background", "Foreground", "Orphan"]


EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
_EVENT_TYPES: Final = get_args(EventType)  # no set: a server may say what has no hash


class Event(NamedTuple):
    """What a watch said: a bookmark's object has a resourceVersion and nothing else."""

    type: EventType
    manifest: Manifest


BEFORE_ALL = "1"
"""A resourceVersion that no object has: a store counts from there."""


class Kube:
    """One API server; made by `connect`, which closes it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._answers = Answers(wire)
        self._lists = Lists(wire, self._answers)

    @property
    def access(self) -> Access:
        return self._wire.access

    def renew(self, access: Access) -> None:
        """Go on as the same user with another token."""
        self._wire.access = access

    def check_kept(self, kind: ResourceType, size: int) -> None:
        """Raise Misbehaving when so much may not be kept of the server's objects, to which these belong."""
        if size > (limit := self._wire.limits.kept):
            raise self._wire.misbehaves(
                f"keep {kind}", f"its objects take more than the {shown(limit)} that are allowed"
            )

    async def misbehaves(self) -> NoReturn:
        """Wait until the server has said what no API server says, and raise that."""
        raise await asyncio.shield(self._wire.offence)

    # Reading ---------------------------------------------------------------------------------------------------------

    async def get(self, kind: ResourceType, key: Key) -> Manifest:
        """The object; raises NotFound."""
        return await self._one("get", "GET", kind, key)

    async def find(self, kind: ResourceType, key: Key) -> Manifest | None:
        """The object, or None when the server says that there is none."""
        try:
            return await self.get(kind, key)
        except NotFound:
            return None

    async def list(
        self,
        kind: ResourceType,
        *,
        namespace: str = "",
        selector: str = "",
        page: int | None = None,
        bare: bool = False,
    ) -> Listing[Manifest]:
        """All objects of one moment, page by page; one page when the pages' moment has passed twice.

        `bare`: no more than their metadata.
        """
        return await self.read_list(kind, lambda one: one, namespace=namespace, selector=selector, page=page, bare=bare)

    async def some(self, kind: ResourceType, limit: int, *, namespace: str, selector: str = "") -> Listing[Manifest]:
        """The metadata of the first so many objects, however many there are, at the version that the server has now."""
        with translated(f"list {kind}"):
            asked = {"labelSelector": selector} if selector else {}
            return await self._lists.pages(
                kind, lambda one: one, namespace, asked, limit, bare=True, kept=None, first=True
            )

    async def read_list(
        self,
        kind: ResourceType,
        read: Callable[[Manifest], T],
        *,
        namespace: str = "",
        selector: str = "",
        page: int | None = None,
        bare: bool = False,
        size: Callable[[T], int] | None = None,
        on_begin: Callable[[], None] = lambda: None,
    ) -> Listing[T]:
        """The same, and of each object no more than what `read` makes of it, as the pages come in.

        `size`: how many bytes that is; None where it is all of the object. `on_begin` is told whenever it begins with
        the first page, again if need be.
        """
        page = page or self._wire.limits.at_once
        asked = {"labelSelector": selector} if selector else {}
        for limit in (page, page, 0):
            try:
                on_begin()
                with translated(f"list {kind}"):
                    async with asyncio.timeout(LIST_SECONDS):
                        return await self._lists.pages(kind, read, namespace, asked, limit, bare=bare, kept=size)
            except Gone:
                if not limit:
                    raise
        raise AssertionError("the last attempt answers or raises")

    async def serves(self, api_version: str) -> frozenset[str]:
        """The kinds that the server has of a group and version; none when it does not know the group."""
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        asked = f"discover {api_version}"
        try:
            said = await self._wire.ask(Request("discover", "", "GET", root), asked=asked)
        except NotFound:
            return frozenset()
        answer = self._answers.object(self._wire.parsed(said, asked=asked), asked)
        known = self._answers.objects(answer.get("resources"), asked, "the resources")
        named = ((one.get("kind"), one.get("name")) for one in known)
        return frozenset(k for k, name in named if isinstance(k, str) and isinstance(name, str) and "/" not in name)

    async def version(self) -> str:
        """The version of Kubernetes that the server has."""
        said = await self._wire.ask(Request("version", "", "GET", "/version"), asked="version")
        told = self._answers.object(self._wire.parsed(said, asked="version"), "version").get("gitVersion")
        if not isinstance(told, str) or len(told) > VERSION_SIZE or not told.isprintable():
            raise self._wire.misbehaves("version", "the answer has no version")
        return told

    async def ping(self, *, deadline: float = CONNECT_SECONDS) -> float:
        """The seconds until the server has said that it is ready; raises what else it says."""
        began = time.monotonic()
        await self._wire.ask(Request("ping", "", "GET", "/readyz"), asked="GET /readyz", deadline=deadline)
        return time.monotonic() - began

    async def watch(
        self,
        kind: ResourceType,
        version: str,
        *,
        seconds: int,
        namespace: str = "",
        selector: str = "",
        silence: float = SILENCE,
        bare: bool = False,
    ) -> AsyncGenerator[Event]:
        """What happens after a version, until the server ends it, about `seconds` later.

        Raises Gone when that version is too old, and Unreachable when the server breaks off or falls silent.
        """
        asked = f"watch {kind}"
        params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        params |= {"resourceVersion": version} | ({"labelSelector": selector} if selector else {})
        accept = BARE if bare else JSON
        request = Request("watch", str(kind), "GET", kind.path(namespace), params=params, accept=accept)
        async with aclosing(self._wire.lines(request, asked=asked, silence=silence)) as lines:
            async for line in lines:
                said = self._answers.object(await self._wire.objects(line, asked=asked), asked)
                manifest = self._answers.object(said.get("object"), asked, "the object of an event")
                if said.get("type") == "ERROR":
                    raise from_event(manifest, asked=asked)
                if said.get("type") not in _EVENT_TYPES:
                    raise self._wire.misbehaves(asked, "an event is of no known type")
                self._answers.place(manifest, asked)
                if said["type"] != "BOOKMARK":
                    check_namespace(manifest, kind, namespace, asked=asked)
                yield Event(said["type"], manifest)

    def lines(self, request: Request, *, asked: str, silence: float) -> AsyncGenerator[bytes | bytearray]:
        """The lines of an answer that is no JSON."""
        return self._wire.lines(request, asked=asked, silence=silence)

    async def answer(self, request: Request, *, asked: str) -> Manifest:
        """What the server says to a request of another form than those below."""
        return self._answers.object(
            await self._wire.objects(await self._wire.ask(request, asked=asked), asked=asked), asked
        )

    # Writing ---------------------------------------------------------------------------------------------------------

    async def apply(
        self, manifest: Manifest, *, force: bool = True, dry_run: bool = False, new: bool = False
    ) -> Manifest:
        """Make an object say what the manifest says, whoever else has said otherwise (server-side apply).

        The manifest is all that we want of the object: what it said before and no longer says is taken back. A uid or
        resourceVersion in it is a precondition, and so is `new`: that there is none of that name. Raises Conflict when
        one does not hold, or, unless forced, when another manager disagrees.
        """
        if new:
            manifest = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": BEFORE_ALL}}
        kind, key = type_of(manifest), key_of(manifest)
        params = {"fieldManager": names().field_manager, "force": str(force).lower(), **_dry(dry_run)}
        return await self._one("apply", "PATCH", kind, key, manifest, content_type=APPLY_PATCH, params=params)

    async def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Store a new object; raises AlreadyExists when there is one of that name."""
        kind, namespace = type_of(manifest), manifest["metadata"].get("namespace") or ""
        params = {"fieldManager": names().field_manager, "fieldValidation": "Strict", **_dry(dry_run)}
        stored = await self._ask("create", "POST", kind, kind.path(namespace), manifest, params=params)
        name = manifest["metadata"].get("name") or section(stored, "metadata").get(
            "name", ""
        )  # one that the server made up
        return checked(stored, kind, Key(namespace, name), asked=f"create {kind} {name}")

    async def replace(self, manifest: Manifest) -> Manifest:
        """Store another content of the object that was read at the manifest's resourceVersion; raises Conflict."""
        return await self._replace(manifest, manifest, "")

    async def replace_status(self, manifest: Manifest) -> Manifest:
        """Store another status of the object that was read at the manifest's resourceVersion; raises Conflict."""
        key, kept = key_of(manifest), ("apiVersion", "kind", "status")
        metadata = {"name": key.name, "resourceVersion": _version(manifest)}
        metadata |= {"namespace": key.namespace} if key.namespace else {}
        body = {"metadata": metadata, **{name: manifest[name] for name in kept if name in manifest}}
        return await self._replace(manifest, body, "status")

    async def _replace(self, manifest: Manifest, body: Manifest, subresource: str) -> Manifest:
        kind, key = type_of(manifest), key_of(manifest)
        _version(manifest)
        verb = "replace_status" if subresource else "replace"
        params = {"fieldManager": names().field_manager}
        return await self._one(verb, "PUT", kind, key, body, subresource=subresource, params=params)

    async def set_finalizers(self, kind: ResourceType, key: Key, finalizers: Iterable[str], version: str) -> Manifest:
        """Give the object that was read at this resourceVersion these finalizers; raises Conflict."""
        body = {"metadata": {"resourceVersion": version, "finalizers": [*finalizers]}}
        params = {"fieldManager": names().field_manager}
        return await self._one("set_finalizers", "PATCH", kind, key, body, content_type=MERGE_PATCH, params=params)

    async def set_data(self, kind: ResourceType, key: Key, data: Mapping[str, str], version: str) -> Manifest:
        """Give the Secret or ConfigMap that was read at this resourceVersion these entries; raises Conflict."""
        body = {"metadata": {"resourceVersion": version}, "data": dict(data)}
        path, params = kind.path(key.namespace, key.name), {"fieldManager": names().field_manager}
        return await self._ask("set_data", "PATCH", kind, path, body, content_type=MERGE_PATCH, params=params)

    async def request_token(self, account: Key, seconds: int) -> str:
        """Another token of a service account, for so long or for as long as the server has it; the others stay."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        path = SERVICE_ACCOUNT.path(account.namespace, account.name, "token")
        answer = await self._ask("request_token", "POST", SERVICE_ACCOUNT, path, body)
        token = self._answers.object(answer.get("status") or {}, "request_token", "the status").get("token")
        return token if isinstance(token, str) else ""

    async def delete(
        self,
        kind: ResourceType,
        key: Key,
        *,
        uid: str,
        version: str | None = None,
        propagation: Propagation = "Background",
    ) -> Manifest | None:
        """Delete that very object: what is left of it while it is on its way out, None when it is gone.

        Raises NotFound when none of that name is there, Conflict when it is another one, or another version.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, **({"resourceVersion": version} if version else {})},
            "propagationPolicy": propagation,
        }
        path = kind.path(key.namespace, key.name)
        answer = await self._ask("delete", "DELETE", kind, path, body)
        # A server answers with a Status, or with the object as it was (gone) or as it now is (terminating).
        if (answer.get("apiVersion"), answer.get("kind")) == ("v1", "Status"):
            return None
        left = checked(answer, kind, key, asked=f"delete {kind} {key.name}")
        return left if _is_terminating(left) else None

    async def _one(
        self,
        verb: str,
        method: str,
        kind: ResourceType,
        key: Key,
        body: Manifest | None = None,
        *,
        subresource: str = "",
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        """What the server says of one object; raises ServerFault when it says something of another."""
        path = kind.path(key.namespace, key.name, subresource)
        answer = await self._ask(verb, method, kind, path, body, content_type=content_type, params=params)
        return checked(answer, kind, key, asked=f"{verb} {kind} {key.name}")

    async def _ask(
        self,
        verb: str,
        method: str,
        kind: ResourceType,
        path: str,
        body: Manifest | None = None,
        *,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        asked = f"{verb} {kind} {path.rpartition('/')[2]}"
        payload = None if body is None else orjson.dumps(body)
        secret = payload is not None and (kind == SECRET or SETS_HEADERS in payload)
        request = Request(verb, str(kind), method, path, payload, content_type, params, secret=secret)
        answer = await self._wire.ask(request, asked=asked)
        return self._answers.object(await self._wire.objects(answer, asked=asked), asked)


@asynccontextmanager
async def connect(
    access: Access,
    *,
    on_call: OnCall = uncounted,
    limits: ServerLimits | None = None,
    share: Share | None = None,
    opens: OpenChannel = open_channel,
    cluster: str = "",
) -> AsyncGenerator[Kube]:
    """A client of one API server, closed at the end; raises KubeconfigError when its certificates cannot be used.

    `limits` and `share` bound what the server may say, and how much of our time it gets; `opens` makes what carries
    the requests; `cluster` is its name in traces.
    """
    async with open_wire(access, on_call, limits or ServerLimits(), share, opens=opens, cluster=cluster) as wire:
        yield Kube(wire)


def _dry(dry_run: bool) -> Mapping[str, str]:  # noqa: FBT001 - one word for one flag
    return {"dryRun": "All"} if dry_run else {}


def _version(manifest: Manifest) -> str:
    version = manifest["metadata"].get("resourceVersion")
    if not version:
        raise ValueError(f"{manifest['kind']} {key_of(manifest)} has no resourceVersion: it was not read from a server")
    return version


def _is_terminating(manifest: Manifest) -> bool:
    """Whether what a delete answered is still there: something has to be done first, or some seconds to pass."""
    metadata = manifest["metadata"]
    of_a_namespace = section(manifest, "spec").get("finalizers") if manifest["kind"] == "Namespace" else None
    return bool(metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds") or of_a_namespace)
