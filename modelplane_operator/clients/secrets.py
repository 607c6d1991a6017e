"""What users' Secrets and ConfigMaps say, read one by one.

The operator may get them by name and neither list nor watch them: it must not hold every Secret of the hub. So they are
read again after a while, and no sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from modelplane_operator.api.base import Key
from modelplane_operator.api.model import Manifest
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.resources import ResourceType

Place = tuple[ResourceType, Key]


@dataclass(slots=True)
class _Reading:
    began: float
    manifest: Manifest | None


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

    async def find(self, kind: ResourceType, key: Key) -> Manifest | None:
        """The object, or None when the server says that there is none; raises what else it says."""
        place = (kind, key)
        async with self._asking.setdefault(place, asyncio.Lock()):  # many who ask at once are one question
            known = self._known.get(place)
            if known is None or self.now() - known.began >= self.recheck:
                self._forget()
                known = _Reading(self.now(), await self.kube_of().find(kind, key))
                self._known[place] = known
        return known.manifest

    def _forget(self) -> None:
        """Let go of what nobody has asked for lately."""
        oldest = self.now() - self.recheck
        self._known = {place: one for place, one in self._known.items() if one.began > oldest}
        self._asking = {place: lock for place, lock in self._asking.items() if place in self._known or lock.locked()}
