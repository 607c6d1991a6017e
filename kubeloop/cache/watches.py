"""What is watched of one cluster: an informer for each type, and what keeps it current, whichever the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kubeloop.cache.indexes import Index
from kubeloop.cache.informer import Informer, Keep
from kubeloop.cache.prober import Prober
from kubeloop.cache.reflector import LISTS_AT_ONCE, Reflector
from kubeloop.cache.store import Store
from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError, Forbidden
from kubeloop.naming import names
from kubeloop.types import ResourceType


@dataclass(frozen=True, slots=True)
class Watched:
    """A type to watch, and the label that its objects must carry; None: all of them."""

    type: ResourceType
    selecting: str | None = field(default_factory=lambda: names().owner_uid)
    indexes: Mapping[str, Index] = field(default_factory=dict[str, Index])
    namespace: str = ""
    """Only the objects of this namespace; empty: of all."""
    bare: bool = False
    """No more than their metadata: of Secrets, say, whose content nobody here needs."""
    keeping: Keep | None = None
    """What is kept of an object, for large ones of which little is needed."""
    ours: bool = False
    """Nobody but us makes such objects: while there are none, no connection is spent on watching them."""
    spare: bool = False
    """A cluster that refuses to show us these is known well enough without."""


@dataclass(slots=True)
class Watches:
    """The watches of one cluster; `prober` is told when one of them breaks off."""

    prober: Prober
    store: Store
    informers: dict[ResourceType, Informer] = field(default_factory=dict[ResourceType, Informer], init=False)
    reflectors: list[Reflector] = field(default_factory=list[Reflector], init=False)
    """Empty before there is a client."""
    _watched: dict[ResourceType, Watched] = field(default_factory=dict[ResourceType, Watched], init=False)

    def add(self, watched: Iterable[Watched]) -> None:
        """Watch these types, too; to be called before there is a client."""
        for one in watched:
            self._watched[one.type] = one
            self.informers[one.type] = self.store.open(
                self.prober.cluster,
                one.type,
                selecting=one.selecting,
                indexes=one.indexes,
                bare=one.bare,
                keeping=one.keeping,
            )

    def failing(self, kind: ResourceType) -> ClientError | None:
        """What is wrong at the moment with the watch of a type."""
        return next((one.failing for one in self.reflectors if one.informer.type == kind), None)

    @property
    def synced(self) -> bool:
        """Whether all that is watched has been seen once."""
        return all(
            informer.synced or (self._watched[kind].spare and isinstance(self.failing(kind), Forbidden))
            for kind, informer in self.informers.items()
        )

    def distrust(self) -> None:
        """Take nothing that was seen for certain: it may be another cluster."""
        for informer in self.informers.values():
            informer.distrust()
        self.reflectors.clear()

    def on(self, kube: Kube) -> Sequence[Reflector]:
        """The reflectors, going on with this client."""
        if not self.reflectors:
            prober, slots = self.prober, asyncio.Semaphore(LISTS_AT_ONCE)
            on_broken, on_news, kept = prober.suspected.set, prober.tell, self._kept  # one for all

            def answers() -> bool:
                return prober.health.error is None

            self.reflectors = [
                Reflector(
                    kube,
                    informer,
                    prober.chance,
                    one.namespace,
                    prober.pace.watch,
                    on_broken=on_broken,
                    answers=answers,
                    ours=one.ours,
                    on_news=on_news,
                    slots=slots,
                    kept=kept,
                )
                for one, informer in zip(self._watched.values(), self.informers.values(), strict=True)
            ]
        for one in self.reflectors:
            one.go_on(kube)
        return self.reflectors

    def _kept(self) -> int:
        """The bytes that are kept of the cluster. A list under way may only say again what is there."""
        return sum(max(one.informer.size, one.reading) for one in self.reflectors)
