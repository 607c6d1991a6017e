"""How much an API server may say: beyond that it is broken, or hostile, and not listened to.

An API server of a workload cluster is somebody else's, and whoever owns it writes its answers. So each of them has a
bound, and so has what is kept of them. The largest honest cluster fits, several times over:

    an object    etcd takes 1.5 MiB, and JSON with `managedFields` at most doubles that
    a page       100 objects: Nodes have some 20 KB, ResourceSlices with their full 128 devices some 60 KB
    a list       5,000 Nodes, as many as Kubernetes supports, have 125 MB
    what we keep 1,000 replicas have 12 MB of objects, 5,000 Nodes and their slices, cut down as they come in, 3 MB
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

KIB, MIB, GIB = 2**10, 2**20, 2**30

CHARGED_AS_ONE = 32 * KIB  # reading so many bytes more costs about as much as one small event
A_TURN = 8  # events after which others have their turn on the loop


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one API server may say; sizes are in bytes, after inflation."""

    answer: int = 4 * MIB
    """Of an object, alone or in an event of a watch."""
    page: int = 8 * MIB
    listing: int = 256 * MIB
    """Of all pages of a list."""
    objects: int = 20_000
    """In a list."""
    at_once: int = 100
    """The objects of a page that we ask for."""

    @property
    def pages(self) -> int:
        """Of a list. A server may end any page early, where it looks for labels, but not each of them."""
        return 4 * self.objects // self.at_once


OF_HUB = Limits(answer=16 * MIB, page=512 * MIB, listing=8 * GIB, objects=2_000_000, at_once=500)
"""The hub's own: what its users may write is bounded at admission, and without it nothing goes on anyway."""


def shown(size: int) -> str:
    """A size in words."""
    return f"{size / MIB:g} MiB"


@dataclass(slots=True)
class Share:
    """What one API server may take of the event loop: `rate` events a second, after a `burst`.

    Who is beyond that is read more slowly, so that its own network connection fills up, and no memory of ours.
    """

    now: Callable[[], float]
    rate: float
    burst: float
    _paid_until: float = field(default=float("-inf"), init=False)
    _turn: int = field(default=0, init=False)

    async def take(self, size: int, *, events: float = 1.0) -> None:
        """Wait until so many more events, and bytes, may be looked at."""
        now, cost = self.now(), events + size / CHARGED_AS_ONE
        self._paid_until = max(self._paid_until, now - self.burst / self.rate) + cost / self.rate
        self._turn += 1
        if (wait := self._paid_until - now) > 0:
            await asyncio.sleep(wait)
        elif self._turn >= A_TURN:
            self._turn = 0
            await asyncio.sleep(0)
