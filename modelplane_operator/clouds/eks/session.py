"""Calls to AWS: boto3 in threads of our own, few at once, each with a deadline, none repeated by the SDK."""

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
from modelplane_operator.clouds.eks.errors import translated

T = TypeVar("T")

AT_ONCE, EACH = 32, 8  # of all accounts together, and of one account in one region, which may not answer for hours
CONNECT, READ = 5, 25  # seconds
QUEUED = 20.0  # seconds for a thread to be free; what was announced must not be called for much later
LACKING = "the operator was installed without the SDK of AWS: install modelplane-operator[eks]"
_WORKERS = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="aws")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Whom AWS takes us for; without a key, whoever the operator's pod or machine is."""

    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    role: str = ""
    """A role to assume."""
    external_id: str = field(default="", repr=False)


def read_credentials(text: str) -> Credentials:
    """The profile `default` of a file as AWS's tools have it; raises Unauthorized, without what it says."""
    parser = configparser.ConfigParser(interpolation=None, default_section="\0")
    try:
        parser.read_string(text)
        found = parser["default"]
    except (configparser.Error, KeyError):
        raise Unauthorized("the credentials are no file of AWS with a profile [default]") from None
    read = Credentials(
        found.get("aws_access_key_id", ""),
        found.get("aws_secret_access_key", ""),
        found.get("aws_session_token", ""),
        found.get("role_arn", ""),
        found.get("external_id", ""),
    )
    if not (read.key and read.secret) and not read.role:
        raise Unauthorized("the profile [default] has neither aws_access_key_id and aws_secret_access_key nor role_arn")
    return read


