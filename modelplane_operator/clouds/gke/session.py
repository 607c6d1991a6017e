"""Call Google: GKE by the async client of the SDK, other services by HTTP, with deadlines and without retries.

`Accounts` creates a Session for each account; `Gcp` and the lists make their calls by it. Errors become the
operator's own here (`errors`). When and what to repeat is left to `decide`.
"""

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
from modelplane_operator.clouds.gke.errors import of_http, translate_error

AT_ONCE = 16  # calls in parallel, of one account
MOST = 16 * MIB  # maximum bytes of a response
PAGES = 200  # maximum pages of a list, with some hundred items each
DEADLINE = 25.0  # seconds
SIGNING_IN = ThreadPoolExecutor(16, thread_name_prefix="google")
"""Threads that fetch tokens. The source of a token may not respond for long, and a thread cannot be cancelled."""
MIN_VALIDITY = 900.0  # seconds that a token should still be valid: the operator passes it on for ten minutes
LAST = 60.0  # seconds that a token must still be valid
RENEWAL_INTERVAL = 60.0  # seconds between attempts to get a token that is valid for longer
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""Scope of the operator's tokens. Its role limits what they permit."""
SDK_MISSING = "the operator was installed without the SDK of Google Cloud: install modelplane-operator[gke]"
HOSTS: Final[Mapping[str, str]] = {
    "container": "https://container.googleapis.com",
    "compute": "https://compute.googleapis.com/compute/v1",
    "file": "https://file.googleapis.com/v1",
    "serviceusage": "https://serviceusage.googleapis.com/v1",
}
"""Base URLs of the services."""
IMPERSONATED = "impersonated_service_account"
"""Type of credentials that act as another service account."""
_GOOGLE_URL = re.compile(r"https://[-a-z0-9.]+\.googleapis\.com/")
"""Addresses of Google that may receive a token of another identity provider."""
_TYPES = frozenset({"authorized_user", "external_account", IMPERSONATED, "service_account"})
"""Types of credentials files that are accepted."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An identity on Google Cloud: a credentials file, or without one the identity of the operator's pod."""

    text: str = field(default="", repr=False)
    """Content of the file; empty for the pod's identity."""

    @property
    def content(self) -> Mapping[str, Any]:
        """Return the parsed file; empty for the pod's identity."""
        return json.loads(self.text) if self.text else {}


def read_credentials(text: str) -> Credentials:
    """Read a credentials file of Google. Raise Unauthorized, with a message that quotes nothing."""
    try:
        kind = json.loads(text).get("type")
    except (ValueError, AttributeError, RecursionError):
        kind = None
    if kind not in _TYPES:
        raise Unauthorized(f"the credentials are no JSON of Google's with a type among {', '.join(sorted(_TYPES))}")
    return Credentials(text)


