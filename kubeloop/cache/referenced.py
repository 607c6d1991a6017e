"""Reads the Secrets and ConfigMaps that users reference, one by one.

The operator may get them by name, but neither list nor watch them, because it must not hold every Secret of the hub. A
read is reused for a while. Missing objects are read again every few seconds, once for all objects that wait for them,
and those are enqueued when the missing object exists. Of objects that a caller follows, the metadata are read as often,
and their users are enqueued when they have changed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from kubeloop.client.kube import BARE, Kube
from kubeloop.client.limits import MIB
from kubeloop.client.wire import Request
from kubeloop.errors import ClientError, NotFound
from kubeloop.objects import Key, Manifest, section
from kubeloop.types import ResourceType

MOST: Final = 64 * MIB  # of cached data
FIELDS: Final = ("apiVersion", "kind", "type")
DATA: Final = ("data", "binaryData")

RETRY_AFTER: Final = 5.0  # seconds between two reads of a missing object
ROUND: Final = 1.0  # seconds between two rounds of such reads
IN_A_ROUND: Final = 20  # reads: a tenant may reference thousands of Secrets that do not exist, and as many that do
WAITED_FOR: Final = 1200.0  # seconds after which an object that has not asked again no longer waits

Place = tuple[ResourceType, Key, frozenset[str] | None]
"""The type, the key and the entries (None for all) that a read is cached by."""
Subject = tuple[ResourceType, Key]
"""An object of the hub that references another one."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Reading:
    """A cached read: when it began, the object or None, and the size of its data in bytes."""

    began: float
    manifest: Manifest | None
    size: int
    version: str
    """The object's resourceVersion; empty without an object."""


@dataclass(slots=True)
class _Missing:
    """A missing object: the time of its last read, and for each waiting object the time of its request and its
    entries."""

    looked: float
    requested_at: dict[Subject, tuple[float, frozenset[str]]] = field(
        default_factory=dict[Subject, tuple[float, frozenset[str]]]
    )


@dataclass(slots=True)
class _Followed:
    """A followed object: its last known version, the time of its last read, and when each subject last asked for it."""

    version: str
    looked: float
    requested_at: dict[Subject, float] = field(default_factory=dict[Subject, float])


def ignore_arrival(_: ResourceType, __: Key) -> None:
    """Ignore that a missing object exists now: the caller asks again by itself."""


