"""Resolve accounts of clouds to sessions: credentials come from Secrets, or from the operator's own identity."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kubeloop.cache.informer import Informer
from kubeloop.errors import NotFound, Unauthorized
from kubeloop.objects import Key, Manifest, section
from kubeloop.types import SECRET
from modelplane_operator.api import names
from modelplane_operator.clouds.eks.cloud import Aws
from modelplane_operator.clouds.eks.session import Credentials, Session, read_credentials
from modelplane_operator.clouds.gke import session as gke
from modelplane_operator.clouds.gke.cloud import Gcp
from modelplane_operator.clouds.resources import Account, Endpoint

T = TypeVar("T")

KEY = "credentials"
OVER = 3 * gke.DEADLINE
"""Seconds after which no call of a replaced session can still be running.

Each call first waits for a token and a slot.
"""
OWN = "default"
"""Name that stands for the operator's own identity when no Secret with this name exists."""


@dataclass(slots=True)
class Accounts:
    """Sessions with the clouds, one for each account. A changed key in a Secret takes effect with the next call."""

    google_hosts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Overridden hosts of Google's services, for tests and private endpoints."""
    _secrets: Informer | None = field(default=None, init=False)
    """Informer of Secrets; None until it is attached."""
    _aws: dict[Account, tuple[Credentials, Aws]] = field(
        default_factory=dict[Account, tuple[Credentials, Aws]], init=False
    )
    """AWS clients, each with the credentials that it was created with."""
    _google: dict[Account, tuple[gke.Credentials, Gcp]] = field(
        default_factory=dict[Account, tuple[gke.Credentials, Gcp]], init=False
    )
    """Google clients, each with the credentials that it was created with."""

    _closing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)
    """Tasks that close replaced sessions, referenced so that they are not garbage collected."""

    def add_event_handlers(self, informer: Informer) -> None:
        """Take the informer of Secrets as the source of credentials."""
        if informer.type == SECRET:
            self._secrets = informer

    def cloud(self, account: Account) -> Aws | Gcp:
        """Return the client of an account.

        Raise NotFound, Unauthorized, or KubeconfigError where the SDK is not installed.
        """
        return self.google(account) if account.cloud == "GKE" else self.aws(account)

    def google(self, account: Account) -> Gcp:
        """Return the client of an account on Google Cloud. A new one replaces it when the credentials change."""
        credentials = self._read(account, gke.read_credentials) or gke.Credentials()
        cached = self._google.get(account)
        if cached is None or cached[0] != credentials:
            if cached is not None:
                self._close(cached[1].session)
            session = gke.Session(account.region, account.project, credentials, self.google_hosts)
            cached = self._google[account] = (credentials, Gcp(session))
        return cached[1]

    def _close(self, session: gke.Session) -> None:
        """Close a replaced session after its running calls have ended. No new call uses its credentials."""

        async def close() -> None:
            """Wait until no call can be running, then close the session."""
            await asyncio.sleep(OVER)
            await session.close()

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def aws(self, account: Account) -> Aws:
        """Return the client of an account on AWS. A new one replaces it when the credentials change."""
        credentials = self._read(account, read_credentials) or Credentials()
        cached = self._aws.get(account)
        if cached is None or cached[0] != credentials:
            cached = self._aws[account] = (credentials, Aws(Session(account.region, credentials)))
        return cached[1]

    async def fetch_token(self, account: Account, cluster: str) -> str:
        """Return a short-lived token for the API server of a cluster. Raise ClientError."""
        return await self.cloud(account).session.cluster_token(cluster)

    async def endpoint(self, account: Account, cluster: str) -> Endpoint:
        """Return the address and the certificate authority of a cluster's API server. Raise ClientError."""
        return await self.cloud(account).endpoint(cluster)

    def _read(self, account: Account, read: Callable[[str], T]) -> T | None:
        """Return the credentials in the account's Secret; None for the operator's own identity.

        Raise NotFound when the Secret or its key is missing, and Unauthorized when its value cannot be parsed.
        """
        key = Key(names.SYSTEM_NAMESPACE, account.credentials)
        secret: Manifest | None = self._secrets.get(key) if self._secrets else None
        if secret is None:
            if account.credentials == OWN:
                return None
            raise NotFound(f"Secret {key} does not exist: write the account's credentials into its key {KEY}")
        text: str | None = section(secret, "data").get(KEY)
        if text is None:
            raise NotFound(f"Secret {key} has no key {KEY}")
        try:
            return read(base64.b64decode(text).decode())
        except ValueError:  # not base64, not ASCII, or not text when decoded
            raise Unauthorized(f"Secret {key}: key {KEY} is no text in base64") from None
        except Unauthorized as error:
            raise Unauthorized(f"Secret {key}: {error}") from None
