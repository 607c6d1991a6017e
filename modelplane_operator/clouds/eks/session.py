"""Call AWS: boto3 in a thread pool of its own, with limits on parallel calls, deadlines, and no retries by the SDK.

`Accounts` creates a Session for each account; `Aws` and the lists make their calls by it. Errors of the SDK become
the operator's own here (`errors`). When and what to repeat is left to `decide`.
"""

from __future__ import annotations

import asyncio
import base64
import configparser
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, TypeVar, cast

from kubeloop.errors import Invalid, KubeconfigError, TooMany, Unauthorized, Unreachable
from kubeloop.tracing import Span, call
from modelplane_operator.clouds.eks.errors import translate_error

T = TypeVar("T")

AT_ONCE, EACH = 32, 8
"""Parallel calls of all accounts together, and of one account in one region, which may not respond for hours."""
CONNECT, READ = 5, 25  # seconds
QUEUED = 20.0  # maximum seconds to wait for a thread; an announced call must not be made much later
SDK_MISSING = "the operator was installed without the SDK of AWS: install modelplane-operator[eks]"
_WORKERS = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="aws")


@dataclass(frozen=True, slots=True)
class Credentials:
    """An identity on AWS. Without a key and a role, the identity of the operator's pod or machine."""

    key: str = field(default="", repr=False)
    """Access key id."""
    secret: str = field(default="", repr=False)
    """Secret access key."""
    token: str = field(default="", repr=False)
    """Session token of temporary keys."""
    role: str = ""
    """ARN of a role to assume."""
    external_id: str = field(default="", repr=False)
    """External id for assuming the role."""


def read_credentials(text: str) -> Credentials:
    """Read the profile `default` of an AWS credentials file. Raise Unauthorized, with a message that quotes nothing."""
    parser = configparser.ConfigParser(interpolation=None, default_section="\0")
    try:
        parser.read_string(text)
        profile = parser["default"]
    except (configparser.Error, KeyError):
        raise Unauthorized("the credentials are no file of AWS with a profile [default]") from None
    credentials = Credentials(
        profile.get("aws_access_key_id", ""),
        profile.get("aws_secret_access_key", ""),
        profile.get("aws_session_token", ""),
        profile.get("role_arn", ""),
        profile.get("external_id", ""),
    )
    if not (credentials.key and credentials.secret) and not credentials.role:
        raise Unauthorized("the profile [default] has neither aws_access_key_id and aws_secret_access_key nor role_arn")
    return credentials


