"""Resolve accounts of clouds to sessions: credentials come from Secrets, or from the operator's own identity."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kubeloop.cache.informer import Informer
from kubeloop.errors import NotFound, Unauthorized
from kubeloop.objects import Key, Manifest, section
from kubeloop.types import SECRET
from modelplane_operator.api import names
from modelplane_operator.clouds.cloud import Cloud
from modelplane_operator.clouds.recipe import OWN_IDENTITY
from modelplane_operator.clouds.resources import Account, Endpoint

KEY = "credentials"
"""Key of the Secret with the text of the credentials."""


class Connect(Protocol):
    """Creates the client of a cloud."""

    def __call__(self, account: Account, credentials: str | None) -> Cloud:
        """Return the client of an account, with the text of its credentials; None for the operator's own identity.

        Raise Unauthorized for credentials of another form, and KubeconfigError where the SDK is not installed.
        """
        ...


@dataclass(slots=True)
class Accounts:
    """Sessions with the clouds, one for each account. A changed key in a Secret takes effect with the next call."""

    connect: Mapping[str, Connect]
    """Functions that create clients, by the name of the cloud."""
    _secrets: Informer | None = field(default=None, init=False)
    """Informer of Secrets; None until it is attached."""
    _clients: dict[Account, tuple[str | None, Cloud]] = field(
        default_factory=dict[Account, tuple[str | None, Cloud]], init=False, repr=False
    )
    """Clients, each with the text of the credentials that it was created with."""
    _closing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)
    """Tasks that close replaced clients, referenced so that they are not garbage collected."""

    def add_event_handlers(self, informer: Informer) -> None:
        """Take the informer of Secrets as the source of credentials."""
        if informer.type == SECRET:
            self._secrets = informer

    def cloud(self, account: Account) -> Cloud:
        """Return the client of an account. A new one replaces it when the credentials change.

        Raise NotFound, Unauthorized, or KubeconfigError where the SDK is not installed.
        """
        credentials = self._read(account)
        client_credentials, client = self._clients.get(account, (None, None))
        if client is None or client_credentials != credentials:
            try:
                new_client = self.connect[account.cloud](account, credentials)
            except Unauthorized as error:
                raise Unauthorized(f"Secret {_secret_key(account)}: {error}") from None
            if client is not None:
                # In the background, since calls of the old client may still be running.
                task = asyncio.get_running_loop().create_task(client.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            client = new_client
            self._clients[account] = (credentials, client)
        return client

    async def fetch_token(self, account: Account, cluster: str) -> str:
        """Return a short-lived token for the API server of a cluster. Raise ClientError."""
        return await self.cloud(account).cluster_token(cluster)

    async def endpoint(self, account: Account, cluster: str) -> Endpoint:
        """Return the address and the certificate authority of a cluster's API server. Raise ClientError."""
        return await self.cloud(account).endpoint(cluster)

    def _read(self, account: Account) -> str | None:
        """Return the text in the account's Secret; None for the operator's own identity.

        Raise NotFound when the Secret or its key is missing, and Unauthorized when its value is no text.
        """
        key = _secret_key(account)
        secret: Manifest | None = self._secrets.get(key) if self._secrets else None
        if secret is None:
            # A Secret of this name has priority, so that a hub can replace the operator's identity.
            if account.credentials == OWN_IDENTITY:
                return None
            raise NotFound(f"Secret {key} does not exist: write the account's credentials into its key {KEY}")
        text: str | None = section(secret, "data").get(KEY)
        if text is None:
            raise NotFound(f"Secret {key} has no key {KEY}")
        try:
            return base64.b64decode(text).decode()
        except ValueError:  # not base64, not ASCII, or not text when decoded
            raise Unauthorized(f"Secret {key}: key {KEY} is no text in base64") from None


def _secret_key(account: Account) -> Key:
    """Return the key of the Secret with an account's credentials."""
    return Key(names.SYSTEM_NAMESPACE, account.credentials)
