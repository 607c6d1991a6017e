"""How much an API server may say: beyond that it is broken, or hostile, and not listened to.

An API server of a workload cluster is somebody else's, and whoever owns it writes its answers. So each of them has a
bound, and so has what is kept of them. The largest honest cluster fits, several times over:

    an object    etcd takes 1.5 MiB, and JSON with `managedFields` at most doubles that
    a page       100 objects: Nodes have some 20 KB, ResourceSlices with their full 128 devices some 60 KB; of larger
                 ones it has fewer, down to one
    a list       5,000 Nodes, as many as Kubernetes supports, have 125 MB; of 1,000 workloads with a megabyte of
                 arguments each hardly anything is kept: so what is kept counts, and what is sent may be more
    what we keep 1,000 replicas have 12 MB of objects and 16 MB of pods; 5,000 Nodes and their slices, cut down, 3 MB
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

KIB, MIB, GIB = 2**10, 2**20, 2**30

HARMLESS = 256 * KIB  # JSON of that size has no room for so many values that they take much memory
BYTES_OF_A_VALUE = 8  # at least, on average: `{},` has 3 and takes 72 when it is read; API objects have some 25
CHARGED_AS_ONE = 32 * KIB  # reading so many bytes more costs about as much as one small event
SPARSE_PAGES = 20
A_TURN = 8  # events after which others have their turn on the loop


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much one API server may say; sizes are in bytes, after inflation."""

    answer: int = 4 * MIB
    """Of an object, alone or in an event of a watch."""
    page: int = 8 * MIB
    listing: int = 256 * MIB
    """Of what is kept of all pages of a list."""
    objects: int = 20_000
    """In a list."""
    kept: int = 64 * MIB
    """Of all objects of the server, as JSON, cut down to what is needed; Python takes some four times that."""
    at_once: int = 100
    """The objects of a page that we ask for."""
    cut: bool = False
    """Whether what is nested deeper than we read is cut off; else whoever sends it misbehaves."""

    @property
    def sent(self) -> int:
        """The same as they are sent, before they are cut down."""
        return 16 * self.listing

    def pages(self, objects: int, at_once: int) -> int:
        """Of a list that has had so many objects, so many at once: a server fills each page but the last, or nearly."""
        return SPARSE_PAGES + 4 * objects // (at_once or self.at_once)


OF_HUB = ServerLimits(
    answer=16 * MIB, page=512 * MIB, listing=8 * GIB, objects=2_000_000, kept=8 * GIB, at_once=500, cut=True
)
"""The hub's own: what its users may write is bounded at admission, and without it nothing goes on anyway."""


def too_many_values(text: bytes | bytearray, limit: int) -> str:
    """What is wrong with JSON of up to `limit` bytes that is made to fill memory when it is read; else nothing."""
    allowed = limit // BYTES_OF_A_VALUE
    if len(text) > HARMLESS and (values := sum(map(text.count, (b",", b"[", b"{")))) > allowed:
        return f"{values} values, and {allowed} are allowed"
    return ""


def shown(size: int) -> str:
    """A size in words."""
    return f"{size / MIB:g} MiB"


@dataclass(slots=True)
class Bucket:
    """Tokens: `burst` at once, and `rate` a second after them."""

    rate: float
    burst: float
    _paid_until: float = field(default=float("-inf"), init=False)

    def take(self, now: float, cost: float = 1.0) -> float:
        """Take some, and answer the moment from which on they are there: now, or later."""
        self._paid_until = max(self._paid_until, now - self.burst / self.rate) + cost / self.rate
        return max(now, self._paid_until)

    def is_full(self, now: float) -> bool:
        return self._paid_until <= now - self.burst / self.rate


@dataclass(slots=True)
class Share:
    """What one API server may take of the event loop, in events.

    Who is beyond that is read more slowly, so that its own network connection fills up, and no memory of ours.
    """

    now: Callable[[], float]
    bucket: Bucket
    _turn: int = field(default=0, init=False)

    def charge(self, events: float) -> float:
        """Take so many events that have been looked at; answers for how long nothing more should be."""
        now = self.now()
        return self.bucket.take(now, events) - now

    async def take(self, size: int, *, events: float = 1.0) -> None:
        """Wait until so many more events, and bytes, may be looked at."""
        wait = self.charge(events + size / CHARGED_AS_ONE)
        self._turn += 1
        if wait > 0 or self._turn >= A_TURN:
            self._turn = 0
            await asyncio.sleep(wait)