@dataclass(slots=True)
class ReferencedObjects:
    """The objects that users reference.

    A caller that asks every `recheck` seconds learns of a change within `lifetime`.

    `run` looks for missing and followed objects, and calls `wake` with each object that waited for one that exists now,
    or follows one that has changed.
    """

    kube_of: Callable[[], Kube]
    now: Callable[[], float]
    lifetime: float
    wake: Callable[[ResourceType, Key], None] = ignore_arrival
    _cached: dict[Place, _Reading] = field(default_factory=dict[Place, _Reading], init=False)
    _asking: dict[Place, asyncio.Lock] = field(default_factory=dict[Place, asyncio.Lock], init=False)
    _missing: dict[Place, _Missing] = field(default_factory=dict[Place, _Missing], init=False)
    """The missing objects, ordered by the time of the last read."""
    _followed: dict[tuple[ResourceType, Key], _Followed] = field(
        default_factory=dict[tuple[ResourceType, Key], _Followed], init=False
    )
    """The followed objects, ordered by the time of the last read."""

    @property
    def recheck(self) -> float:
        """The seconds for which a read is reused.

        Two of these are the lifetime, as a read may be that old when it is reused.
        """
        return self.lifetime / 2

    async def find(
        self,
        kind: ResourceType,
        key: Key,
        entries: frozenset[str] | None = None,
        *,
        waiting: Subject | None = None,
        needed: frozenset[str] = frozenset(),
        follow: bool = False,
    ) -> Manifest | None:
        """Return the object, or None if the server says that it does not exist.

        Raises ClientError for any other response.

        Only the requested entries of its data are kept (None for all), and at most MOST bytes of all objects. `waiting`
        is enqueued when the object exists with all of the `needed` entries; with `follow` also whenever it changes or
        is deleted.
        """
        cache_key = (kind, key, entries)
        async with self._asking.setdefault(cache_key, asyncio.Lock()):  # concurrent callers share one read
            cached = self._cached.get(cache_key)
            if cached is None or self.now() - cached.began >= self.recheck:
                self._evict_expired()
                cached = await self._read(cache_key)
        if waiting is not None and follow:
            followed = self._followed.setdefault((kind, key), _Followed(cached.version, cached.began))
            followed.version, followed.requested_at[waiting] = cached.version, self.now()
        if waiting is not None and _is_missing(cached.manifest, needed):
            self._missing.setdefault(cache_key, _Missing(cached.began)).requested_at[waiting] = (self.now(), needed)
        elif waiting is not None and (missing := self._missing.get(cache_key)):
            missing.requested_at.pop(waiting, None)
        return cached.manifest

    async def run(self) -> None:
        """Look for missing objects until cancelled."""
        while True:
            await asyncio.sleep(ROUND)
            await self.refresh_missing()
            await self.refresh_followed()

    async def refresh_followed(self) -> None:
        """Read the metadata of followed objects, each every `RETRY_AFTER` seconds at most, and enqueue those that
        follow a changed one."""
        now = self.now()
        for place, followed in list(self._followed.items()):
            followed.requested_at = {
                subject: at for subject, at in followed.requested_at.items() if at > now - WAITED_FOR
            }
            if not followed.requested_at:
                del self._followed[place]
        due = [(*place, None) for place, item in self._followed.items() if now - item.looked >= RETRY_AFTER]
        for kind, key, _ in _round_robin(due)[:IN_A_ROUND]:
            followed = self._followed.pop((kind, key))
            followed.looked, self._followed[kind, key] = now, followed  # at the end
            try:
                version = await self._read_version(kind, key)
            except ClientError as error:
                log.debug("referenced object not read", resource=str(kind), error=error.reason)
                continue
            if version == followed.version:
                continue
            followed.version = version
            self._cached = {place: reading for place, reading in self._cached.items() if place[:2] != (kind, key)}
            for subject in followed.requested_at:
                self.wake(*subject)

    async def _read_version(self, kind: ResourceType, key: Key) -> str:
        """Return the resourceVersion of an object, from its metadata alone; empty if it does not exist."""
        operation = f"get {kind} {key.name}"
        request = Request("get", str(kind), "GET", kind.path(key.namespace, key.name), accept=BARE)
        try:
            metadata = await self.kube_of().answer(request, operation=operation)
        except NotFound:
            return ""
        return str(section(metadata, "metadata").get("resourceVersion", ""))

    async def refresh_missing(self) -> None:
        """Read missing objects again, each every `RETRY_AFTER` seconds at most, and enqueue those that waited for an
        existing one."""
        now = self.now()
        for cache_key, missing in list(self._missing.items()):
            missing.requested_at = {
                subject: request for subject, request in missing.requested_at.items() if request[0] > now - WAITED_FOR
            }
            if not missing.requested_at:
                del self._missing[cache_key]
        due = [cache_key for cache_key, missing in self._missing.items() if now - missing.looked >= RETRY_AFTER]
        for cache_key in _round_robin(due)[:IN_A_ROUND]:
            missing = self._missing.pop(cache_key)
            missing.looked, self._missing[cache_key] = now, missing  # at the end
            try:
                async with self._asking.setdefault(cache_key, asyncio.Lock()):
                    reading = await self._read(cache_key)
            except ClientError as error:
                log.debug("referenced object not read", resource=str(cache_key[0]), error=error.reason)
                continue
            satisfied = [
                subject
                for subject, (_, needed) in missing.requested_at.items()
                if not _is_missing(reading.manifest, needed)
            ]
            for subject in satisfied:
                del missing.requested_at[subject]
                self.wake(*subject)

    async def _read(self, cache_key: Place) -> _Reading:
        """Read an object from the server and cache the needed part of it."""
        kind, key, entries = cache_key
        started_at, existing = self.now(), await self.kube_of().find(kind, key)
        data = _select_data(existing, entries) if existing else None
        size = sum(len(name) + len(value) for field in DATA for name, value in (data or {}).get(field, {}).items())
        version = existing["metadata"]["resourceVersion"] if existing else ""
        reading = self._cached[cache_key] = _Reading(started_at, data, size, version)
        cached_size = sum(cached.size for cached in self._cached.values())
        while cached_size > MOST and len(self._cached) > 1:  # drop the oldest reads, which are repeated when needed
            oldest = min(self._cached, key=lambda cache_key: self._cached[cache_key].began)
            cached_size -= self._cached.pop(oldest).size
        return reading

    def _evict_expired(self) -> None:
        """Drop reads that are too old to be reused."""
        oldest = self.now() - self.recheck
        self._cached = {cache_key: reading for cache_key, reading in self._cached.items() if reading.began > oldest}
        self._asking = {
            cache_key: lock for cache_key, lock in self._asking.items() if cache_key in self._cached or lock.locked()
        }


def _round_robin(cache_keys: Iterable[Place]) -> list[Place]:
    """Order by round robin over namespaces, so that one with thousands of missing objects delays no other."""
    counts, ranked = Counter[str](), list[tuple[int, Place]]()
    for cache_key in cache_keys:
        namespace = cache_key[1].namespace
        ranked.append((counts[namespace], cache_key))
        counts[namespace] += 1
    return [cache_key for _, cache_key in sorted(ranked, key=lambda item: item[0])]


def _is_missing(manifest: Manifest | None, needed: frozenset[str]) -> bool:
    """True if the object does not exist or lacks needed entries."""
    return manifest is None or not needed <= {name for field in DATA for name in manifest.get(field, {})}


def _select_data(existing: Manifest, entries: frozenset[str] | None) -> Manifest:
    """Return the identity of an object and the requested entries of its data."""
    metadata = {name: existing["metadata"].get(name) for name in ("name", "namespace", "uid")}
    data = {
        field: {name: value for name, value in existing[field].items() if entries is None or name in entries}
        for field in DATA
        if existing.get(field)
    }
    return {**{name: existing[name] for name in FIELDS if name in existing}, "metadata": metadata, **data}
