"""The watches of one cluster: an informer for each type and a reflector that keeps it current, across clients."""

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
    """A type to watch, and the label that its objects must carry; None selects all objects."""

    type: ResourceType
    selecting: str | None = field(default_factory=lambda: names().owner_uid)
    indexes: Mapping[str, Index] = field(default_factory=dict[str, Index])
    namespace: str = ""
    """The namespace to watch; empty for all."""
    bare: bool = False
    """True if only metadata is needed, such as of Secrets whose content is not read."""
    keeping: Keep | None = None
    """Returns the part of an object to cache, for large objects of which little is needed."""
    only_ours: bool = False
    """True if only we create such objects. While there are none, the type is listed now and then instead of watched."""
    spare: bool = False
    """True if a cluster counts as synced even if we may not read this type."""


@dataclass(slots=True)
class Watches:
    """The watches of one cluster. The prober is notified when one of them breaks."""

    prober: Prober
    store: Store
    informers: dict[ResourceType, Informer] = field(default_factory=dict[ResourceType, Informer], init=False)
    reflectors: list[Reflector] = field(default_factory=list[Reflector], init=False)
    """The reflectors; empty before the first client."""
    _watched: dict[ResourceType, Watched] = field(default_factory=dict[ResourceType, Watched], init=False)

    def add(self, watched: Iterable[Watched]) -> None:
        """Watch these types as well; to be called before the first client."""
        for watch in watched:
            self._watched[watch.type] = watch
            self.informers[watch.type] = self.store.open(
                self.prober.cluster,
                watch.type,
                selecting=watch.selecting,
                indexes=watch.indexes,
                bare=watch.bare,
                keeping=watch.keeping,
            )

    def find_failing(self, kind: ResourceType) -> ClientError | None:
        """Return the current error of the watch of a type."""
        return next((reflector.failing for reflector in self.reflectors if reflector.informer.type == kind), None)

    @property
    def synced(self) -> bool:
        """True if every watched type has been listed once."""
        return all(
            informer.synced or (self._watched[kind].spare and isinstance(self.find_failing(kind), Forbidden))
            for kind, informer in self.informers.items()
        )

    def distrust(self) -> None:
        """Let the next lists replace all cached objects: this may be another cluster."""
        for informer in self.informers.values():
            informer.distrust()
        self.reflectors.clear()

    def on(self, kube: Kube) -> Sequence[Reflector]:
        """Return the reflectors, switched to this client."""
        if not self.reflectors:
            prober, slots = self.prober, asyncio.Semaphore(LISTS_AT_ONCE)
            on_broken, on_news, kept = prober.suspected.set, prober.tell, self._count_bytes  # one for all

            def answers() -> bool:
                return prober.health.error is None

            self.reflectors = [
                Reflector(
                    kube,
                    informer,
                    prober.jitter,
                    item.namespace,
                    prober.pace.watch,
                    on_broken=on_broken,
                    answers=answers,
                    only_ours=item.only_ours,
                    on_type_change=on_news,
                    slots=slots,
                    cached_bytes=kept,
                )
                for item, informer in zip(self._watched.values(), self.informers.values(), strict=True)
            ]
        for item in self.reflectors:
            item.go_on(kube)
        return self.reflectors

    def _count_bytes(self) -> int:
        """Return the bytes cached of the cluster.

        A list in progress may only repeat cached objects, so the larger size counts.
        """
        return sum(max(reflector.informer.size, reflector.reading) for reflector in self.reflectors)
