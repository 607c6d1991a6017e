"""Connections: keeps the fleet in step with the clusters that are brought along and the kubeconfigs that they name.

A kubeconfig that is missing or cannot be read changes nothing about a connection that is there: bad input never cuts a
cluster off. Whichever order the objects are seen in, the end is the same.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from modelplane_operator.api import InferenceCluster, names
from modelplane_operator.api.base import Key
from modelplane_operator.api.model import Manifest
from modelplane_operator.clients.access import Access, read_kubeconfig
from modelplane_operator.clients.collection import Collection, Index
from modelplane_operator.clients.errors import ClientError, KubeconfigError
from modelplane_operator.clients.fleet import Fleet
from modelplane_operator.clients.resources import SECRET, ResourceType, of

CLUSTERS = of(InferenceCluster)


def kubeconfig_of(cluster: Manifest) -> tuple[str, str] | None:
    """The Secret of our own namespace, and the key in it, that a cluster names; None when it is not one you bring."""
    origin: Mapping[str, Any] = cluster["spec"].get("cluster") or {}
    if origin.get("source") != "Existing":
        return None
    existing: Mapping[str, Mapping[str, str]] = origin.get("existing") or {}
    named = existing.get("secretRef") or {}
    return named.get("name", ""), named.get("key", "kubeconfig")


def _secret_name(cluster: Manifest) -> tuple[str, ...]:
    named = kubeconfig_of(cluster)
    return (named[0],) if named else ()


INDEXES: Mapping[ResourceType, Mapping[str, Index]] = {CLUSTERS: {"kubeconfig": _secret_name}}


@dataclass(slots=True)
class Connections:
    """`changed` is told the cluster when another way leads to it, or the reason why none does is another."""

    fleet: Fleet
    changed: Callable[[str], None]
    _clusters: Collection | None = field(default=None, init=False)
    _secrets: Collection | None = field(default=None, init=False)
    _wrong: dict[str, ClientError] = field(default_factory=dict[str, ClientError], init=False)

    def listen(self, collection: Collection) -> None:
        """Follow a collection of the hub, if it is one of those that matter."""
        if collection.type == CLUSTERS:
            self._clusters = collection
            collection.subscribe(self._cluster_seen)
        elif collection.type == SECRET:
            self._secrets = collection
            collection.subscribe(self._secret_seen)

    def why(self, cluster: str) -> ClientError | None:
        """What is wrong with the kubeconfig that a cluster names. The cluster may be connected all the same."""
        return self._wrong.get(cluster)

    def _cluster_seen(self, key: Key, old: Manifest | None, new: Manifest | None) -> None:
        if old is None or new is None or kubeconfig_of(old) != kubeconfig_of(new):
            self._settle(key.name, new)

    def _secret_seen(self, key: Key, old: Manifest | None, new: Manifest | None) -> None:
        if old and new and old.get("data") == new.get("data"):
            return
        for cluster in self._clusters.by("kubeconfig", key.name) if self._clusters else ():
            self._settle(cluster["metadata"]["name"], cluster)

    def _settle(self, name: str, cluster: Manifest | None) -> None:
        """Bring the connection in line with what is known now."""
        self._wrong.pop(name, None)
        if cluster is None:
            self.fleet.remove(name)
            return
        if (named := kubeconfig_of(cluster)) is None:
            return
        try:
            self.fleet.set(name, self._access(*named))
        except ClientError as error:
            self._wrong[name] = error
        self.changed(name)

    def _access(self, name: str, key: str) -> Access:
        where = Key(names.SYSTEM_NAMESPACE, name)
        secret = self._secrets.get(where) if self._secrets else None
        if secret is None:
            raise KubeconfigError(f"Secret {where} does not exist")
        data: Mapping[str, str] = secret.get("data") or {}
        if key not in data:
            there = f"it has {', '.join(sorted(data))}" if data else "it is empty"
            raise KubeconfigError(f"Secret {where} has no key {key}: {there}")
        try:
            return read_kubeconfig(base64.b64decode(data[key]))
        except binascii.Error:
            raise KubeconfigError(f"Secret {where}: key {key} is not base64") from None
        except KubeconfigError as error:
            raise KubeconfigError(f"Secret {where}, key {key}: {error}") from None
