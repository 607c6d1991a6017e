"""What the watches have seen: one collection for each type of objects of each cluster, the hub among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from modelplane_operator.clients.collection import Collection, Index, Keep
from modelplane_operator.clients.resources import ResourceType


@dataclass(slots=True)
class Store:
    """The collections, by cluster and type; the hub's cluster has no name."""

    now: Callable[[], float]
    _collections: dict[tuple[str, ResourceType], Collection] = field(
        default_factory=dict[tuple[str, ResourceType], Collection]
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
    ) -> Collection:
        """The collection for a type of a cluster, made when there is none."""
        known = self._collections.get((cluster, kind))
        if known is None:
            known = Collection(kind, self.now, selecting, indexes or {}, bare, keeping, cluster)
            self._collections[cluster, kind] = known
        return known

    def find(self, cluster: str, kind: ResourceType) -> Collection | None:
        return self._collections.get((cluster, kind))

    def close(self, cluster: str) -> None:
        """Forget a cluster; nobody is told."""
        self._collections = {place: one for place, one in self._collections.items() if place[0] != cluster}

    def __iter__(self) -> Iterator[tuple[str, Collection]]:
        return ((cluster, collection) for (cluster, _), collection in tuple(self._collections.items()))
