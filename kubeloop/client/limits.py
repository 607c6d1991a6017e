"""Limits on what an API server may send: a server beyond them is broken or hostile, and is avoided for a while.

The owner of a workload cluster controls the responses of its API server. So every response is limited, and so is what
we keep of them. The largest honest cluster fits several times over:

    an object    etcd takes 1.5 MiB, and JSON with `managedFields` at most doubles that
    a page       100 objects: Nodes have some 20 KB, ResourceSlices with their full 128 devices some 60 KB; of larger
                 objects a page has fewer, down to one
    a list       5,000 Nodes, as many as Kubernetes supports, have 125 MB; of 1,000 workloads with a megabyte of
                 arguments each, little is kept. So the limit is on what is kept, and more may be sent
    a cache      1,000 replicas have 12 MB of objects and 16 MB of pods; 5,000 Nodes and their slices, pruned, 3 MB
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

KIB, MIB, GIB = 2**10, 2**20, 2**30

HARMLESS = 256 * KIB  # JSON up to this size cannot have enough values to take much memory
BYTES_OF_A_VALUE = 8  # minimum average: `{},` has 3 bytes and takes 72 when parsed; API objects have some 25
CHARGED_TOGETHER = 32 * KIB  # reading this many bytes costs about as much as one small event
SPARSE_PAGES = 20  # pages that may be nearly empty
A_TURN = 8  # events after which other tasks may run


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of one API server, in bytes after decompression."""

    answer: int = 4 * MIB
    """The size of an object, alone or in an event of a watch."""
    page: int = 8 * MIB
    """The size of a page of a list."""
    listing: int = 256 * MIB
    """The size of the retained parts of all pages of a list."""
    objects: int = 20_000
    """The number of objects in a list."""
    cached: int = 64 * MIB
    """The size of all cached objects of the server, as pruned JSON; Python needs about four times as much."""
    at_once: int = 100
    """The number of objects that are requested for a page."""
    cut: bool = False
    """True if levels nested too deep are cut off; otherwise they are an offence."""

    @property
    def sent(self) -> int:
        """The size of all pages of a list as they are sent, before objects are pruned."""
        return 16 * self.listing

    def scale(self, factor: float) -> ServerLimits:
        """Return limits this many times as large."""
        values = (self.answer, self.page, self.listing, self.objects, self.cached)
        return ServerLimits(*(int(value * factor) for value in values), at_once=self.at_once, cut=self.cut)

    def pages(self, objects: int, at_once: int) -> int:
        """Return the maximum number of pages of a list with this many objects.

        Servers fill nearly every page but the last.
        """
        return SPARSE_PAGES + 4 * objects // (at_once or self.at_once)


OF_HUB = ServerLimits(
    answer=16 * MIB, page=512 * MIB, listing=8 * GIB, objects=2_000_000, cached=8 * GIB, at_once=500, cut=True
)
"""The limits of the hub. Users' objects are limited at admission, and without the hub nothing works anyway."""


def too_many_values(text: bytes | bytearray, limit: int) -> str:
    """Return a message if JSON has so many values that parsing it would fill memory; otherwise an empty string."""
    allowed = limit // BYTES_OF_A_VALUE
    if len(text) > HARMLESS and (values := sum(map(text.count, (b",", b"[", b"{")))) > allowed:
        return f"{values} values, and {allowed} are allowed"
    return ""


def format_size(size: int) -> str:
    """Return a size as text, in MiB."""
    return f"{size / MIB:g} MiB"


@dataclass(slots=True)
class Bucket:
    """A token bucket: `burst` tokens at once, then `rate` per second."""

    rate: float
    burst: float
    _paid_until: float = field(default=float("-inf"), init=False)
    """The time up to which the supply of tokens is used up."""

    def take(self, now: float, cost: float = 1.0) -> float:
        """Take tokens, and return the time from which they are available: now or later."""
        self._paid_until = max(self._paid_until, now - self.burst / self.rate) + cost / self.rate
        return max(now, self._paid_until)

    def take_now(self, now: float, cost: float = 1.0) -> bool:
        """Take tokens if they are available now. Otherwise take none, and return False."""
        paid_until = max(self._paid_until, now - self.burst / self.rate) + cost / self.rate
        if paid_until > now:
            return False
        self._paid_until = paid_until
        return True

    def is_full(self, now: float) -> bool:
        """True if no token is missing."""
        return self._paid_until <= now - self.burst / self.rate


@dataclass(slots=True)
class Share:
    """The share of the event loop that one API server may take, in events.

    The data of a server beyond its share is read more slowly, so that it waits in the network and not in our memory.
    """

    now: Callable[[], float]
    bucket: Bucket
    _turn: int = field(default=0, init=False)
    """The number of events since other tasks could last run."""

    def charge(self, events: float) -> float:
        """Take the cost of events that were processed, and return the seconds to wait before reading more."""
        now = self.now()
        return self.bucket.take(now, events) - now

    async def take(self, size: int, *, events: float = 1.0) -> None:
        """Wait until this many events and bytes may be processed. Also lets other tasks run after every few events."""
        wait = self.charge(events + size / CHARGED_TOGETHER)
        self._turn += 1
        if wait > 0 or self._turn >= A_TURN:
            self._turn = 0
            await asyncio.sleep(wait)