class Session:
    """An account in one region. Clients are cached, since each takes a quarter of a second to create."""

    def __init__(self, region: str, credentials: Credentials | None = None, endpoint: str | None = None) -> None:
        """Create a session.

        `endpoint` replaces the address of all services, for tests. Raise KubeconfigError without the SDK.
        """
        self.region = region
        self.principal = ""  # the operator's ARN, once it was queried
        self._endpoint = endpoint
        self._credentials = credentials or Credentials()
        self._clients: dict[str, Any] = {}
        self._session: Any = None
        self._lock = Lock()
        self._free = asyncio.Semaphore(EACH)
        self._boto = sdk("boto3")

    async def call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make one request. Raise ApiError."""
        with self._span(service, operation):
            return await self._in_thread(self._call, service, operation, dict(parameters))

    async def list(self, service: str, operation: str, items: str, parameters: Mapping[str, Any]) -> list[Any]:
        """Return the items of all pages of a list. Raise ApiError."""
        with self._span(service, operation):
            return await self._in_thread(self._list, service, operation, items, dict(parameters))

    async def cluster_token(self, cluster: str) -> str:
        """Return a token for the API server of a cluster, valid for up to fifteen minutes. Raise ApiError."""
        return await self._in_thread(self._token, cluster)

    def _span(self, service: str, operation: str) -> AbstractContextManager[Span]:
        """Return a trace span of a call."""
        method = f"{service}/{operation}"
        attributes = {"rpc.system.name": "aws-api", "rpc.method": method, "cloud.region": self.region}
        return call(method, lambda: attributes)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run a function in the thread pool. Raise TooMany if no thread was free within `QUEUED`."""
        queued_at = time.monotonic()

        def run() -> T:
            """Run the function, unless it has waited for too long."""
            if time.monotonic() - queued_at > QUEUED:
                raise TooMany(f"nothing was sent: no thread was free for {QUEUED:g} s")
            return work(*arguments)

        # The limit per account comes first, so that an account that does not respond cannot occupy all threads.
        async with self._free:
            return await asyncio.get_running_loop().run_in_executor(_WORKERS, run)

    def _call(self, service: str, operation: str, parameters: dict[str, Any]) -> Mapping[str, Any]:
        """Make a request, in a thread. Raise the operator's own errors."""
        try:
            return cast(Mapping[str, Any], getattr(self._client(service), operation)(**parameters))
        except Exception as error:
            raise self._translate(error, f"{service} {operation}") from error

    def _list(self, service: str, operation: str, items: str, parameters: dict[str, Any]) -> list[Any]:
        """Return the items of all pages, in a thread."""
        try:
            client = self._client(service)
            if not client.can_paginate(operation):
                return list(getattr(client, operation)(**parameters)[items])
            pages = client.get_paginator(operation).paginate(**parameters)
            return [item for page in pages for item in page[items]]
        except Exception as error:
            raise self._translate(error, f"{service} {operation}") from error

    def _token(self, cluster: str) -> str:
        """Return a presigned GetCallerIdentity request, which EKS accepts as a token."""
        try:
            client = self._client("sts")
            with self._lock:
                credentials = self._boto_session().get_credentials()
            meta = client.meta
            domain = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
            signer = sdk("botocore.signers").RequestSigner(
                meta.service_model.service_id, self.region, "sts", "v4", credentials, meta.events
            )
            request = {
                "method": "GET",
                "url": f"https://sts.{self.region}.{domain}/?Action=GetCallerIdentity&Version=2011-06-15",
                "body": {},
                "headers": {"x-k8s-aws-id": cluster},
                "context": {},
            }
            url = signer.generate_presigned_url(request, region_name=self.region, expires_in=60, operation_name="")
        except Exception as error:
            raise self._translate(error, "a token for a cluster") from error
        return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")

    def _client(self, service: str) -> Any:
        """Return the client of a service, created on first use. boto3's session is not thread-safe, so a lock
        protects it.
        """
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._boto_session().client(
                    service, config=self._config(), endpoint_url=self._endpoint
                )
            return self._clients[service]

    def _config(self) -> Any:
        """Return botocore's configuration: deadlines, and no retries."""
        return sdk("botocore.config").Config(
            connect_timeout=CONNECT,
            read_timeout=READ,
            retries={"total_max_attempts": 1},  # the planner decides what to repeat, from a newer observation
            max_pool_connections=EACH,
            user_agent_extra="modelplane",
        )

    def _boto_session(self) -> Any:
        """Return boto3's own session, created on first use. The caller holds the lock."""
        if self._session is None:
            identity, botocore = self._credentials, _botocore_session()
            if identity.key:
                botocore.set_credentials(identity.key, identity.secret, identity.token or None)
            session = self._boto.Session(region_name=self.region, botocore_session=botocore)
            self._session = self._assume_role(session) if identity.role else session
        return self._session

    def _assume_role(self, session: Any) -> Any:
        """Return a session that assumes the role and refreshes its keys before they expire."""
        module = sdk("botocore.credentials")
        identity = self._credentials
        extra = {
            "RoleSessionName": "modelplane",
            **({"ExternalId": identity.external_id} if identity.external_id else {}),
        }

        def client(service: str, **options: Any) -> Any:
            return session.client(service, **{**options, "config": self._config(), "endpoint_url": self._endpoint})

        fetcher = module.AssumeRoleCredentialFetcher(client, session.get_credentials(), identity.role, extra_args=extra)
        assumed = _botocore_session()
        role = _Role(module.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role"))
        assumed.register_component("credential_provider", module.CredentialResolver([role]))
        return self._boto.Session(region_name=self.region, botocore_session=assumed)

    def _translate(self, error: Exception, description: str) -> Exception:
        """Translate an exception of the SDK. Unknown exceptions are returned unchanged."""
        kinds = sdk("botocore.exceptions")
        if isinstance(error, kinds.ClientError):
            return translate_error(cast(Any, error).response, description)
        if isinstance(error, kinds.NoCredentialsError | kinds.PartialCredentialsError | kinds.CredentialRetrievalError):
            remedy = "put them into the Secret that its credentials name, or give the operator's pod an identity on AWS"
            return Unauthorized(f"{description}: there are no credentials ({error}): {remedy}")
        if isinstance(error, kinds.ParamValidationError):
            return Invalid(f"{description}: {error}")
        if isinstance(error, kinds.BotoCoreError | OSError):
            return Unreachable(f"{description}: {type(error).__name__}: no answer")
        return error


@dataclass(frozen=True, slots=True)
class _Role:
    """A credential provider for botocore."""

    credentials: Any
    """Credentials that botocore refreshes by itself."""
    METHOD = "assume-role"
    CANONICAL_NAME = None

    def load(self) -> Any:
        """Return the credentials, as botocore calls a provider."""
        return self.credentials


def _botocore_session() -> Any:
    """Create a session of botocore. All sessions share its parsed service descriptions, which take 30 MB."""
    session = sdk("botocore.session").get_session()
    session.register_component("data_loader", _loader())
    return session


@cache
def _loader() -> Any:
    """Return the loader of service descriptions, which caches what it has parsed."""
    return sdk("botocore.session").get_session().get_component("data_loader")


def sdk(part: str) -> Any:
    """Import a module of the SDK, which is optional and untyped. Raise KubeconfigError without it."""
    try:
        return import_module(part)
    except ImportError:
        raise KubeconfigError(SDK_MISSING) from None
