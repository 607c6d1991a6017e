"""A queue of keys, each worked on by one worker at a time and again when that failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

import aiohttp

from localfleet.errors import FleetError
from localfleet.kubeclient import ApiError

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
RETRY_SECONDS = 0.5


def listed(value: list[Any] | None) -> list[Any]:
    """A list of a manifest, empty where the manifest says nothing."""
    return value or []


class Queue(Generic[K]):
    """Keys to look at. A key that is added while it is being looked at is looked at once more."""

    def __init__(self) -> None:
        self._keys: dict[K, None] = {}
        self._bell = asyncio.Event()

    def add(self, key: K) -> None:
        self._keys[key] = None
        self._bell.set()

    async def work(self, look: Callable[[K], Awaitable[None]]) -> None:
        """Look at keys one after the other, for ever; one that fails comes back after a while."""
        while True:
            while not self._keys:
                self._bell.clear()
                await self._bell.wait()
            key = next(iter(self._keys))
            del self._keys[key]
            try:
                await look(key)
            except (ApiError, FleetError, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("%s: %s; again in %s s", key, error or type(error).__name__, RETRY_SECONDS)
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self.add, key)
