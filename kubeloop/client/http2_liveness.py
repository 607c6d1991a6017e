"""Whether the other side of a connection is still there, as far as somebody waits for it.

While nobody does, the kernel asks it (`sockets.py`), which costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

ANSWER_SECONDS = 5.0  # within which a server that is asked has to say something, and again when a PING asks it to
SUSPICIOUS = 1.0  # silence after which whoever gives up makes others try another connection


class Liveness:
    """Of one connection."""

    __slots__ = ("_asked", "_dead", "_listening", "_loop", "_ping", "_pinged", "_timer", "suspect")

    def __init__(self, ping: Callable[[], None], dead: Callable[[], None], listening: Callable[[], bool]) -> None:
        """`listening`: whether we would hear it."""
        self.suspect = False
        """Whether it is doubtful that the other side is there."""
        self._loop = asyncio.get_running_loop()
        self._ping, self._dead, self._listening = ping, dead, listening
        self._asked: float | None = None
        """Since when we wait for a sign of life."""
        self._pinged = False
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """Expect the other side to say something."""
        if self._asked is None:
            self._asked = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(ANSWER_SECONDS, self._look)

    def heard(self) -> bool:
        """It has said something; whether that was in doubt."""
        doubted, self.suspect = self.suspect, False
        self._asked, self._pinged = None, False
        return doubted

    def gave_up(self) -> None:
        """Somebody waits no longer for what the other side has not said."""
        self.suspect |= self._asked is not None and self._loop.time() - self._asked > SUSPICIOUS

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._asked is None:
            return
        now = self._loop.time()
        if not self._listening():
            self._asked = now
        left = self._asked + ANSWER_SECONDS - now
        if left <= 0 and self._pinged:
            self._dead()
            return
        if left <= 0:
            self._ping()
            self._pinged, self._asked, left = True, now, ANSWER_SECONDS
        self._timer = self._loop.call_later(left, self._look)
