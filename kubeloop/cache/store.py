"""What the watches have seen: one informer for each type of objects of each cluster, the hub among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kubeloop.cache.dedup import Alike
from kubeloop.cache.indexes import Index
from kubeloop.cache.informer import Informer, Keep
from kubeloop.types import ResourceType


@dataclass(slots=True)
class Store:
    """The informers, by cluster and type; the hub's cluster has no name."""

    now: Callable[[], float]
    alike: Alike = field(default_factory=Alike)
    """What the objects of all of them have in common."""
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
        """The informer for a type of a cluster, made when there is none."""
        known = self._informers.get((cluster, kind))
        if known is None:
            known = Informer(kind, self.now, selecting, indexes or {}, bare, keeping, cluster, self.alike)
            self._informers[cluster, kind] = known
        return known

    def find(self, cluster: str, kind: ResourceType) -> Informer | None:
        return self._informers.get((cluster, kind))

    def close(self, cluster: str) -> None:
        """Forget a cluster; nobody is told."""
        self._informers = {place: one for place, one in self._informers.items() if place[0] != cluster}

    def __iter__(self) -> Iterator[tuple[str, Informer]]:
        return ((cluster, informer) for (cluster, _), informer in tuple(self._informers.items()))
