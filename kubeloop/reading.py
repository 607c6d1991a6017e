"""Reading the store: a cluster as controllers reach it, and what several kinds' observations have in common."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Protocol

import structlog

from kubeloop.cache.informer import Informer
from kubeloop.cache.prober import Health
from kubeloop.client.errors import origin
from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError, Defect
from kubeloop.objects import Key, Manifest, key_of
from kubeloop.repeats import Repeats
from kubeloop.tokens import Token
from kubeloop.types import ResourceType

log = structlog.get_logger()


class Cluster(Protocol):
    """A cluster, as controllers reach it."""

    @property
    def name(self) -> str: ...

    @property
    def kube(self) -> Kube:
        """The client; raises Unreachable at once while the cluster is known not to answer."""
        ...

    @property
    def health(self) -> Health:
        """Whether it answers."""
        ...

    @property
    def server(self) -> str:
        """The address of its API server."""
        ...

    @property
    def unverified(self) -> str:
        """Why nobody can tell whether it is that cluster who answers; empty when it proves it."""
        ...

    @property
    def token(self) -> Token | None:
        """The token that we have there, when it is one that ends."""
        ...

    @property
    def synced(self) -> bool:
        """Whether all that is watched has been seen once."""
        ...

    def find(self, kind: ResourceType) -> Informer | None:
        """What is watched of a type."""
        ...

    def failing(self, kind: ResourceType) -> ClientError | None:
        """What is wrong at the moment with the watch of a type."""
        ...


def unreadable(cluster: str, error: Exception, repeats: Repeats) -> Defect:
    """What is told of a cluster that says what we fail on; where that was, the log has."""
    if so_far := repeats.worth(("cluster unreadable", type(error), origin(error))):
        log.error("cluster unreadable", cluster=cluster, so_far=so_far, exc_info=error)
    return Defect.by(error)


def find(cluster: Cluster, kind: ResourceType, key: Key) -> Manifest | None:
    """An object of a type that is watched there."""
    informer = cluster.find(kind)
    return informer.get(key) if informer else None


def children(cluster: Cluster, kinds: Iterable[ResourceType], uid: str, homes: Container[str]) -> Iterator[Manifest]:
    """What carries the labels of an object's children, in the namespaces where its children are; "" is none.

    Elsewhere anybody may have written the labels: what they say is not enough to believe an object, or to delete it.
    """
    for kind in kinds:
        if (informer := cluster.find(kind)) is not None:
            yield from (child for child in informer.owned_by(uid) if key_of(child).namespace in homes)


def applied(cluster: Cluster, kinds: Iterable[ResourceType], uid: str, homes: Container[str]) -> Iterator[Manifest]:
    """Those of them that we applied. Controllers copy labels, ours too, to what they make themselves."""
    for kind in kinds:
        if (informer := cluster.find(kind)) is None:
            continue
        for child in children(cluster, (kind,), uid, homes):
            entry = informer.entry(key_of(child))
            if entry and entry.owned:
                yield child
