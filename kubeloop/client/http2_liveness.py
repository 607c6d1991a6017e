"""Detects a dead peer of a connection while a response is awaited.

At other times the kernel's keepalive does that at no cost (`sockets.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

ANSWER_SECONDS = 5.0  # for any sign of life after a request, and again after a PING
SUSPICIOUS = 1.0  # seconds of silence after which a cancelled request makes the connection suspect


class Liveness:
    """The liveness of one connection's peer."""

    __slots__ = ("_asked", "_dead", "_listening", "_loop", "_ping", "_pinged", "_timer", "suspect")

    def __init__(self, ping: Callable[[], None], dead: Callable[[], None], listening: Callable[[], bool]) -> None:
        """Set the checks up.

        `ping` sends a PING, `dead` is called for a dead peer, `listening` is False while reading is paused.
        """
        self.suspect = False
        """True if the peer may be dead."""
        self._loop = asyncio.get_running_loop()
        self._ping, self._dead, self._listening = ping, dead, listening
        self._asked: float | None = None
        """The time since which a sign of life is awaited."""
        self._pinged = False
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """Expect a sign of life of the peer."""
        if self._asked is None:
            self._asked = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(ANSWER_SECONDS, self._check_peer)

    def note_sign_of_life(self) -> bool:
        """Note a sign of life; return True if the peer was suspect."""
        was_suspect, self.suspect = self.suspect, False
        self._asked, self._pinged = None, False
        return was_suspect

    def gave_up(self) -> None:
        """Note that a request was cancelled without a response."""
        self.suspect |= self._asked is not None and self._loop.time() - self._asked > SUSPICIOUS

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_peer(self) -> None:
        """Send a PING after a silence, or report the peer as dead after another one."""
        self._timer = None
        if self._asked is None:
            return
        now = self._loop.time()
        if not self._listening():
            self._asked = now
        remaining = self._asked + ANSWER_SECONDS - now
        if remaining <= 0 and self._pinged:
            self._dead()
            return
        if remaining <= 0:
            self._ping()
            self._pinged, self._asked, remaining = True, now, ANSWER_SECONDS
        self._timer = self._loop.call_later(remaining, self._check_peer)
