"""Answers that are kept because they are asked for again: the last ones, as many as a number of bytes can hold.

A number of entries is no bound where users write what the entries are about: one may be a thousand times another.
"""

from __future__ import annotations

from collections import OrderedDict
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
    """A function of hashable arguments whose last answers are kept; may be called by several threads."""

    def __init__(self, function: Callable[P, T], most: int, size: Callable[..., int]) -> None:
        self.__wrapped__ = function
        self._most, self._size = most, size
        self._kept: OrderedDict[tuple[Any, ...], tuple[T, int]] = OrderedDict()
        self._bytes = self._hits = self._misses = 0
        self._lock = Lock()
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            known = self._kept.get(args)
            if known is not None:
                self._kept.move_to_end(args)
                self._hits += 1
                return known[0]
            self._misses += 1
        answer, size = self.__wrapped__(*args, **kwargs), self._size(*args, **kwargs)
        with self._lock:
            if args not in self._kept:
                self._kept[args] = answer, size
                self._bytes += size
            while self._bytes > self._most and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]
        return answer

    def knows(self, *args: P.args, **_: P.kwargs) -> bool:
        """Whether the answer would come at once."""
        with self._lock:
            return args in self._kept

    def cache_info(self) -> CacheInfo:
        with self._lock:
            return CacheInfo(self._hits, self._misses, self._most, self._bytes)

    def cache_clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = self._hits = self._misses = 0


def remembered(*, most: int, size: Callable[..., int]) -> Callable[[Callable[P, T]], Remembered[P, T]]:
    """Keep the last answers of a function in so many bytes; `size` tells about how many one takes."""
    return lambda function: Remembered(function, most, size)
