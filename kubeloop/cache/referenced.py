"""What users' Secrets and ConfigMaps say, read one by one.

The operator may get them by name and neither list nor watch them: it must not hold every Secret of the hub. So they are
read again after a while, and no sooner. What is missing is read again every few seconds, once for all that wait for it,
and they are woken when it is there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from kubeloop.client.kube import Kube
from kubeloop.client.limits import MIB
from kubeloop.errors import ClientError
from kubeloop.objects import Key, Manifest
from kubeloop.types import ResourceType

MOST: Final = 64 * MIB  # of what is kept
KEPT: Final = ("apiVersion", "kind", "type")
DATA: Final = ("data", "binaryData")

RETRY_AFTER: Final = 5.0  # seconds until what is missing is read again
ROUND: Final = 1.0
IN_A_ROUND: Final = 20  # reads: a tenant may name thousands of Secrets that are not there
WAITED_FOR: Final = 1200.0  # whoever has not asked for so long waits no more

Place = tuple[ResourceType, Key, frozenset[str] | None]
Subject = tuple[ResourceType, Key]
"""An object of the hub that names the referenced one."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Reading:
    began: float
    manifest: Manifest | None
    size: int


@dataclass(slots=True)
class _Missing:
    """Who waits for what is missing, when each has asked for it last, and what of its data each needs."""

    looked: float
    asked: dict[Subject, tuple[float, frozenset[str]]] = field(
        default_factory=dict[Subject, tuple[float, frozenset[str]]]
    )


def unawaited(_: ResourceType, __: Key) -> None:
    """For whoever asks again by themselves."""


@dataclass(slots=True)
class ReferencedObjects:
    """The objects that users name. Whoever looks again every `recheck` seconds learns of a change within `lifetime`.

    `wake` is told of an object that waited for something missing, when it is there; `run` looks for it.
    """

    kube_of: Callable[[], Kube]
    now: Callable[[], float]
    lifetime: float
    wake: Callable[[ResourceType, Key], None] = unawaited
    _known: dict[Place, _Reading] = field(default_factory=dict[Place, _Reading], init=False)
    _asking: dict[Place, asyncio.Lock] = field(default_factory=dict[Place, asyncio.Lock], init=False)
    _missing: dict[Place, _Missing] = field(default_factory=dict[Place, _Missing], init=False)
    """Those that have waited longest for another look come first."""

    @property
    def recheck(self) -> float:
        """How long a reading serves. It may have been made just before: two of them are the lifetime."""
        return self.lifetime / 2

    async def find(
        self,
        kind: ResourceType,
        key: Key,
        entries: frozenset[str] | None = None,
        *,
        waiting: Subject | None = None,
        needed: frozenset[str] = frozenset(),
    ) -> Manifest | None:
        """The object, or None when the server says that there is none; raises what else it says.

        Of its data these entries, or all. Nothing else of it is kept, and of all objects no more than MOST. `waiting`:
        who is woken when it comes to be there with all of the `needed` entries.
        """
        place = (kind, key, entries)
        async with self._asking.setdefault(place, asyncio.Lock()):  # many who ask at once are one question
            known = self._known.get(place)
            if known is None or self.now() - known.began >= self.recheck:
                self._forget()
                known = await self._read(place)
        if waiting is not None:
            self._await(place, known, waiting, needed)
        return known.manifest

    async def run(self) -> None:
        """Look for what is missing, until cancelled."""
        while True:
            await asyncio.sleep(ROUND)
            await self.look()

    async def look(self) -> None:
        """Read again what is missing and was not looked for lately, and wake whoever waited for what is there now."""
        now = self.now()
        for place, one in list(self._missing.items()):
            one.asked = {who: asked for who, asked in one.asked.items() if asked[0] > now - WAITED_FOR}
            if not one.asked:
                del self._missing[place]
        due = [place for place, one in self._missing.items() if now - one.looked >= RETRY_AFTER]
        for place in _in_turn(due)[:IN_A_ROUND]:
            one = self._missing.pop(place)
            one.looked, self._missing[place] = now, one  # at the end
            try:
                async with self._asking.setdefault(place, asyncio.Lock()):
                    known = await self._read(place)
            except ClientError as error:
                log.debug("referenced object not read", resource=str(place[0]), error=error.reason)
                continue
            there = [who for who, (_, needed) in one.asked.items() if not _lacks(known.manifest, needed)]
            for who in there:
                del one.asked[who]
                self.wake(*who)

    async def _read(self, place: Place) -> _Reading:
        kind, key, entries = place
        began, found = self.now(), await self.kube_of().find(kind, key)
        kept = _kept(found, entries) if found else None
        reading = self._known[place] = _Reading(began, kept, _size(kept) if kept else 0)
        self._bound()
        return reading

    def _await(self, place: Place, known: _Reading, who: Subject, needed: frozenset[str]) -> None:
        if _lacks(known.manifest, needed):
            self._missing.setdefault(place, _Missing(known.began)).asked[who] = (self.now(), needed)
        elif one := self._missing.get(place):
            one.asked.pop(who, None)

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


def _in_turn(places: Iterable[Place]) -> list[Place]:
    """The first of each namespace, then the second of each: one that lacks thousands holds up no other."""
    turns, ranked = Counter[str](), list[tuple[int, Place]]()
    for place in places:
        namespace = place[1].namespace
        ranked.append((turns[namespace], place))
        turns[namespace] += 1
    return [place for _, place in sorted(ranked, key=lambda one: one[0])]


def _lacks(manifest: Manifest | None, needed: frozenset[str]) -> bool:
    return manifest is None or not needed <= {name for field in DATA for name in manifest.get(field, {})}


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
