"""The initial sync of a cluster, in a turn that its fleet grants, and later syncs on request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from kubeloop.cache.prober import Prober
from kubeloop.cache.watches import Watches

INITIAL_SYNCS = 16  # clusters that one process lists at once; a thousand at once would all exceed their deadlines
INITIAL_SYNC_SECONDS = 10.0  # until the turn passes to the next cluster, even if this one is not synced
POLL_INTERVAL = 0.05


@dataclass(slots=True)
class InitialSync:
    """The syncs of one cluster. `slots` is shared by the clusters of a fleet and limits concurrent syncs."""

    slots: asyncio.Semaphore
    prober: Prober
    watches: Watches
    _requested: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def ask(self) -> None:
        """Request another sync."""
        self._requested.set()

    async def run(self, begin: Callable[[], Awaitable[None]], resync: Callable[[], None]) -> None:
        """Call `begin` in the first turn and `resync` in each requested one, until cancelled."""
        async with self.slots:
            self._requested.clear()
            await begin()
            await self._wait_until_synced()
        while True:
            await self._requested.wait()
            async with self.slots:
                self._requested.clear()
                resync()
                await self._wait_until_synced()

    async def _wait_until_synced(self) -> None:
        """Wait until the cluster has answered and is synced.

        Gives up on an error, another request, or after the turn's time.
        """
        prober, started_at = self.prober, self.prober.now()
        with suppress(TimeoutError):
            async with asyncio.timeout(INITIAL_SYNC_SECONDS):
                while prober.health.error is None and not self._requested.is_set():
                    contact = prober.health.last_contact
                    if self.watches.synced and contact is not None and contact >= started_at:
                        return
                    await asyncio.sleep(POLL_INTERVAL)
