"""Answers that are kept because they are asked for again: the last ones, as many as a number of bytes can hold.

A number of entries is no bound where users write what the entries are about: one may be a thousand times another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from threading import Lock
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CacheInfo(NamedTuple):
    """As of `functools.lru_cache`, but in bytes."""

    hits: int
    misses: int
    most: int
    size: int


class Remembered(Generic[P, T]):
    """A function of hashable arguments whose last answers are kept; may be called by several threads.

    They are kept in two generations. Each has room for half of the bytes; when the new one is full it becomes the old
    one, and of the old one what was asked for again is in the new one already. So a hit is one look, and no order has
    to be kept.
    """

    def __init__(self, function: Callable[P, T], most: int, size: Callable[..., int]) -> None:
        self.__wrapped__ = function
        self._most, self._size = most, size
        self._new: dict[tuple[Any, ...], T] = {}
        self._old: dict[tuple[Any, ...], T] = {}
        self._bytes = self._old_bytes = self._hits = self._misses = 0
        self._lock = Lock()
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        known = self._new.get(args)
        if known is None:
            known = self._old.get(args)
            if known is None:
                return self.anew(*args, **kwargs)
            self._keep(args, known)
        self._hits += 1
        return known

    def anew(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The answer, worked out whatever is remembered, and remembered."""
        self._misses += 1
        answer = self.__wrapped__(*args, **kwargs)
        self._keep(args, answer)
        return answer

    def _keep(self, args: tuple[Any, ...], answer: T) -> None:
        size = self._size(*args)
        with self._lock:
            if args not in self._new:
                self._bytes += size
            self._new[args] = answer
            if self._bytes > self._most // 2:
                self._old, self._old_bytes = self._new, self._bytes
                self._new, self._bytes = {}, 0

    def knows(self, *args: P.args, **_: P.kwargs) -> bool:
        """Whether the answer would come at once."""
        return args in self._new or args in self._old

    def cache_info(self) -> CacheInfo:
        with self._lock:
            return CacheInfo(self._hits, self._misses, self._most, self._bytes + self._old_bytes)

    def cache_clear(self) -> None:
        with self._lock:
            self._new, self._old = {}, {}
            self._bytes = self._old_bytes = self._hits = self._misses = 0


def remembered(*, most: int, size: Callable[..., int]) -> Callable[[Callable[P, T]], Remembered[P, T]]:
    """Keep the last answers of a function in so many bytes; `size` tells about how many one takes."""
    return lambda function: Remembered(function, most, size)
