"""Sources of kubeconfigs: where the access to a cluster comes from."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kubeloop.client.access import Access, read_kubeconfig
from kubeloop.errors import KubeconfigError
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, section


class KubeconfigSource(Protocol):
    """The source of one cluster's access; its `str` names it in messages.

    A source that creates credentials renews them before they expire, and has the cluster's connection updated.
    """

    def read(self) -> Access:
        """Return the current access; raises KubeconfigError."""
        ...

    def on_unauthorized(self) -> None:
        """Note that the cluster has rejected the credentials (401), so that a source that creates them renews them."""
        ...


@dataclass(frozen=True, slots=True)
class SecretKubeconfig:
    """A kubeconfig in a Secret of our namespace. Its author has to renew the credentials."""

    secret: Key
    """The name of the Secret."""
    key: str
    """The key of the kubeconfig within the Secret."""
    find: Callable[[Key], Manifest | None]
    """Returns the Secret of a key."""
    plain_http: bool = field(default=False, kw_only=True)
    """True if servers without TLS are allowed."""

    def __str__(self) -> str:
        return f"Secret {self.secret}"

    def read(self) -> Access:
        """Return the access of the kubeconfig; raises KubeconfigError if it is missing or invalid."""
        if self.secret.namespace != names().system_namespace:
            where = names().system_namespace
            raise KubeconfigError(f"{self} is not read: those of kubeconfigs are in {where}")
        if (secret := self.find(self.secret)) is None:
            raise KubeconfigError(f"{self} does not exist: make it, with the kubeconfig under the key {self.key}")
        data = section(secret, "data")
        if self.key not in data:
            content = f"it has {', '.join(sorted(data))}" if data else "it is empty"
            raise KubeconfigError(f"{self} has no key {self.key}: {content}; put the kubeconfig under it")
        try:
            return read_kubeconfig(base64.b64decode(data[self.key]), plain_http=self.plain_http)
        except binascii.Error:
            raise KubeconfigError(f"{self}: key {self.key} is not base64") from None
        except KubeconfigError as error:
            raise KubeconfigError(f"{self}, key {self.key}: {error}") from None

    def on_unauthorized(self) -> None:
        """Do nothing: the watch of the Secret reports new credentials."""
