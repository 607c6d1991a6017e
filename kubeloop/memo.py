"""Memoization of functions, bounded by bytes.

A number of entries would be no bound where users write the arguments: one may be a thousand times larger than another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from threading import Lock
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CacheInfo(NamedTuple):
    """Statistics as of `functools.lru_cache`, with sizes in bytes."""

    hits: int
    misses: int
    most: int
    size: int


class Remembered(Generic[P, T]):
    """A memoized function of hashable arguments. A result of None is not reused. May be called by several threads.

    Results are kept in two generations, each with half of the bytes. When the young one is full it becomes the old one.
    Results of the old one that are used move to the young one. So a hit is one lookup, and no order has to be
    maintained.
    """

    def __init__(self, function: Callable[P, T], most: int, size: Callable[..., int]) -> None:
        self.__wrapped__ = function
        self._most, self._size = most, size
        self._young: dict[tuple[Any, ...], T] = {}
        self._old: dict[tuple[Any, ...], T] = {}
        self._bytes = self._old_bytes = self._hits = self._misses = 0
        self._lock = Lock()
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the cached result, or compute and cache it."""
        cached = self._young.get(args)
        if cached is None:
            cached = self._old.get(args)
            if cached is None:
                return self.refresh(*args, **kwargs)
            self._keep(args, cached)
        self._hits += 1
        return cached

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Compute the result even if it is cached, and cache it."""
        self._misses += 1
        result = self.__wrapped__(*args, **kwargs)
        self._keep(args, result)
        return result

    def _keep(self, args: tuple[Any, ...], result: T) -> None:
        """Put a result into the young generation, and start a new one when that is full."""
        size = self._size(*args)
        with self._lock:
            if args not in self._young:
                self._bytes += size
            self._young[args] = result
            if self._bytes > self._most // 2:
                self._old, self._old_bytes = self._young, self._bytes
                self._young, self._bytes = {}, 0

    def knows(self, *args: P.args, **_: P.kwargs) -> bool:
        """True if the result is cached."""
        return args in self._young or args in self._old

    def cache_info(self) -> CacheInfo:
        with self._lock:
            return CacheInfo(self._hits, self._misses, self._most, self._bytes + self._old_bytes)

    def cache_clear(self) -> None:
        with self._lock:
            self._young, self._old = {}, {}
            self._bytes = self._old_bytes = self._hits = self._misses = 0


def memoize_bounded(*, most: int, size: Callable[..., int]) -> Callable[[Callable[P, T]], Remembered[P, T]]:
    """Memoize a function within `most` bytes; `size` returns the approximate bytes of a result, given the arguments."""
    return lambda function: Remembered(function, most, size)
