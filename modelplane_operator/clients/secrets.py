"""What users' Secrets and ConfigMaps say, read one by one.

The operator may get them by name and neither list nor watch them: it must not hold every Secret of the hub. So they are
read again after a while, and no sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from modelplane_operator.api.base import Key
from modelplane_operator.api.model import Manifest
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.limits import MIB
from modelplane_operator.clients.resources import ResourceType

MOST: Final = 64 * MIB  # of what is kept
KEPT: Final = ("apiVersion", "kind", "type")
DATA: Final = ("data", "binaryData")

Place = tuple[ResourceType, Key, frozenset[str] | None]


@dataclass(slots=True)
class _Reading:
    began: float
    manifest: Manifest | None
    size: int


@dataclass(slots=True)
class Originals:
    """The objects that users name. Whoever looks again every `recheck` seconds learns of a change within `lifetime`."""

    kube_of: Callable[[], Kube]
    now: Callable[[], float]
    lifetime: float
    _known: dict[Place, _Reading] = field(default_factory=dict[Place, _Reading], init=False)
    _asking: dict[Place, asyncio.Lock] = field(default_factory=dict[Place, asyncio.Lock], init=False)

    @property
    def recheck(self) -> float:
        """How long a reading serves. It may have been made just before: two of them are the lifetime."""
        return self.lifetime / 2

    async def find(self, kind: ResourceType, key: Key, entries: frozenset[str] | None = None) -> Manifest | None:
        """The object, or None when the server says that there is none; raises what else it says.

        Of its data these entries, or all. Nothing else of it is kept, and of all objects no more than MOST.
        """
        place = (kind, key, entries)
        async with self._asking.setdefault(place, asyncio.Lock()):  # many who ask at once are one question
            known = self._known.get(place)
            if known is None or self.now() - known.began >= self.recheck:
                self._forget()
                began, found = self.now(), await self.kube_of().find(kind, key)
                kept = _kept(found, entries) if found else None
                known = self._known[place] = _Reading(began, kept, _size(kept) if kept else 0)
                self._bound()
        return known.manifest

    def _bound(self) -> None:
        """Let go of the oldest readings when they are too many: whoever needs them reads again."""
        size = sum(one.size for one in self._known.values())
        while size > MOST and len(self._known) > 1:
            oldest = min(self._known, key=lambda place: self._known[place].began)
            size -= self._known.pop(oldest).size

    def _forget(self) -> None:
        """Let go of what nobody has asked for lately."""
        oldest = self.now() - self.recheck
        self._known = {place: one for place, one in self._known.items() if one.began > oldest}
        self._asking = {place: lock for place, lock in self._asking.items() if place in self._known or lock.locked()}


def _kept(found: Manifest, entries: frozenset[str] | None) -> Manifest:
    metadata = {name: found["metadata"].get(name) for name in ("name", "namespace", "uid")}
    data = {
        field: {name: value for name, value in found[field].items() if entries is None or name in entries}
        for field in DATA
        if found.get(field)
    }
    return {**{name: found[name] for name in KEPT if name in found}, "metadata": metadata, **data}


def _size(kept: Manifest) -> int:
    return sum(len(name) + len(value) for field in DATA for name, value in kept.get(field, {}).items())
