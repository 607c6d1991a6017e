"""Where it is said how a cluster is reached, and by which credentials."""

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
    """Of one cluster, and named by its `str`.

    One that makes credentials makes others before they end, and has the cluster follow it anew.
    """

    def read(self) -> Access:
        """How the cluster is reached now; raises KubeconfigError."""
        ...

    def refused(self) -> None:
        """The cluster has answered 401: whoever makes credentials makes others."""
        ...


@dataclass(frozen=True, slots=True)
class SecretKubeconfig:
    """A kubeconfig in a Secret of our namespace. Other credentials are for whoever writes the Secret to give."""

    secret: Key
    key: str
    find: Callable[[Key], Manifest | None]
    """The Secret of that name."""
    plain_http: bool = field(default=False, kw_only=True)
    """Whether its server may be one that speaks no TLS."""

    def __str__(self) -> str:
        return f"Secret {self.secret}"

    def read(self) -> Access:
        if self.secret.namespace != names().system_namespace:
            where = names().system_namespace
            raise KubeconfigError(f"{self} is not read: those of kubeconfigs are in {where}")
        if (secret := self.find(self.secret)) is None:
            raise KubeconfigError(f"{self} does not exist: make it, with the kubeconfig under the key {self.key}")
        data = section(secret, "data")
        if self.key not in data:
            there = f"it has {', '.join(sorted(data))}" if data else "it is empty"
            raise KubeconfigError(f"{self} has no key {self.key}: {there}; put the kubeconfig under it")
        try:
            return read_kubeconfig(base64.b64decode(data[self.key]), plain_http=self.plain_http)
        except binascii.Error:
            raise KubeconfigError(f"{self}: key {self.key} is not base64") from None
        except KubeconfigError as error:
            raise KubeconfigError(f"{self}, key {self.key}: {error}") from None

    def refused(self) -> None:
        """The watch of the Secret tells of others."""
