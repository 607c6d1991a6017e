"""The initial sync of a cluster: when its turn has come, and again whenever somebody else may have written there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from kubeloop.cache.prober import Prober
from kubeloop.cache.watches import Watches

INITIAL_SYNCS = 16  # clusters that one process lists at once: a thousand would all run into their deadlines
INITIAL_SYNC_SECONDS = 10.0  # then the next one's turn begins, whatever this one still has to say
POLL_INTERVAL = 0.05


@dataclass(slots=True)
class InitialSync:
    """The turns of one cluster; those of a fleet share the `slots`."""

    slots: asyncio.Semaphore
    prober: Prober
    watches: Watches
    _asked: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def ask(self) -> None:
        """Have it synced once more."""
        self._asked.set()

    async def run(self, begin: Callable[[], Awaitable[None]], resync: Callable[[], None]) -> None:
        """Begin in the first turn, and look again in each that is asked for, until cancelled."""
        async with self.slots:
            self._asked.clear()
            await begin()
            await self._known()
        while True:
            await self._asked.wait()
            async with self.slots:
                self._asked.clear()
                resync()
                await self._known()

    async def _known(self) -> None:
        """Wait until the cluster has answered and all was seen there, or that is not to be expected in this turn."""
        prober, began = self.prober, self.prober.now()
        with suppress(TimeoutError):
            async with asyncio.timeout(INITIAL_SYNC_SECONDS):
                while prober.health.error is None and not self._asked.is_set():
                    contact = prober.health.last_contact
                    if self.watches.synced and contact is not None and contact >= began:
                        return
                    await asyncio.sleep(POLL_INTERVAL)
