"""The store of all informers: one for each type of objects of each cluster, the hub included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kubeloop.cache.dedup import Interner
from kubeloop.cache.indexes import Index
from kubeloop.cache.informer import Informer, Keep
from kubeloop.types import ResourceType


@dataclass(slots=True)
class Store:
    """The informers by cluster and type. The hub's name is empty."""

    now: Callable[[], float]
    interner: Interner = field(default_factory=Interner)
    """Shares equal parts between the objects of all informers."""
    _informers: dict[tuple[str, ResourceType], Informer] = field(
        default_factory=dict[tuple[str, ResourceType], Informer]
    )

    def open(
        self,
        cluster: str,
        kind: ResourceType,
        *,
        selecting: str | None = None,
        indexes: Mapping[str, Index] | None = None,
        bare: bool = False,
        keeping: Keep | None = None,
    ) -> Informer:
        """Return the informer for a type of a cluster, and create it if there is none."""
        informer = self._informers.get((cluster, kind))
        if informer is None:
            informer = Informer(kind, self.now, selecting, indexes or {}, bare, keeping, cluster, self.interner)
            self._informers[cluster, kind] = informer
        return informer

    def find(self, cluster: str, kind: ResourceType) -> Informer | None:
        return self._informers.get((cluster, kind))

    def close(self, cluster: str) -> None:
        """Remove the informers of a cluster, without calling listeners."""
        self._informers = {
            location: informer for location, informer in self._informers.items() if location[0] != cluster
        }

    def __iter__(self) -> Iterator[tuple[str, Informer]]:
        return ((cluster, informer) for (cluster, _), informer in tuple(self._informers.items()))
