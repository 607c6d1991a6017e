"""A client of one API server: reads, writes and watches objects.

    async with connect(read_kubeconfig(text)) as kube:
        stored = await kube.apply(manifest)

Every call has a deadline, and raises an error of `errors.py` if it was not carried out. Nothing is retried, with one
exception: after a 401 a token file is read again, and a new token is tried once.
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
from kubeloop.client.errors import from_event, translate_errors
from kubeloop.client.limits import ServerLimits, Share, format_size
from kubeloop.client.lists import Listing, Lists
from kubeloop.client.responses import Answers, check_namespace, check_response
from kubeloop.client.transport import CONNECT_SECONDS
from kubeloop.client.wire import JSON, OnCall, Request, Wire, ignore_count, open_wire
from kubeloop.errors import Expired, NotFound
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, key_of, section
from kubeloop.types import SECRET, SERVICE_ACCOUNT, ResourceType, type_of

T = TypeVar("T")

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
BARE = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"

LIST_SECONDS = 300.0  # for all pages, since etcd compacts their version after about that time
SETS_HEADERS: Final = b'"requestHeaderModifier":{"set":'  # a route may carry the credentials of an endpoint
VERSION_SIZE = 64  # characters of a server's version, which goes into a status
BOOKMARK_SECONDS = 60.0  # about how often an API server sends a bookmark
SILENCE = 2 * BOOKMARK_SECONDS + 10  # two missed bookmarks mean a dead connection

Propagation = Literal["Background", "Foreground", "Orphan"]
"""The deletion policy for dependants of an object."""


EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
_EVENT_TYPES: Final = get_args(EventType)  # a tuple, because a server may send a type that is not hashable


class Event(NamedTuple):
    """An event of a watch. The object of a bookmark has only a resourceVersion."""

    type: EventType
    manifest: Manifest


BEFORE_ALL = "1"
"""A resourceVersion that no object has, as the first object of a store gets a higher one."""


class Kube:
    """A client of one API server; created by `connect`, which closes it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._answers = Answers(wire)
        self._lists = Lists(wire, self._answers)

    @property
    def access(self) -> Access:
        """The current access."""
        return self._wire.access

    def renew(self, access: Access) -> None:
        """Use another token of the same user from now on."""
        self._wire.access = access

    def check_cached_bytes(self, kind: ResourceType, size: int) -> None:
        """Raise Misbehaving if the cached objects of the server, including these, exceed the limit."""
        if size > (limit := self._wire.limits.cached):
            raise self._wire.misbehaves(
                f"keep {kind}", f"its objects take more than the {format_size(limit)} that are allowed"
            )

    async def misbehaves(self) -> NoReturn:
        """Wait until the server sends something that no API server sends, and raise that error."""
        raise await asyncio.shield(self._wire.offence)

    # Reading ---------------------------------------------------------------------------------------------------------

    async def get(self, kind: ResourceType, key: Key) -> Manifest:
        """Return the object; raises NotFound."""
        return await self._request_object("get", "GET", kind, key)

    async def find(self, kind: ResourceType, key: Key) -> Manifest | None:
        """Return the object, or None if the server says that it does not exist."""
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
        """Return all objects at one version, page by page, or in one page after that version has expired twice.

        `bare`: only their metadata.
        """
        return await self.read_list(
            kind, lambda item: item, namespace=namespace, selector=selector, page=page, bare=bare
        )

    async def some(self, kind: ResourceType, limit: int, *, namespace: str, selector: str = "") -> Listing[Manifest]:
        """Return the metadata of the first objects, at the current version of the server."""
        with translate_errors(f"list {kind}"):
            params = {"labelSelector": selector} if selector else {}
            return await self._lists.pages(
                kind, lambda item: item, namespace, params, limit, bare=True, size_of=None, first=True
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
        """Return the results of `read` for all objects, applied page by page so that not all of them are in memory.

        `size` returns the bytes that a result keeps; None counts full objects. `on_begin` is called at each start with
        the first page, which may be several.
        """
        page = page or self._wire.limits.at_once
        params = {"labelSelector": selector} if selector else {}
        for limit in (page, page, 0):
            try:
                on_begin()
                with translate_errors(f"list {kind}"):
                    async with asyncio.timeout(LIST_SECONDS):
                        return await self._lists.pages(kind, read, namespace, params, limit, bare=bare, size_of=size)
            except Expired:
                if not limit:
                    raise
        raise AssertionError("the last attempt answers or raises")

    async def serves(self, api_version: str) -> frozenset[str]:
        """Return the kinds of a group and version that the server has; empty if it does not have the group."""
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        operation = f"discover {api_version}"
        try:
            body = await self._wire.ask(Request("discover", "", "GET", root), operation=operation)
        except NotFound:
            return frozenset()
        response = self._answers.object(self._wire.parse(body, operation=operation), operation)
        resources = self._answers.objects(response.get("resources"), operation, "the resources")
        kinds_and_names = ((item.get("kind"), item.get("name")) for item in resources)
        return frozenset(
            k for k, name in kinds_and_names if isinstance(k, str) and isinstance(name, str) and "/" not in name
        )

    async def version(self) -> str:
        """Return the Kubernetes version of the server."""
        body = await self._wire.ask(Request("version", "", "GET", "/version"), operation="version")
        version = self._answers.object(self._wire.parse(body, operation="version"), "version").get("gitVersion")
        if not isinstance(version, str) or len(version) > VERSION_SIZE or not version.isprintable():
            raise self._wire.misbehaves("version", "the answer has no version")
        return version

    async def ping(self, *, deadline: float = CONNECT_SECONDS) -> float:
        """Return the seconds until the server has answered that it is ready; raises ApiError for any other response."""
        started_at = time.monotonic()
        await self._wire.ask(Request("ping", "", "GET", "/readyz"), operation="GET /readyz", deadline=deadline)
        return time.monotonic() - started_at

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
        """Yield the events after a version until the server ends the watch, after about `seconds`.

        Raises Expired if the version is too old, and Unreachable if the connection breaks or is silent for too long.
        """
        operation = f"watch {kind}"
        params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        params |= {"resourceVersion": version} | ({"labelSelector": selector} if selector else {})
        accept = BARE if bare else JSON
        request = Request("watch", str(kind), "GET", kind.path(namespace), params=params, accept=accept)
        async with aclosing(self._wire.lines(request, operation=operation, silence=silence)) as lines:
            async for line in lines:
                event = self._answers.object(await self._wire.objects(line, operation=operation), operation)
                manifest = self._answers.object(event.get("object"), operation, "the object of an event")
                if event.get("type") == "ERROR":
                    raise from_event(manifest, operation=operation)
                if event.get("type") not in _EVENT_TYPES:
                    raise self._wire.misbehaves(operation, "an event is of no known type")
                self._answers.place(manifest, operation)
                if event["type"] != "BOOKMARK":
                    check_namespace(manifest, kind, namespace, operation=operation)
                yield Event(event["type"], manifest)

    def lines(self, request: Request, *, operation: str, silence: float) -> AsyncGenerator[bytes | bytearray]:
        """Yield the lines of a response that is not JSON."""
        return self._wire.lines(request, operation=operation, silence=silence)

    async def answer(self, request: Request, *, operation: str) -> Manifest:
        """Send any other request, and return the JSON object of the response."""
        return self._answers.object(
            await self._wire.objects(await self._wire.ask(request, operation=operation), operation=operation), operation
        )

    # Writing ---------------------------------------------------------------------------------------------------------

    async def apply(
        self, manifest: Manifest, *, force: bool = True, dry_run: bool = False, new: bool = False
    ) -> Manifest:
        """Apply a manifest server-side, taking over fields of other managers if `force`d.

        The manifest has all fields that we want: fields that it had before and no longer has are removed. A uid or
        resourceVersion in it is a precondition, and so is `new`, that no object of this name exists. Raises Conflict if
        one does not hold, or if another manager owns a field and `force` is False.
        """
        if new:
            manifest = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": BEFORE_ALL}}
        kind, key = type_of(manifest), key_of(manifest)
        params = {"fieldManager": names().field_manager, "force": str(force).lower(), **_dry_run_params(dry_run)}
        return await self._request_object(
            "apply", "PATCH", kind, key, manifest, content_type=APPLY_PATCH, params=params
        )

    async def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create an object; raises AlreadyExists."""
        kind, namespace = type_of(manifest), manifest["metadata"].get("namespace") or ""
        params = {"fieldManager": names().field_manager, "fieldValidation": "Strict", **_dry_run_params(dry_run)}
        stored = await self._request("create", "POST", kind, kind.path(namespace), manifest, params=params)
        name = manifest["metadata"].get("name") or section(stored, "metadata").get(
            "name", ""
        )  # generated by the server
        return check_response(stored, kind, Key(namespace, name), operation=f"create {kind} {name}")

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object at the resourceVersion of the manifest; raises Conflict."""
        return await self._replace(manifest, manifest, "")

    async def replace_status(self, manifest: Manifest) -> Manifest:
        """Replace the status of an object at the resourceVersion of the manifest; raises Conflict."""
        key, fields = key_of(manifest), ("apiVersion", "kind", "status")
        metadata = {"name": key.name, "resourceVersion": _require_version(manifest)}
        metadata |= {"namespace": key.namespace} if key.namespace else {}
        body = {"metadata": metadata, **{name: manifest[name] for name in fields if name in manifest}}
        return await self._replace(manifest, body, "status")

    async def _replace(self, manifest: Manifest, body: Manifest, subresource: str) -> Manifest:
        """Replace an object or its subresource; raises ValueError if the manifest has no resourceVersion."""
        kind, key = type_of(manifest), key_of(manifest)
        _require_version(manifest)
        verb = "replace_status" if subresource else "replace"
        params = {"fieldManager": names().field_manager}
        return await self._request_object(verb, "PUT", kind, key, body, subresource=subresource, params=params)

    async def set_finalizers(self, kind: ResourceType, key: Key, finalizers: Iterable[str], version: str) -> Manifest:
        """Set the finalizers of an object at this resourceVersion; raises Conflict."""
        body = {"metadata": {"resourceVersion": version, "finalizers": [*finalizers]}}
        params = {"fieldManager": names().field_manager}
        return await self._request_object(
            "set_finalizers", "PATCH", kind, key, body, content_type=MERGE_PATCH, params=params
        )

    async def set_data(self, kind: ResourceType, key: Key, data: Mapping[str, str], version: str) -> Manifest:
        """Set entries of a Secret or ConfigMap at this resourceVersion; raises Conflict."""
        body = {"metadata": {"resourceVersion": version}, "data": dict(data)}
        path, params = kind.path(key.namespace, key.name), {"fieldManager": names().field_manager}
        return await self._request("set_data", "PATCH", kind, path, body, content_type=MERGE_PATCH, params=params)

    async def request_token(self, account: Key, seconds: int) -> str:
        """Return a new token of a service account for this time, or as long as the server allows.

        Other tokens stay valid.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        path = SERVICE_ACCOUNT.path(account.namespace, account.name, "token")
        response = await self._request("request_token", "POST", SERVICE_ACCOUNT, path, body)
        token = self._answers.object(response.get("status") or {}, "request_token", "the status").get("token")
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
        """Delete the object with this uid. Return it if it is now terminating, or None if it is deleted.

        Raises NotFound if no object has this name, and Conflict if it has another uid or version.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, **({"resourceVersion": version} if version else {})},
            "propagationPolicy": propagation,
        }
        path = kind.path(key.namespace, key.name)
        response = await self._request("delete", "DELETE", kind, path, body)
        # The response is a Status, the old object if it is deleted, or the current one if it is terminating.
        if (response.get("apiVersion"), response.get("kind")) == ("v1", "Status"):
            return None
        remaining = check_response(response, kind, key, operation=f"delete {kind} {key.name}")
        return remaining if _is_terminating(remaining) else None

    async def _request_object(
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
        """Send a request about one object; raises ServerFault if the response is about another object."""
        path = kind.path(key.namespace, key.name, subresource)
        response = await self._request(verb, method, kind, path, body, content_type=content_type, params=params)
        return check_response(response, kind, key, operation=f"{verb} {kind} {key.name}")

    async def _request(
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
        """Send a request with a JSON body, and return the JSON object of the response."""
        operation = f"{verb} {kind} {path.rpartition('/')[2]}"
        payload = None if body is None else orjson.dumps(body)
        secret = payload is not None and (kind == SECRET or SETS_HEADERS in payload)
        request = Request(verb, str(kind), method, path, payload, content_type, params, secret=secret)
        response = await self._wire.ask(request, operation=operation)
        return self._answers.object(await self._wire.objects(response, operation=operation), operation)


@asynccontextmanager
async def connect(
    access: Access,
    *,
    on_call: OnCall = ignore_count,
    limits: ServerLimits | None = None,
    share: Share | None = None,
    opens: OpenChannel = open_channel,
    cluster: str = "",
) -> AsyncGenerator[Kube]:
    """Open a client of an API server and close it at the end.

    Raises KubeconfigError if its certificates are unusable.

    `limits` and `share` bound what the server may send, and its share of the event loop; `opens` opens the channel that
    carries requests; `cluster` is its name in traces.
    """
    async with open_wire(access, on_call, limits or ServerLimits(), share, opens=opens, cluster=cluster) as wire:
        yield Kube(wire)


def _dry_run_params(dry_run: bool) -> Mapping[str, str]:  # noqa: FBT001 - one word for one flag
    """Return the parameters of a dry run."""
    return {"dryRun": "All"} if dry_run else {}


def _require_version(manifest: Manifest) -> str:
    """Return the resourceVersion of a manifest; raises ValueError if it has none."""
    version = manifest["metadata"].get("resourceVersion")
    if not version:
        raise ValueError(f"{manifest['kind']} {key_of(manifest)} has no resourceVersion: it was not read from a server")
    return version


def _is_terminating(manifest: Manifest) -> bool:
    """True if the object of a delete's response still exists, because of finalizers or a grace period."""
    metadata = manifest["metadata"]
    namespace_finalizers = section(manifest, "spec").get("finalizers") if manifest["kind"] == "Namespace" else None
    return bool(metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds") or namespace_finalizers)
