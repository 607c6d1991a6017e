"""What the proxy has seen: calls numbered as they arrive, records as they finish, and who waits for either."""

import asyncio
import hashlib
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import IO

import orjson

from localfleet.faultproxy.calls import Call, Record


@dataclass(slots=True)
class Ticket:
    """One call on its way: its numbers, and what has become of it so far."""

    seq: int
    mutating_call: int | None
    call: Call
    began: float = field(default_factory=time.time)
    started: float = field(default_factory=time.monotonic)
    status: int | None = None
    outcome: str = "cut by the client"
    events: int | None = None


class Book:
    """Numbers and records. `file` gets one JSON line per finished call."""

    def __init__(self, uncounted: Collection[str], file: IO[bytes] | None, *, bodies: bool) -> None:
        self.records: list[Record] = []
        self.in_flight = 0
        self._uncounted = frozenset(uncounted)
        self._file = file
        self._bodies = bodies
        self._seq = 0
        self._mutating = 0
        self._news = asyncio.Condition()

    @property
    def mutating_calls(self) -> int:
        """How many mutating calls have been numbered."""
        return self._mutating

    def open(self, call: Call) -> Ticket:
        """Number a call that has just arrived."""
        self._seq += 1
        self.in_flight += 1
        counted = call.counted(self._uncounted)
        self._mutating += counted
        return Ticket(self._seq, self._mutating if counted else None, call)

    async def close(self, ticket: Ticket, body: bytes, rules: tuple[int, ...]) -> None:
        """Record a call that is over."""
        self.in_flight -= 1
        record = Record(
            seq=ticket.seq,
            mutating_call=ticket.mutating_call,
            time=ticket.began,
            seconds=round(time.monotonic() - ticket.started, 6),
            call=ticket.call,
            body_bytes=len(body),
            body_sha256=hashlib.sha256(body).hexdigest() if body else "",
            status=ticket.status,
            outcome=ticket.outcome,
            rules=rules,
            events=ticket.events,
            body=body.decode(errors="replace") if self._bodies and body else None,
        )
        self.records.append(record)
        if self._file is not None:
            self._file.write(orjson.dumps(record) + b"\n")
            self._file.flush()
        async with self._news:
            self._news.notify_all()

    async def beyond(self, position: int, seconds: float) -> None:
        """Wait until more than `position` calls are recorded, at most so long."""
        try:
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(lambda: len(self.records) > position)
        except TimeoutError:
            pass

    def reset(self) -> None:
        """Start counting again; what is on its way keeps its old number."""
        self.records.clear()
        self._seq = self._mutating = 0
