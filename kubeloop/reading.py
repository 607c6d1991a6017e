"""Access to cached objects: the interface of a cluster as controllers use it, and lookups that several kinds share."""

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
from kubeloop.ownership import owns
from kubeloop.repeats import Repeats
from kubeloop.tokens import Token
from kubeloop.types import ResourceType

log = structlog.get_logger()


class Cluster(Protocol):
    """A cluster as controllers use it: client, health and informers."""

    @property
    def name(self) -> str: ...

    @property
    def kube(self) -> Kube:
        """The client; raises Unreachable at once while the cluster is known not to answer."""
        ...

    @property
    def health(self) -> Health:
        """Its reachability."""
        ...

    @property
    def server(self) -> str:
        """The address of its API server."""
        ...

    @property
    def unverified(self) -> str:
        """The reason why the identity of the cluster cannot be verified; empty if it can."""
        ...

    @property
    def token(self) -> Token | None:
        """Our token for the cluster, if it expires."""
        ...

    @property
    def synced(self) -> bool:
        """True if every watched type has been listed once."""
        ...

    def find(self, kind: ResourceType) -> Informer | None:
        """Return the informer of a type, or None if the type is not watched."""
        ...

    def find_failing(self, kind: ResourceType) -> ClientError | None:
        """Return the current error of the watch of a type."""
        ...


def unreadable(cluster: str, error: Exception, repeats: Repeats) -> Defect:
    """Return the error to report for a cluster whose data we fail to process, and log its origin."""
    if so_far := repeats.worth(("cluster unreadable", type(error), origin(error))):
        log.error("cluster unreadable", cluster=cluster, so_far=so_far, exc_info=error)
    return Defect.by(error)


def find(cluster: Cluster, kind: ResourceType, key: Key) -> Manifest | None:
    """Return an object from the cache; None if it is not there or its type is not watched."""
    informer = cluster.find(kind)
    return informer.get(key) if informer else None


def is_rewritten(cluster: Cluster, kind: ResourceType, key: Key, content: Manifest) -> bool:
    """True if another client has changed one of these fields of a cached object since we applied it."""
    informer = cluster.find(kind)
    entry = informer.entry(key) if informer else None
    return entry is not None and not owns(entry.owned, content)


def list_children(
    cluster: Cluster, kinds: Iterable[ResourceType], uid: str, homes: Container[str]
) -> Iterator[Manifest]:
    """Yield the objects with the owner label of this uid that are in one of the given namespaces; "" means
    cluster-scoped.

    In other namespaces anyone may have written the labels, so they are no reason to trust or to delete an object.
    """
    for kind in kinds:
        if (informer := cluster.find(kind)) is not None:
            yield from (child for child in informer.children_of(uid) if key_of(child).namespace in homes)


def list_applied(
    cluster: Cluster, kinds: Iterable[ResourceType], uid: str, homes: Container[str]
) -> Iterator[Manifest]:
    """Yield those children that have fields applied by us.

    Controllers copy our labels to the objects that they create.
    """
    for kind in kinds:
        if (informer := cluster.find(kind)) is None:
            continue
        for child in list_children(cluster, (kind,), uid, homes):
            entry = informer.entry(key_of(child))
            if entry and entry.owned:
                yield child
