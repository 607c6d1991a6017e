"""Connections: keeps the fleet in step with all that names a kubeconfig: clusters that are brought along, and
ServingStacks that no cluster has.

A kubeconfig that is missing or cannot be read changes nothing about a connection that is there: bad input never cuts a
cluster off. Whichever order the objects are seen in, the end is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import structlog

from kubeloop.cache.fleet import Fleet
from kubeloop.cache.informer import Informer
from kubeloop.client.errors import origin
from kubeloop.client.kubeconfigs import KubeconfigSource, SecretKubeconfig
from kubeloop.errors import ClientError, Defect
from kubeloop.loop import Indexes
from kubeloop.objects import Key, Manifest, entries, key_of, labels_of, section
from kubeloop.repeats import Repeats
from kubeloop.resource import of
from kubeloop.types import SECRET, ResourceType
from modelplane_operator.api import InferenceCluster, ServingStack, labels, names

CLUSTERS, STACKS = of(InferenceCluster), of(ServingStack)

log = structlog.get_logger()


class Way(NamedTuple):
    """How somebody wants a cluster to be reached."""

    name: str
    """Of the connection."""
    secret: Key | None
    """None when it is not for a kubeconfig to say."""
    key: str = ""
    """Within the Secret."""


def _way_to_cluster(cluster: Manifest) -> Way:
    name, origin = cluster["metadata"]["name"], section(cluster, "spec", "cluster")
    if origin.get("source") != "Existing" or "cloud" in section(origin, "existing"):
        return Way(name, None)
    named = section(origin, "existing", "secretRef")
    return Way(name, Key(names.SYSTEM_NAMESPACE, named.get("name", "")), named.get("key", "kubeconfig"))


def cluster_of(stack: Manifest) -> str:
    """The connection by which a stack's cluster is reached: its InferenceCluster's, or one of its own."""
    key, named = key_of(stack), labels_of(stack)
    if key.namespace == names.SYSTEM_NAMESPACE and named.get(labels.OWNER_KIND) == "InferenceCluster":
        return named.get(labels.OWNER_NAME, "")  # elsewhere anybody may have written the labels
    return str(key)


def _way_of_stack(stack: Manifest) -> Way | None:
    """None for a stack that an InferenceCluster has: it goes the cluster's way."""
    name = str(key_of(stack))
    if cluster_of(stack) != name:
        return None
    named = next(one for one in entries(stack, "spec", "secrets") if one["type"] == "Kubeconfig")
    return Way(name, Key(key_of(stack).namespace, named["name"]), named["key"])


def _told(secret: Manifest) -> tuple[object, bool]:
    """What clusters say of their Secret."""
    return secret.get("data"), "deletionTimestamp" in secret["metadata"]


WayOf = Callable[[Manifest], Way | None]
WAYS: Mapping[ResourceType, WayOf] = {CLUSTERS: _way_to_cluster, STACKS: _way_of_stack}


def _secret_of(way_of: WayOf, manifest: Manifest) -> tuple[str, ...]:
    way = way_of(manifest)
    return (way.secret.name,) if way and way.secret else ()


INDEXES: Indexes = {kind: {"kubeconfig": partial(_secret_of, way_of)} for kind, way_of in WAYS.items()}


@dataclass(slots=True)
class Connections:
    """`changed` is told the cluster when another way leads to it, or the reason why none does is another.

    `plain_http`: kubeconfigs may lead to servers that speak no TLS.
    """

    fleet: Fleet
    changed: Callable[[str], None]
    plain_http: bool = field(default=False, kw_only=True)
    _named: list[Informer] = field(default_factory=list[Informer], init=False)
    _secrets: Informer | None = field(default=None, init=False)
    _sources: dict[str, KubeconfigSource] = field(default_factory=dict[str, KubeconfigSource], init=False)
    _wrong: dict[str, ClientError] = field(default_factory=dict[str, ClientError], init=False)
    _repeats: Repeats = field(default_factory=Repeats, init=False)

    def listen(self, informer: Informer) -> None:
        """Follow an informer of the hub, if it is one of those that matter."""
        if way_of := WAYS.get(informer.type):
            self._named.append(informer)
            informer.subscribe(partial(self._named_seen, way_of))
        elif informer.type == SECRET:
            self._secrets = informer
            informer.subscribe(self._secret_seen)

    def why(self, cluster: str) -> ClientError | None:
        """What is wrong with the kubeconfig that a cluster names. The cluster may be connected all the same."""
        return self._wrong.get(cluster)

    def follow(self, cluster: str, source: KubeconfigSource) -> None:
        """Reach a cluster as this source says, and tell the source when its credentials are refused."""
        self._sources[cluster] = source
        before, is_news = self._wrong.pop(cluster, None), False
        try:
            is_news = self.fleet.set(cluster, source.read())
        except ClientError as error:
            self._wrong[cluster] = error
        except Exception as error:  # noqa: BLE001 - a Secret has no condition: whoever names it tells what we fail on
            self._wrong[cluster] = self._defect(source, error)
        self._tell(cluster, before, is_news=is_news)

    def failed(self, cluster: str, source: KubeconfigSource, error: Exception) -> None:
        """No credentials can be made for a cluster. It may be connected all the same."""
        before = self._wrong.get(cluster)
        self._wrong[cluster] = error if isinstance(error, ClientError) else self._defect(source, error)
        self._tell(cluster, before)

    def _tell(self, cluster: str, before: ClientError | None, *, is_news: bool = False) -> None:
        """`before`: what was wrong with its kubeconfig until now."""
        if is_news or repr(before) != repr(self.why(cluster)):
            self.changed(cluster)

    def _defect(self, source: KubeconfigSource, error: Exception) -> Defect:
        told = {"error": type(error).__name__, "at": origin(error)}
        if so_far := self._repeats.worth((str(source), *told.values())):
            log.error("kubeconfig failed", source=str(source), so_far=so_far, **told)
        return Defect(f"{source}: {Defect.by(error)}")

    def unfollow(self, cluster: str) -> None:
        """There is no such cluster any more."""
        self._sources.pop(cluster, None)
        self._wrong.pop(cluster, None)
        self.fleet.remove(cluster)
        self.changed(cluster)

    def refused(self, cluster: str) -> None:
        """A cluster does not accept our credentials."""
        if source := self._sources.get(cluster):
            source.refused()

    def _named_seen(self, way_of: WayOf, _: Key, old: Manifest | None, new: Manifest | None) -> None:
        before, after = (way_of(one) if one else None for one in (old, new))
        if before == after:
            return
        if after is not None:
            self._settle(after)
        elif before is not None:
            self._wrong.pop(before.name, None)
            self._sources.pop(before.name, None)
            self.fleet.remove(before.name)

    def _secret_seen(self, key: Key, old: Manifest | None, new: Manifest | None) -> None:
        if old and new and _told(old) == _told(new):
            return
        for informer in self._named:
            for one in informer.by("kubeconfig", key.name):
                if way := WAYS[informer.type](one):
                    self._settle(way)

    def _settle(self, way: Way) -> None:
        """Bring the connection in line with what is known now."""
        if way.secret is None:
            self._wrong.pop(way.name, None)
        else:
            self.follow(way.name, SecretKubeconfig(way.secret, way.key, self._secret, plain_http=self.plain_http))

    def _secret(self, key: Key) -> Manifest | None:
        return self._secrets.get(key) if self._secrets else None
