"""Quarantine: an object on which the process died twice is left alone, so that it is not each start's end as well.

What a reconcile takes down with it (memory, a hanging loop that a liveness probe ends, a fault in a library) leaves no
error to report. So the keys being reconciled are noted in a file that outlives the process, as an emptyDir does when a
container is started again:

    working    a slot for each reconcile under way, mapped into memory: to note one costs no call and no write
    deaths     the keys that were being reconciled when a process died, and how often; written at a start, and when a
               count changes

A process that ends in good order leaves no slot. After a death, several keys may have been under way, each of them a
suspect: suspects run one at a time from then on, so that the next death has one suspect among its keys. That one has
seen two deaths, and is quarantined until its object is changed. A suspect whose run ends is none any more.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

import orjson
import structlog

from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, annotations_of

SLOTS, SLOT_BYTES = 512, 1024  # 16 workers of each kind; a kind, a namespace, a name and a digest
DEADLY = 2
ALONE_SECONDS = 1.0

log = structlog.get_logger()


class Subject(NamedTuple):
    """An object of a kind, as its author has left it: whoever changes it has another try."""

    kind: str
    key: Key
    state: str


def subject(kind: str, key: Key, manifest: Manifest) -> Subject:
    metadata: Manifest = manifest["metadata"]
    asked = (metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"))
    retry = annotations_of(manifest).get(names().retry)
    return Subject(kind, key, sha256(orjson.dumps((*asked, retry))).hexdigest()[:16])


class Guard(Protocol):
    """What stands between an object and its reconcile."""

    def holds(self, one: Subject) -> bool:
        """Whether the object is left alone."""
        ...

    def reconciling(self, one: Subject) -> AbstractAsyncContextManager[None]:
        """Note that this is being reconciled for as long as the block runs."""
        ...

    def count(self, kind: str) -> int:
        """How many objects of a kind are left alone."""
        ...


class Unguarded:
    """For an operator that nobody gave a place for its record."""

    def holds(self, one: Subject) -> bool:
        del one
        return False

    @asynccontextmanager
    async def reconciling(self, one: Subject) -> AsyncGenerator[None]:
        del one
        yield

    def count(self, kind: str) -> int:
        del kind
        return 0


UNGUARDED = Unguarded()


@dataclass(frozen=True, slots=True)
class _Deaths:
    """How often a process died while this was being reconciled."""

    state: str
    count: int


@dataclass(slots=True)
class Record:
    """The record of one process; made by `recorded`."""

    _slots: mmap.mmap
    _file: Path
    _deaths: dict[tuple[str, Key], _Deaths]
    _free: list[int] = field(default_factory=lambda: [*range(SLOTS)], init=False)
    _one_suspect: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def holds(self, one: Subject) -> bool:
        """Whether the object is left alone; one that was changed since is not, and has no past."""
        known = self._deaths.get(one[:2])
        if known is not None and known.state != one.state:
            self._acquit(one)
            return False
        return known is not None and known.count >= DEADLY

    @asynccontextmanager
    async def reconciling(self, one: Subject) -> AsyncGenerator[None]:
        """Note that this is being reconciled; suspects wait for each other."""
        if one[:2] not in self._deaths:
            with self._noted(one):
                yield
            return
        async with self._alone():
            with self._noted(one):
                yield
        self._acquit(one)

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        """Be the one suspect that runs; a slow one has had its time to do harm and must not hold up the others."""
        turn = self._one_suspect
        await turn.acquire()
        over = asyncio.Event()

        def end() -> None:
            if not over.is_set():
                over.set()
                turn.release()

        timer = asyncio.get_running_loop().call_later(ALONE_SECONDS, end)
        try:
            yield
        finally:
            timer.cancel()
            end()

    def count(self, kind: str) -> int:
        return sum(known.count >= DEADLY for (of, _), known in self._deaths.items() if of == kind)

    @contextmanager
    def _noted(self, one: Subject) -> Generator[None]:
        slot = self._free.pop() if self._free else None
        if slot is None:
            yield
            return
        begin = slot * SLOT_BYTES
        text = orjson.dumps([one.kind, [*one.key], one.state])
        self._slots[begin : begin + len(text)] = text
        try:
            yield
        finally:
            self._slots[begin : begin + SLOT_BYTES] = bytes(SLOT_BYTES)
            self._free.append(slot)

    def _acquit(self, one: Subject) -> None:
        if self._deaths.pop(one[:2], None) is not None:
            try:
                _write(self._file, self._deaths)
            except OSError as error:  # a full disk must not end what a record is there to keep up
                log.warning("record of deaths not written", error=str(error))


@contextmanager
def recorded(folder: Path) -> Generator[Record]:
    """The record in a folder, with what the process before has left there; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    working, file = folder / "working", folder / "deaths"
    deaths = _after_death(_read(file), _left(working))
    _write(file, deaths)
    with working.open("wb") as opened:
        opened.truncate(SLOTS * SLOT_BYTES)
    with working.open("r+b") as opened, mmap.mmap(opened.fileno(), SLOTS * SLOT_BYTES) as slots:
        yield Record(slots, file, deaths)


def _after_death(known: Mapping[tuple[str, Key], _Deaths], left: list[Subject]) -> dict[tuple[str, Key], _Deaths]:
    """The deaths, with those of the keys that the process before was reconciling when it died."""
    deaths = dict(known)
    for one in left:
        before = deaths.get(one[:2])
        again = before is not None and before.state == one.state
        count = (before.count if before and again else 0) + 1
        deaths[one[:2]] = _Deaths(one.state, count)
        log.warning(
            "process died while reconciling", kind=one.kind, key=str(one.key), deaths=count, quarantined=count >= DEADLY
        )
    return deaths


def _left(working: Path) -> list[Subject]:
    """What the slots say; what is no slot, nobody died of."""
    try:
        content = working.read_bytes()
    except FileNotFoundError:
        return []
    texts = (content[begin : begin + SLOT_BYTES].rstrip(b"\0") for begin in range(0, len(content), SLOT_BYTES))
    return [one for one in map(_subject, filter(None, texts)) if one is not None]


def _subject(text: bytes) -> Subject | None:
    try:
        kind, (namespace, name), state = orjson.loads(text)
    except (TypeError, ValueError):  # it died while it wrote that
        return None
    return Subject(str(kind), Key(str(namespace), str(name)), str(state))


def _read(file: Path) -> dict[tuple[str, Key], _Deaths]:
    try:
        rows = orjson.loads(file.read_bytes())
        return {(row["kind"], Key(*row["key"])): _Deaths(row["state"], row["count"]) for row in rows}
    except FileNotFoundError:
        return {}
    except (TypeError, ValueError, KeyError) as error:
        log.warning("record of deaths not readable", error=type(error).__name__)
        return {}


def _write(file: Path, deaths: Mapping[tuple[str, Key], _Deaths]) -> None:
    rows = [{"kind": kind, "key": [*key], **asdict(known)} for (kind, key), known in deaths.items()]
    new = file.with_suffix(".new")
    new.write_bytes(orjson.dumps(rows))
    new.replace(file)
