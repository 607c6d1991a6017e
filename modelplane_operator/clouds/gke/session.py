"""Calls to Google: GKE by the async client of its SDK, all else over HTTP, each with a deadline, none repeated."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, cast

import aiohttp
from yarl import URL

from kubeloop.client.limits import MIB
from kubeloop.errors import ApiError, KubeconfigError, ServerFault, Unauthorized, Unreachable
from kubeloop.tracing import by_http, call
from modelplane_operator.clouds.gke.errors import of_http, translated

AT_ONCE = 16  # of one account
MOST = 16 * MIB  # bytes of one answer
PAGES = 200  # of one list, of some hundred resources each
DEADLINE = 25.0  # seconds
SIGNING_IN = ThreadPoolExecutor(16, thread_name_prefix="google")
"""For tokens alone: where one comes from may not answer for long, and a thread cannot be ended."""
LEFT = 900.0  # seconds that a token should last: the operator hands it on for ten minutes
LAST = 60.0  # seconds that it must last
RENEWAL_INTERVAL = 60.0  # seconds between two questions for one that lasts longer
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
LACKING = "the operator was installed without the SDK of Google Cloud: install modelplane-operator[gke]"
HOSTS: Final[Mapping[str, str]] = {
    "container": "https://container.googleapis.com",
    "compute": "https://compute.googleapis.com/compute/v1",
    "file": "https://file.googleapis.com/v1",
    "serviceusage": "https://serviceusage.googleapis.com/v1",
}
IMPERSONATED = "impersonated_service_account"
_GOOGLES = re.compile(r"https://[-a-z0-9.]+\.googleapis\.com/")
_TYPES = frozenset({"authorized_user", "external_account", IMPERSONATED, "service_account"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """Whom Google takes us for: what a file of credentials says; without one, whoever the operator's pod is."""

    text: str = field(default="", repr=False)

    @property
    def said(self) -> Mapping[str, Any]:
        return json.loads(self.text) if self.text else {}


def read_credentials(text: str) -> Credentials:
    """A file of credentials as Google's tools have it; raises Unauthorized, without what it says."""
    try:
        kind = json.loads(text).get("type")
    except (ValueError, AttributeError, RecursionError):
        kind = None
    if kind not in _TYPES:
        raise Unauthorized(f"the credentials are no JSON of Google's with a type among {', '.join(sorted(_TYPES))}")
    return Credentials(text)


