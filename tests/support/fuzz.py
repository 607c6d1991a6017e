"""A search for input that costs: what a parser reads is changed, and what costs most for its size is changed again.

An input is a list of parts (frames, tokens of JSON), so that mutations keep its form, and `join` makes bytes of them.
What counts is the CPU time of the longest turn of the event loop, which a fixed piece of work measures for the machine.
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from asyncio import events
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

Parts = tuple[bytes, ...]

MIB = 2**20
TURN = 0.2
"""Seconds of the loop that no input of a megabyte may take at once, on a machine with the pace below."""
PACE = 0.06
"""Seconds that the fixed piece of work takes on that machine."""
MEMORY = 96 * MIB
"""What may be taken while a megabyte is read: honest JSON takes some ten times its size as Python objects."""
SIZES = (2_000, 2_000, 16_000, 16_000, 128_000, MIB)
KEPT, FEW = 12, 3
TRIES_AGAIN = 4


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser of bytes that others send."""

    name: str
    read: Callable[[bytes], Awaitable[object] | object]
    """Reads an input as the operator does; raises nothing that the operator does not take for an answer."""
    seeds: Sequence[Parts]
    words: Parts
    """Parts that mean something to the parser."""
    join: Callable[[Parts], bytes] = b"".join
    turns: bool = True
    """Whether it runs on the event loop; of others the memory alone counts."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one input has cost."""

    parts: Parts
    size: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.seconds / (self.size + 20_000)  # each reading costs some, however short


class CostError(AssertionError):
    """An input costs more than it may."""


def pace() -> float:
    """Return how many seconds a fixed piece of work takes now: the least of some attempts, as others disturb it."""

    def work() -> float:
        began, total, known = time.thread_time(), 0, dict[int, str]()
        for number in range(150_000):
            known[number & 1023] = str(number)
            total += len(known.get(number >> 3 & 1023, ""))
        return time.thread_time() - began

    return min(work() for _ in range(3))


@contextmanager
def longest_turn() -> Iterator[Callable[[], float]]:
    """Yield what returns the CPU seconds of the longest turn of any event loop of this thread so far."""
    run, longest = events.Handle._run, 0.0

    def timed(handle: events.Handle) -> None:
        nonlocal longest
        began = time.thread_time()
        run(handle)
        longest = max(longest, time.thread_time() - began)

    events.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield lambda: longest
    finally:
        events.Handle._run = run  # type: ignore[method-assign]


class HostileWire(asyncio.Transport):
    """A connection over TLS that speaks HTTP/2, as a protocol sees it; the other side reads nothing."""

    closed = paused = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        del name, default
        return self

    def selected_alpn_protocol(self) -> str:
        return "h2"

    def write(self, data: object) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def is_reading(self) -> bool:
        return not self.paused

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


async def cost(parser: Parser, parts: Parts) -> Cost:
    """Read an input, and return what its longest turn has cost."""
    data = parser.join(parts)
    with longest_turn() as longest:
        await asyncio.create_task(_read(parser, data))
        return Cost(parts, len(data), longest())


async def _read(parser: Parser, data: bytes) -> None:
    if (waiting := parser.read(data)) is not None and hasattr(waiting, "__await__"):
        await waiting  # pyright: ignore[reportGeneralTypeIssues]


async def check(parser: Parser, parts: Parts, allowed: float) -> None:
    """Raise CostError where an input takes more of the loop each time, or more memory, than it may."""
    data = parser.join(parts)
    allowed *= max(1.0, len(data) / MIB)
    if parser.turns:
        seconds = min([(await cost(parser, parts)).seconds for _ in range(TRIES_AGAIN)])
        if seconds > allowed:
            raise CostError(_words(parser, data, f"{seconds * 1000:.0f} ms of the loop at once", allowed))
    tracemalloc.start()
    try:
        await _read(parser, data)
        if (peak := tracemalloc.get_traced_memory()[1]) > MEMORY:
            raise CostError(_words(parser, data, f"{peak / MIB:.0f} MiB of memory", allowed))
    finally:
        tracemalloc.stop()


def _words(parser: Parser, data: bytes, what: str, allowed: float) -> str:
    some = f"{data[:120]!r} ... {data[len(data) // 2 : len(data) // 2 + 120]!r} ... {data[-60:]!r}"
    bounds = f"{allowed * 1000:.0f} ms and {MEMORY // MIB} MiB are allowed"
    return f"{parser.name}: {len(data)} bytes take {what}; {bounds}: {some}"


