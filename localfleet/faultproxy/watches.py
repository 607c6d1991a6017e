"""Watch streams: passed on event by event, and held, thinned, broken or declared too old as rules say."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto

import orjson

from localfleet.faultproxy.calls import Call
from localfleet.faultproxy.rules import ActiveRule, CloseWatch, HoldEvents, InjectGone, OmitEvents, Rules

Write = Callable[[bytes], Awaitable[None]]

GONE = orjson.dumps(
    {
        "type": "ERROR",
        "object": {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "too old resource version (said by the fault proxy)",
            "reason": "Expired",
            "code": 410,
        },
    }
)
QUEUED_EVENTS = 10_000


class Mark(Enum):
    """What a stream's queue carries besides events."""

    RULES_CHANGED = auto()
    UPSTREAM_ENDED = auto()


@dataclass(slots=True)
class Watches:
    """The open watch streams, to be woken when the rules change."""

    open: set[asyncio.Queue[bytes | Mark]] = field(default_factory=set[asyncio.Queue[bytes | Mark]])

    def wake(self) -> None:
        """Let every stream look at the rules again."""
        for queue in self.open:
            if not queue.full():  # a full queue means that the stream is about to look anyway
                queue.put_nowait(Mark.RULES_CHANGED)


@dataclass(slots=True)
class _Hold:
    events: list[bytes] = field(default_factory=list[bytes])
    since: float = 0.0


async def relay(
    source: AsyncIterator[bytes], write: Write, call: Call, rules: Rules, watches: Watches
) -> tuple[int, str]:
    """Pass a watch on until either side ends it; answer how many events the client got and why it ended."""
    queue: asyncio.Queue[bytes | Mark] = asyncio.Queue(QUEUED_EVENTS)
    watches.open.add(queue)
    reader = asyncio.ensure_future(_read(source, queue))
    try:
        return await _relay(queue, write, call, rules)
    finally:
        watches.open.discard(queue)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _read(source: AsyncIterator[bytes], queue: asyncio.Queue[bytes | Mark]) -> None:
    try:
        async for line in source:
            await queue.put(line)
    finally:
        await queue.put(Mark.UPSTREAM_ENDED)


async def _relay(queue: asyncio.Queue[bytes | Mark], write: Write, call: Call, rules: Rules) -> tuple[int, str]:
    opened = time.monotonic()
    held = _Hold()
    sent, ended = 0, False
    while True:
        now = time.monotonic()
        active = rules.for_watch(call)
        if gone := _first(active, InjectGone):
            gone.fired += 1
            await write(GONE + b"\n")
            return sent, "declared gone"
        closers = [
            (opened + rule.rule.action.seconds, rule) for rule in active if isinstance(rule.rule.action, CloseWatch)
        ]
        if closers and now >= min(closers, key=_when)[0]:
            min(closers, key=_when)[1].fired += 1
            return sent, "closed by a rule"
        release_at = _release_at(held, _first(active, HoldEvents))
        if held.events and release_at is not None and now >= release_at:
            await write(b"".join(held.events))
            sent, held = sent + len(held.events), _Hold()
        if ended and not held.events:
            return sent, "ended by the server"
        try:
            async with asyncio.timeout_at(_loop_time(now, [release_at, *(when for when, _ in closers)])):
                item = await queue.get()
        except TimeoutError:
            continue
        match item:
            case Mark.RULES_CHANGED:
                pass
            case Mark.UPSTREAM_ENDED:
                ended = True
            case bytes():
                active = rules.for_watch(call)
                if _omitted(item, active):
                    continue
                if holding := _first(active, HoldEvents):
                    holding.fired += not held.events
                    held.since = held.since or time.monotonic()
                    held.events.append(item + b"\n")
                else:
                    await write(b"".join(held.events) + item + b"\n")
                    sent, held = sent + len(held.events) + 1, _Hold()


def _first(active: list[ActiveRule], kind: type) -> ActiveRule | None:
    return next((rule for rule in active if isinstance(rule.rule.action, kind)), None)


def _when(closer: tuple[float, ActiveRule]) -> float:
    return closer[0]


def _release_at(held: _Hold, holding: ActiveRule | None) -> float | None:
    """When held events go: at once without a rule that holds them, never (None) under one without an end."""
    if not held.events:
        return None
    if holding is None or not isinstance(holding.rule.action, HoldEvents):
        return 0.0
    seconds = holding.rule.action.seconds
    return None if seconds is None else held.since + seconds


def _loop_time(now: float, moments: list[float | None]) -> float | None:
    """The first of some moments of the monotonic clock, on the event loop's clock."""
    known = [moment for moment in moments if moment is not None]
    return asyncio.get_running_loop().time() + max(0.0, min(known) - now) if known else None


def _omitted(line: bytes, active: list[ActiveRule]) -> bool:
    thinning = [rule for rule in active if isinstance(rule.rule.action, OmitEvents)]
    if not thinning or not line:
        return False
    event = orjson.loads(line)
    for rule in thinning:
        action = rule.rule.action
        assert isinstance(action, OmitEvents)  # noqa: S101 - chosen above
        kinds = action.types or ("ADDED", "MODIFIED", "DELETED")
        if event["type"] in kinds and action.name in (None, event["object"]["metadata"].get("name")):
            rule.fired += 1
            return True
    return False