class Session:
    """One account in one region. Clients are made once, which takes a quarter of a second each."""

    def __init__(self, region: str, credentials: Credentials | None = None, endpoint: str | None = None) -> None:
        """`endpoint`: where all services are, in tests. Raises KubeconfigError without the SDK."""
        self.region = region
        self.principal = ""  # whom AWS says that we are, once somebody has asked
        self._endpoint = endpoint
        self._credentials = credentials or Credentials()
        self._clients: dict[str, Any] = {}
        self._session: Any = None
        self._lock = Lock()
        self._free = asyncio.Semaphore(EACH)
        self._boto = sdk("boto3")

    async def call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """One request. Raises ApiError."""
        with self._span(service, operation):
            return await self._in_thread(self._call, service, operation, dict(parameters))

    async def list(self, service: str, operation: str, items: str, parameters: Mapping[str, Any]) -> list[Any]:
        """All pages of a list. Raises ApiError."""
        with self._span(service, operation):
            return await self._in_thread(self._list, service, operation, items, dict(parameters))

    async def cluster_token(self, cluster: str) -> str:
        """What the API server of a cluster takes for up to a quarter of an hour. Raises ApiError."""
        return await self._in_thread(self._token, cluster)

    def _span(self, service: str, operation: str) -> AbstractContextManager[Span]:
        method = f"{service}/{operation}"
        told = {"rpc.system.name": "aws-api", "rpc.method": method, "cloud.region": self.region}
        return call(method, lambda: told)

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        asked = time.monotonic()

        def run() -> T:
            if time.monotonic() - asked > QUEUED:
                raise TooMany(f"nothing was sent: no thread was free for {QUEUED:g} s")
            return work(*given)

        async with self._free:
            return await asyncio.get_running_loop().run_in_executor(_WORKERS, run)

    def _call(self, service: str, operation: str, parameters: dict[str, Any]) -> Mapping[str, Any]:
        try:
            return cast(Mapping[str, Any], getattr(self._client(service), operation)(**parameters))
        except Exception as error:
            raise self._ours(error, f"{service} {operation}") from error

    def _list(self, service: str, operation: str, items: str, parameters: dict[str, Any]) -> list[Any]:
        try:
            client = self._client(service)
            if not client.can_paginate(operation):
                return list(getattr(client, operation)(**parameters)[items])
            pages = client.get_paginator(operation).paginate(**parameters)
            return [one for page in pages for one in page[items]]
        except Exception as error:
            raise self._ours(error, f"{service} {operation}") from error

    def _token(self, cluster: str) -> str:
        try:
            client = self._client("sts")
            with self._lock:
                who = self._signed_in().get_credentials()
            of = client.meta
            signer = sdk("botocore.signers").RequestSigner(
                of.service_model.service_id, self.region, "sts", "v4", who, of.events
            )
            request = {
                "method": "GET",
                "url": f"https://sts.{self.region}.{self._domain()}/?Action=GetCallerIdentity&Version=2011-06-15",
                "body": {},
                "headers": {"x-k8s-aws-id": cluster},
                "context": {},
            }
            url = signer.generate_presigned_url(request, region_name=self.region, expires_in=60, operation_name="")
        except Exception as error:
            raise self._ours(error, "a token for a cluster") from error
        return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")

    def _domain(self) -> str:
        return "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"

    def _client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._signed_in().client(
                    service, config=self._config(), endpoint_url=self._endpoint
                )
            return self._clients[service]

    def _config(self) -> Any:
        return sdk("botocore.config").Config(
            connect_timeout=CONNECT,
            read_timeout=READ,
            retries={"total_max_attempts": 1},  # what is repeated, we decide: from what is seen by then
            max_pool_connections=EACH,
            user_agent_extra="modelplane",
        )

    def _signed_in(self) -> Any:
        """boto3's own session; called under the lock."""
        if self._session is None:
            who, own = self._credentials, _botocore_session()
            if who.key:
                own.set_credentials(who.key, who.secret, who.token or None)
            session = self._boto.Session(region_name=self.region, botocore_session=own)
            self._session = self._assuming(session) if who.role else session
        return self._session

    def _assuming(self, session: Any) -> Any:
        """A session as another role, by keys that are fetched anew before they end."""
        parts = sdk("botocore.credentials")
        who = self._credentials
        extra = {"RoleSessionName": "modelplane", **({"ExternalId": who.external_id} if who.external_id else {})}

        def client(service: str, **given: Any) -> Any:
            return session.client(service, **{**given, "config": self._config(), "endpoint_url": self._endpoint})

        fetcher = parts.AssumeRoleCredentialFetcher(client, session.get_credentials(), who.role, extra_args=extra)
        assumed = _botocore_session()
        role = _Role(parts.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role"))
        assumed.register_component("credential_provider", parts.CredentialResolver([role]))
        return self._boto.Session(region_name=self.region, botocore_session=assumed)

    def _ours(self, error: Exception, asked: str) -> Exception:
        kinds = sdk("botocore.exceptions")
        if isinstance(error, kinds.ClientError):
            return translated(cast(Any, error).response, asked)
        if isinstance(error, kinds.NoCredentialsError | kinds.PartialCredentialsError | kinds.CredentialRetrievalError):
            where = "put them into the Secret that its credentials name, or give the operator's pod an identity on AWS"
            return Unauthorized(f"{asked}: there are no credentials ({error}): {where}")
        if isinstance(error, kinds.ParamValidationError):
            return Invalid(f"{asked}: {error}")
        if isinstance(error, kinds.BotoCoreError | OSError):
            return Unreachable(f"{asked}: {type(error).__name__}: no answer")
        return error


@dataclass(frozen=True, slots=True)
class _Role:
    """What botocore asks for credentials."""

    credentials: Any
    METHOD = "assume-role"
    CANONICAL_NAME = None

    def load(self) -> Any:
        return self.credentials


def _botocore_session() -> Any:
    """One of its own for each account, with what botocore has read of AWS's services, 30 MB, for all of them."""
    made = sdk("botocore.session").get_session()
    made.register_component("data_loader", _loader())
    return made


@cache
def _loader() -> Any:
    return sdk("botocore.session").get_session().get_component("data_loader")


def sdk(part: str) -> Any:
    """A module of the SDK, which has no types and is an extra; raises KubeconfigError without it."""
    try:
        return import_module(part)
    except ImportError:
        raise KubeconfigError(LACKING) from None