async def search(parser: Parser, seconds: float, chance: Random) -> Cost:
    """Look for the input that costs most, for so long; return it. Raises CostError."""
    allowed = TURN * pace() / PACE
    best = [await cost(parser, seed) for seed in parser.seeds]
    until, worst = time.monotonic() + seconds, max(best, key=lambda one: one.seconds)
    while time.monotonic() < until:
        parts = mutated(chance.choice(best).parts, parser, chance)
        found = await cost(parser, parts)
        if parser.turns and found.seconds > allowed:
            await check(parser, parts, allowed)
        worst = max(worst, found, key=lambda one: one.seconds)
        best = sorted([*best, found], key=lambda one: -one.rate)[:KEPT]
    for one in best[:FEW]:
        await check(parser, _grown(one.parts, parser, MIB, chance), allowed)
    return worst


def mutated(parts: Parts, parser: Parser, chance: Random) -> Parts:
    """Return an input like this one, of at most a megabyte."""
    made = list(parts)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        end = min(len(made), at + chance.choice((1, 1, 2, 4, 16)))
        match chance.randrange(7):
            case 0:
                made[at:at] = [chance.choice(parser.words)]
            case 1:
                del made[at:end]
            case 2:
                made[at:end] = made[at:end] * chance.choice((2, 3, 16, 200))
            case 3:
                other = chance.choice(parser.seeds)
                begin = chance.randrange(len(other) + 1)
                made[at:at] = other[begin : begin + 8]
            case 4 if made[at:end]:
                made[at] = _scrambled(made[at], chance)
            case 5 if made[at:end]:
                made[at] = made[at] * chance.choice((2, 10, 1_000))
            case _:
                made[at:end] = [chance.choice(parser.words) for _ in made[at:end]]
    limit = chance.choice(SIZES)
    return _grown(tuple(made), parser, limit, chance) if chance.random() < 0.3 else _cut(tuple(made), limit)


def _scrambled(part: bytes, chance: Random) -> bytes:
    made = bytearray(part or b"\0")
    for _ in range(chance.choice((1, 1, 3))):
        made[chance.randrange(len(made))] = chance.choice((0, 1, 0x22, 0x30, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(made)


def _grown(parts: Parts, parser: Parser, size: int, chance: Random) -> Parts:
    """Return the input with some of its parts as often as there is room for them."""
    if not parts:
        return parser.seeds[0]
    at = chance.randrange(len(parts))
    some = parts[at : at + chance.choice((1, 2, 4, 16, len(parts)))]
    times = max(1, (size - sum(map(len, parts))) // max(1, sum(map(len, some))))
    return _cut((*parts[:at], *some * min(times, size), *parts[at + len(some) :]), size)


def _cut(parts: Parts, size: int) -> Parts:
    left, kept = size, list[bytes]()
    for part in parts:
        left -= len(part) + 1
        if left < 0:
            break
        kept.append(part)
    return tuple(kept)


def json_of(tokens: Parts) -> bytes:
    """Return JSON that has these tokens in this order: what its grammar lacks is added. A line break ends a document.

    Of each eighth the tokens are returned as they are: parsers have to refuse what is no JSON, too.
    """
    if len(tokens) % 8 == 7:
        return b"".join(tokens)
    made, ends, keyed = list[bytes](), list[bytes](), False
    done = False
    for token in tokens:
        if token == b"\n":
            made += [b"null"] if keyed else []
            made += [*reversed(ends), token]
            ends, keyed, done = [], False, False
        elif done or token in b",:":
            continue
        elif token in (b"}", b"]"):
            if ends:
                made += [b"null"] if keyed else []
                made.append(ends.pop())
                keyed, done = False, not ends
        else:
            if not keyed and ends and made[-1] not in (b"{", b"["):
                made.append(b",")
            if ends and ends[-1] == b"}" and not keyed:
                is_key = token.startswith(b'"')
                made += [token if is_key else b'"a"', b":"]
                keyed = True
                if is_key:
                    continue
            made.append(token)
            keyed = False
            if token in (b"{", b"["):
                ends.append(b"}" if token == b"{" else b"]")
            done = not ends
    made += [b"null"] if keyed else []
    return b"".join((*made, *reversed(ends)))