class Session:
    """One identity in one region of one project."""

    def __init__(
        self,
        region: str,
        project: str = "",
        credentials: Credentials | None = None,
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        """`project`: without one, that of the credentials. `hosts`: where Google is. Raises KubeconfigError without
        the SDK."""
        self.region = region
        self._project = project
        self._given = credentials or Credentials()
        self._hosts = {**HOSTS, **(hosts or {})}
        _installed()
        self._credentials: Any = None
        self._asked = 0.0  # when a token was asked for, by a clock that only goes on
        self._lock = asyncio.Lock()
        self._free = asyncio.Semaphore(AT_ONCE)
        self._container: Any = None
        self._http: aiohttp.ClientSession | None = None

    @property
    def project(self) -> str:
        """The one that was named, or was found out."""
        return self._project

    async def found_project(self) -> str:
        """The project to work in; raises Unauthorized when nobody names one."""
        if not self._project:
            await self.token()
        if not self._project:
            raise Unauthorized("the credentials are of no project: name one in `project`")
        return self._project

    async def token(self) -> str:
        """One that lasts for a while. Raises ApiError."""
        async with self._lock:
            if self._is_due():
                try:
                    async with asyncio.timeout(DEADLINE):
                        await asyncio.get_running_loop().run_in_executor(SIGNING_IN, self._renew)
                except TimeoutError as error:
                    raise Unreachable("a token of Google: no answer") from error
                self._asked = time.monotonic()
            return str(self._credentials.token)

    def _is_due(self) -> bool:
        """Some give the same token until it is about to end: they are not asked for another one with every call."""
        if self._credentials is None or _left(self._credentials) < LAST:
            return True
        return _left(self._credentials) < LEFT and time.monotonic() - self._asked > RENEWAL_INTERVAL

    async def cluster_token(self, cluster: str) -> str:
        """What the API servers of clusters take, too."""
        return await self.token()

    async def gke(self, operation: str, **request: Any) -> Any:
        """One request to GKE, by the SDK's own client. Raises ApiError."""
        asked = f"Google's container {operation}"
        token, client = await self.token(), await self._client()
        kinds = sdk("google.api_core.exceptions")
        method = f"google.container.v1.ClusterManager/{operation}"
        try:
            with call(method, lambda: {"rpc.system.name": "grpc", "rpc.method": method}):
                async with self._free:
                    return await getattr(client, operation)(
                        request=request, retry=None, timeout=DEADLINE, metadata=[("authorization", f"Bearer {token}")]
                    )
        except kinds.RetryError as error:
            raise Unreachable(f"{asked}: no answer") from error
        except kinds.GoogleAPICallError as error:
            raise _of_grpc(asked, error) from error

    async def http(
        self,
        method: str,
        service: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """One request to another service. `path`: within the project; empty for itself. Raises ApiError."""
        asked = f"Google's {service} {method} {path}"
        headers = {"Authorization": f"Bearer {await self.token()}"}
        url = f"{self._hosts[service]}/projects/{await self.found_project()}/{path}".rstrip("/")
        try:
            with call(f"{method} {service}", lambda: by_http(method, URL(url))) as span:
                async with (
                    self._free,
                    self._client_session().request(
                        method, url, json=body, params=query, headers=headers, allow_redirects=False
                    ) as answer,
                ):
                    span.tell("http.response.status_code", answer.status)
                    text = await _whole(answer.content)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{asked}: {type(error).__name__}: no answer") from error
        if text is None:
            raise ServerFault(f"{asked}: an answer of more than {MOST // MIB} MiB")
        said = _object(text)
        if said is None or answer.status >= 300:
            raise of_http(asked, 500 if answer.status < 300 else answer.status, said or {})
        return said

    async def pages(self, service: str, path: str, items: str, query: Mapping[str, str] | None = None) -> list[Any]:
        """All pages of a list. Raises ApiError."""
        found: list[Any] = []
        asked = dict(query or {})
        for _ in range(PAGES):
            page = await self.http("GET", service, path, query=asked)
            found += _listed(page.get(items) or [])
            if not page.get("nextPageToken"):
                return found
            asked["pageToken"] = str(page["nextPageToken"])
        raise ServerFault(f"Google's {service} GET {path}: more than {PAGES} pages")

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
        if self._container is not None:
            await self._container.transport.close()

    async def _client(self) -> Any:
        """To load it takes seconds, and it belongs to the loop that it is made in."""
        async with self._lock:
            if self._container is None:
                module = await asyncio.to_thread(sdk, "google.cloud.container_v1.services.cluster_manager")
                channel = _channel(self._hosts["container"])
                transport = sdk(f"{module.__name__}.transports").ClusterManagerGrpcAsyncIOTransport(channel=channel)
                self._container = module.ClusterManagerAsyncClient(transport=transport)
            return self._container

    def _client_session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(DEADLINE), trust_env=True)
        return self._http

    def _renew(self) -> None:
        kinds = sdk("google.auth.exceptions")
        try:
            if self._credentials is None:
                self._credentials, found = self._signed_in()
                self._project = self._project or found
            request = sdk("google.auth.transport.requests").Request()
            self._credentials.refresh(partial(request, timeout=DEADLINE))  # its own is two minutes
        except kinds.TransportError as error:
            raise Unreachable("a token of Google: no answer") from error
        except kinds.GoogleAuthError as error:
            raise Unauthorized(f"a token of Google: {_first(error)}") from error
        except ValueError:  # its own text may quote the key
            raise Unauthorized("the credentials cannot be used: they lack something, or it cannot be read") from None

    def _signed_in(self) -> tuple[Any, str]:
        """Google's own object of the credentials, and the project that they are of."""
        said, scopes = self._given.said, [SCOPE]
        if said:
            return _loaded(said), str(said.get("project_id") or said.get("quota_project_id") or "")
        own, project = sdk("google.auth").default(scopes=scopes)
        return own, project or ""


def _channel(url: str) -> Any:
    """gRPC's own connection: it names no scheme, and 443 is where it is called when nothing else is said."""
    scheme, _, host = url.partition("://")
    aio = sdk("grpc.aio")
    if scheme == "http":
        return aio.insecure_channel(host)
    return aio.secure_channel(host, sdk("grpc").ssl_channel_credentials())


def _loaded(said: Mapping[str, Any]) -> Any:
    """By the loader of its type alone; raises ValueError."""
    info, scopes = dict(said), [SCOPE]
    match said["type"]:
        case "service_account":
            return sdk("google.oauth2.service_account").Credentials.from_service_account_info(info, scopes=scopes)
        case "authorized_user":
            return sdk("google.oauth2.credentials").Credentials.from_authorized_user_info(info, scopes=scopes)
        case "external_account":  # of a token in a file or at a URL; a program would run with all that we may do
            if not _GOOGLES.match(str(said.get("token_url"))):
                raise ValueError("a token of the operator's own would be sent to somebody else")
            return sdk("google.auth.identity_pool").Credentials.from_info(info, scopes=scopes)
        case _:
            source = said.get("source_credentials")
            if source is not None and source.get("type") not in _TYPES - {IMPERSONATED}:
                raise ValueError("the credentials to impersonate with are of no type that is known")
            own = _loaded(source) if source else sdk("google.auth").default(scopes=scopes)[0]
            found = re.search(r"serviceAccounts/([^/:]+)", said.get("service_account_impersonation_url", ""))
            if found is None:
                raise ValueError("it names no service account to impersonate")
            return sdk("google.auth.impersonated_credentials").Credentials(own, found[1], scopes)


def _left(credentials: Any) -> float:
    """The seconds that a token still lasts; `expiry` is in UTC, and does not say so."""
    if not credentials.token or credentials.expiry is None:
        return LEFT if credentials.token else 0.0
    return (credentials.expiry.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()


async def _whole(content: aiohttp.StreamReader) -> bytes | None:
    """All of an answer; None when it is larger than any should be."""
    text = bytearray()
    async for part in content.iter_any():
        text += part
        if len(text) > MOST:
            return None
    return bytes(text)


def _first(error: Exception) -> str:
    """The words of an error, without the answer that comes with them."""
    return str(error.args[0]) if error.args else type(error).__name__


def _of_grpc(asked: str, error: Any) -> ApiError:
    status = error.grpc_status_code.name if error.grpc_status_code is not None else ""
    reasons = [error.reason] if error.reason else []
    return translated(asked, str(error.message), status=status, code=int(error.code or 0), reasons=reasons)


def _listed(items: Any) -> list[Any]:
    """What is listed for all zones and regions comes by them, each in a list that is named for what it holds."""
    if not isinstance(items, dict):
        return list(items)
    parts = cast(Mapping[str, Mapping[str, Any]], items).values()
    lists = (cast(list[Any], value) for part in parts for value in part.values() if isinstance(value, list))
    return [one for found in lists for one in found]


def _object(text: bytes) -> Mapping[str, Any] | None:
    """What an answer says; None when it is no object."""
    try:
        said = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return None
    return cast(Mapping[str, Any], said) if isinstance(said, dict) else None


def _installed() -> None:
    """Raises KubeconfigError when the SDK is not; to load it is for later."""
    try:
        found = find_spec("google.cloud.container_v1")
    except ImportError:
        found = None
    if found is None:
        raise KubeconfigError(LACKING)


def sdk(part: str) -> Any:
    """A module of the SDK, which has no types that we hold ourselves to and is an extra; raises KubeconfigError."""
    try:
        return import_module(part)
    except ImportError:
        raise KubeconfigError(LACKING) from None