class Session:
    """An identity in one region of a project."""

    def __init__(
        self,
        region: str,
        project: str = "",
        credentials: Credentials | None = None,
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        """Create a session. `project` defaults to the credentials' project; `hosts` overrides Google's addresses.

        Raise KubeconfigError without the SDK.
        """
        self.region = region
        self._project = project
        self._source_credentials = credentials or Credentials()
        self._hosts = {**HOSTS, **(hosts or {})}
        _require_sdk()
        self._credentials: Any = None
        self._renewed_at = 0.0  # time of the last token request, by the monotonic clock
        self._lock = asyncio.Lock()
        self._free = asyncio.Semaphore(AT_ONCE)
        self._container: Any = None
        self._http: aiohttp.ClientSession | None = None

    @property
    def project(self) -> str:
        """Return the project if it is known, otherwise an empty string."""
        return self._project

    async def find_project(self) -> str:
        """Return the project, queried if necessary.

        Raise Unauthorized when neither the spec nor the credentials name one.
        """
        if not self._project:
            await self.fetch_token()
        if not self._project:
            raise Unauthorized("the credentials are of no project: name one in `project`")
        return self._project

    async def fetch_token(self) -> str:
        """Return a token that is valid for a while. Raise ApiError."""
        async with self._lock:
            if self._is_due():
                try:
                    async with asyncio.timeout(DEADLINE):
                        await asyncio.get_running_loop().run_in_executor(SIGNING_IN, self._renew)
                except TimeoutError as error:
                    raise Unreachable("a token of Google: no answer") from error
                self._renewed_at = time.monotonic()
            return str(self._credentials.token)

    def _is_due(self) -> bool:
        """True if the token must be renewed.

        Some sources return the same token until shortly before its end, so they are queried once a minute at most.
        """
        if self._credentials is None or _seconds_valid(self._credentials) < LAST:
            return True
        return (
            _seconds_valid(self._credentials) < MIN_VALIDITY and time.monotonic() - self._renewed_at > RENEWAL_INTERVAL
        )

    async def cluster_token(self, cluster: str) -> str:
        """Return a token, which API servers of clusters accept, too."""
        return await self.fetch_token()

    async def gke(self, operation: str, **request: Any) -> Any:
        """Make a request to GKE with the SDK's client. Raise ApiError."""
        description = f"Google's container {operation}"
        token, client = await self.fetch_token(), await self._client()
        exceptions = sdk("google.api_core.exceptions")
        method = f"google.container.v1.ClusterManager/{operation}"
        try:
            with call(method, lambda: {"rpc.system.name": "grpc", "rpc.method": method}):
                async with self._free:
                    return await getattr(client, operation)(
                        request=request, retry=None, timeout=DEADLINE, metadata=[("authorization", f"Bearer {token}")]
                    )
        except exceptions.RetryError as error:
            raise Unreachable(f"{description}: no answer") from error
        except exceptions.GoogleAPICallError as error:
            raise _translate_grpc(description, error) from error

    async def http(
        self,
        method: str,
        service: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """Make a request to another service.

        `path` is within the project; empty for the project itself. Raise ApiError.
        """
        description = f"Google's {service} {method} {path}"
        headers = {"Authorization": f"Bearer {await self.fetch_token()}"}
        url = f"{self._hosts[service]}/projects/{await self.find_project()}/{path}".rstrip("/")
        try:
            with call(f"{method} {service}", lambda: by_http(method, URL(url))) as span:
                async with (
                    self._free,
                    self._client_session().request(
                        # A redirect could send the token to another host.
                        method,
                        url,
                        json=body,
                        params=query,
                        headers=headers,
                        allow_redirects=False,
                    ) as response,
                ):
                    span.tell("http.response.status_code", response.status)
                    text = await _read_body(response.content)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{description}: {type(error).__name__}: no answer") from error
        if text is None:
            raise ServerFault(f"{description}: an answer of more than {MOST // MIB} MiB")
        try:
            parsed = json.loads(text or b"{}")
        except (ValueError, RecursionError):
            parsed = None
        answer = cast(Mapping[str, Any], parsed) if isinstance(parsed, dict) else None
        if answer is None or response.status >= 300:
            raise of_http(description, 500 if response.status < 300 else response.status, answer or {})
        return answer

    async def pages(self, service: str, path: str, items: str, query: Mapping[str, str] | None = None) -> list[Any]:
        """Return the items of all pages of a list. Raise ApiError."""
        collected: list[Any] = []
        parameters = dict(query or {})
        for _ in range(PAGES):
            page = await self.http("GET", service, path, query=parameters)
            collected += _flatten(page.get(items) or [])
            if not page.get("nextPageToken"):
                return collected
            parameters["pageToken"] = str(page["nextPageToken"])
        raise ServerFault(f"Google's {service} GET {path}: more than {PAGES} pages")

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.close()
        if self._container is not None:
            await self._container.transport.close()

    async def _client(self) -> Any:
        """Return the client of GKE.

        Loading takes seconds, and the client is bound to the event loop of its creation.
        """
        async with self._lock:
            if self._container is None:
                module = await asyncio.to_thread(sdk, "google.cloud.container_v1.services.cluster_manager")
                channel = _open_channel(self._hosts["container"])
                transport = sdk(f"{module.__name__}.transports").ClusterManagerGrpcAsyncIOTransport(channel=channel)
                self._container = module.ClusterManagerAsyncClient(transport=transport)
            return self._container

    def _client_session(self) -> aiohttp.ClientSession:
        """Return the HTTP client, created on first use within the event loop."""
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(DEADLINE), trust_env=True)
        return self._http

    def _renew(self) -> None:
        """Refresh the token, in a thread. Raise Unreachable or Unauthorized."""
        exceptions = sdk("google.auth.exceptions")
        try:
            if self._credentials is None:
                self._credentials, project = self._sign_in()
                self._project = self._project or project
            request = sdk("google.auth.transport.requests").Request()
            self._credentials.refresh(partial(request, timeout=DEADLINE))  # the default is two minutes
        except exceptions.TransportError as error:
            raise Unreachable("a token of Google: no answer") from error
        except exceptions.GoogleAuthError as error:
            # Without the response that the SDK attaches.
            message = str(error.args[0]) if error.args else type(error).__name__
            raise Unauthorized(f"a token of Google: {message}") from error
        except ValueError:  # its message may quote the key
            raise Unauthorized("the credentials cannot be used: they lack something, or it cannot be read") from None

    def _sign_in(self) -> tuple[Any, str]:
        """Return the SDK's credentials, and their project."""
        source, scopes = self._source_credentials.content, [SCOPE]
        if source:
            return _load(source), str(source.get("project_id") or source.get("quota_project_id") or "")
        default, project = sdk("google.auth").default(scopes=scopes)
        return default, project or ""


def _open_channel(url: str) -> Any:
    """Return a gRPC channel. gRPC takes a host without a scheme, and uses port 443 by default."""
    scheme, _, host = url.partition("://")
    aio = sdk("grpc.aio")
    if scheme == "http":
        return aio.insecure_channel(host)
    return aio.secure_channel(host, sdk("grpc").ssl_channel_credentials())


def _load(content: Mapping[str, Any]) -> Any:
    """Load credentials by their type. Raise ValueError for unusable ones."""
    info, scopes = dict(content), [SCOPE]
    match content["type"]:
        case "service_account":
            return sdk("google.oauth2.service_account").Credentials.from_service_account_info(info, scopes=scopes)
        case "authorized_user":
            return sdk("google.oauth2.credentials").Credentials.from_authorized_user_info(info, scopes=scopes)
        case (
            "external_account"
        ):  # from a file or a URL only; an executable source would run with the operator's permissions
            if not _GOOGLE_URL.match(str(content.get("token_url"))):
                raise ValueError("a token of the operator's own would be sent to somebody else")
            return sdk("google.auth.identity_pool").Credentials.from_info(info, scopes=scopes)
        case _:
            source = content.get("source_credentials")
            if source is not None and source.get("type") not in _TYPES - {IMPERSONATED}:
                raise ValueError("the credentials to impersonate with are of no type that is known")
            source_identity = _load(source) if source else sdk("google.auth").default(scopes=scopes)[0]
            match = re.search(r"serviceAccounts/([^/:]+)", content.get("service_account_impersonation_url", ""))
            if match is None:
                raise ValueError("it names no service account to impersonate")
            return sdk("google.auth.impersonated_credentials").Credentials(source_identity, match[1], scopes)


def _seconds_valid(credentials: Any) -> float:
    """Return the seconds that a token is still valid. `expiry` is in UTC without saying so."""
    if not credentials.token or credentials.expiry is None:
        return MIN_VALIDITY if credentials.token else 0.0
    return (credentials.expiry.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()


async def _read_body(content: aiohttp.StreamReader) -> bytes | None:
    """Return the body of a response; None if it is too large."""
    text = bytearray()
    async for chunk in content.iter_any():
        text += chunk
        if len(text) > MOST:
            return None
    return bytes(text)


def _translate_grpc(description: str, error: Any) -> ApiError:
    """Translate an error of gRPC."""
    status = error.grpc_status_code.name if error.grpc_status_code is not None else ""
    reasons = [error.reason] if error.reason else []
    return translate_error(description, str(error.message), status=status, code=int(error.code or 0), reasons=reasons)


def _flatten(items: Any) -> list[Any]:
    """Return the items of a page.

    Aggregated lists are grouped by zone and region, and nested under the collection's name.
    """
    if not isinstance(items, dict):
        return list(items)
    scopes = cast(Mapping[str, Mapping[str, Any]], items).values()
    lists = (cast(list[Any], value) for scope in scopes for value in scope.values() if isinstance(value, list))
    return [item for group in lists for item in group]


def _require_sdk() -> None:
    """Raise KubeconfigError if the SDK is not installed, without loading it."""
    try:
        module = find_spec("google.cloud.container_v1")
    except ImportError:
        module = None
    if module is None:
        raise KubeconfigError(SDK_MISSING)


def sdk(part: str) -> Any:
    """Import a module of the SDK, which is optional and untyped. Raise KubeconfigError without it."""
    try:
        return import_module(part)
    except ImportError:
        raise KubeconfigError(SDK_MISSING) from None
