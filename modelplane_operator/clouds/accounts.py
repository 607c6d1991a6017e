"""The accounts of clouds: credentials in Secrets of our namespace, or the operator's own identity."""

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
"""The seconds after which no call is under way any more: each waits for a token and for its turn first."""
OWN = "default"
"""The name that means the operator's own identity, where there is no such Secret."""


@dataclass(slots=True)
class Accounts:
    """Who calls which cloud. Other keys in a Secret are taken up by the next call."""

    google_hosts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where Google's services are, if not where everybody has them."""
    _secrets: Informer | None = field(default=None, init=False)
    _aws: dict[Account, tuple[Credentials, Aws]] = field(
        default_factory=dict[Account, tuple[Credentials, Aws]], init=False
    )
    _google: dict[Account, tuple[gke.Credentials, Gcp]] = field(
        default_factory=dict[Account, tuple[gke.Credentials, Gcp]], init=False
    )

    _closing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)

    def listen(self, informer: Informer) -> None:
        if informer.type == SECRET:
            self._secrets = informer

    def cloud(self, account: Account) -> Aws | Gcp:
        """Raises NotFound, Unauthorized, and KubeconfigError where the SDK is not installed."""
        return self.google(account) if account.cloud == "GKE" else self.aws(account)

    def google(self, account: Account) -> Gcp:
        credentials = self._read(account, gke.read_credentials) or gke.Credentials()
        known = self._google.get(account)
        if known is None or known[0] != credentials:
            if known is not None:
                self._close(known[1].session)
            session = gke.Session(account.region, account.project, credentials, self.google_hosts)
            known = self._google[account] = (credentials, Gcp(session))
        return known[1]

    def _close(self, session: gke.Session) -> None:
        """Once the calls that are under way have their answers: nobody makes another with keys that were replaced."""

        async def close() -> None:
            await asyncio.sleep(OVER)
            await session.close()

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def aws(self, account: Account) -> Aws:
        credentials = self._read(account, read_credentials) or Credentials()
        known = self._aws.get(account)
        if known is None or known[0] != credentials:
            known = self._aws[account] = (credentials, Aws(Session(account.region, credentials)))
        return known[1]

    async def token(self, account: Account, cluster: str) -> str:
        """What the API server of a cluster takes for a while. Raises ClientError."""
        return await self.cloud(account).session.cluster_token(cluster)

    async def endpoint(self, account: Account, cluster: str) -> Endpoint:
        """Where the API server of a cluster is. Raises ClientError."""
        return await self.cloud(account).endpoint(cluster)

    def _read(self, account: Account, read: Callable[[str], T]) -> T | None:
        """The credentials in the account's Secret; None for the operator's own identity."""
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
        except ValueError:  # of what is no base64, no ASCII, or no text within
            raise Unauthorized(f"Secret {key}: key {KEY} is no text in base64") from None
        except Unauthorized as error:
            raise Unauthorized(f"Secret {key}: {error}") from None
