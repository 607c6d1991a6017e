"""Quarantine: an object during whose reconcile the process died twice is left alone, so that it cannot end every start.

A reconcile that kills the process (out of memory, an event loop that hangs until the liveness probe ends it, a fault in
a library) leaves no error to report. So the keys being reconciled are recorded in files that outlive the process, such
as in an emptyDir, which survives restarts of the container:

    working    a slot for each current reconcile, mapped into memory, so that recording one needs no system call
    deaths     the keys that were being reconciled when a process died, and how often; written at the start, and when a
               count changes

A process that ends normally leaves no slot. After a death several keys may have been running, and each is a suspect.
Suspects then run one at a time, so that at the next death only one of the running keys is a suspect. That one has two
deaths, and is quarantined until its object is changed. A key whose run ends is a suspect no longer.
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

SLOTS, SLOT_BYTES = 512, 1024  # enough for 16 workers of each kind; a slot has kind, namespace, name and digest
DEADLY = 2  # deaths until an object is quarantined
ALONE_SECONDS = 1.0  # for which a suspect keeps the other suspects waiting

log = structlog.get_logger()


class Subject(NamedTuple):
    """An object at one state of its spec. A change of the spec makes it another subject, which is tried again."""

    kind: str
    key: Key
    state: str


def subject(kind: str, key: Key, manifest: Manifest) -> Subject:
    """Return the subject for an object: its kind, key, and a digest of uid, generation, deletion and retry
    annotation."""
    metadata: Manifest = manifest["metadata"]
    identity = (metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"))
    retry = annotations_of(manifest).get(names().retry)
    return Subject(kind, key, sha256(orjson.dumps((*identity, retry))).hexdigest()[:16])


class Guard(Protocol):
    """Decides which objects are quarantined, and records which are being reconciled."""

    def holds(self, subject: Subject) -> bool:
        """True if the object is quarantined."""
        ...

    def record_run(self, subject: Subject) -> AbstractAsyncContextManager[None]:
        """Record the object as being reconciled while the block runs."""
        ...

    def count(self, kind: str) -> int:
        """Return the number of quarantined objects of a kind."""
        ...


class Unguarded:
    """A guard without a record, for an operator that has no directory for it."""

    def holds(self, subject: Subject) -> bool:
        del subject
        return False

    @asynccontextmanager
    async def record_run(self, subject: Subject) -> AsyncGenerator[None]:
        del subject
        yield

    def count(self, kind: str) -> int:
        del kind
        return 0


UNGUARDED = Unguarded()


@dataclass(frozen=True, slots=True)
class _Deaths:
    """The number of process deaths during reconciles of an object in one state."""

    state: str
    count: int


@dataclass(slots=True)
class Record:
    """The record of one process; created by `open_record`."""

    _slots: mmap.mmap
    _file: Path
    _deaths: dict[tuple[str, Key], _Deaths]
    _free: list[int] = field(default_factory=lambda: [*range(SLOTS)], init=False)
    _single_suspect: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def holds(self, subject: Subject) -> bool:
        """True if the object is quarantined. The count of an object that was changed since is dropped."""
        deaths = self._deaths.get(subject[:2])
        if deaths is not None and deaths.state != subject.state:
            self._clear_deaths(subject)
            return False
        return deaths is not None and deaths.count >= DEADLY

    @asynccontextmanager
    async def record_run(self, subject: Subject) -> AsyncGenerator[None]:
        """Record the object as being reconciled while the block runs. Suspects run one at a time."""
        if subject[:2] not in self._deaths:
            with self._hold_slot(subject):
                yield
            return
        async with self._run_alone():
            with self._hold_slot(subject):
                yield
        self._clear_deaths(subject)

    @asynccontextmanager
    async def _run_alone(self) -> AsyncGenerator[None]:
        """Hold the lock for suspects, at most for `ALONE_SECONDS`: a slow run has had time to do harm and must not
        block others."""
        lock = self._single_suspect
        await lock.acquire()
        released = asyncio.Event()

        def release() -> None:
            if not released.is_set():
                released.set()
                lock.release()

        timer = asyncio.get_running_loop().call_later(ALONE_SECONDS, release)
        try:
            yield
        finally:
            timer.cancel()
            release()

    def count(self, kind: str) -> int:
        """Return the number of quarantined objects of a kind."""
        return sum(deaths.count >= DEADLY for (dead_kind, _), deaths in self._deaths.items() if dead_kind == kind)

    @contextmanager
    def _hold_slot(self, subject: Subject) -> Generator[None]:
        """Keep the subject in a slot while the block runs; without a free slot it is not recorded."""
        slot = self._free.pop() if self._free else None
        if slot is None:
            yield
            return
        begin = slot * SLOT_BYTES
        text = orjson.dumps([subject.kind, [*subject.key], subject.state])
        self._slots[begin : begin + len(text)] = text
        try:
            yield
        finally:
            self._slots[begin : begin + SLOT_BYTES] = bytes(SLOT_BYTES)
            self._free.append(slot)

    def _clear_deaths(self, subject: Subject) -> None:
        """Remove the deaths of a subject from the record."""
        if self._deaths.pop(subject[:2], None) is not None:
            try:
                _write_deaths(self._file, self._deaths)
            except OSError as error:  # a full disk must not end the process that the record protects
                log.warning("record of deaths not written", error=str(error))


@contextmanager
def open_record(folder: Path) -> Generator[Record]:
    """Open the record in a folder, and count the deaths that the previous process left there; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    working, file = folder / "working", folder / "deaths"
    deaths = _count_deaths(_read_deaths(file), _read_slots(working))
    _write_deaths(file, deaths)
    with working.open("wb") as opened:
        opened.truncate(SLOTS * SLOT_BYTES)
    with working.open("r+b") as opened, mmap.mmap(opened.fileno(), SLOTS * SLOT_BYTES) as slots:
        yield Record(slots, file, deaths)


def _count_deaths(
    old_deaths: Mapping[tuple[str, Key], _Deaths], interrupted: list[Subject]
) -> dict[tuple[str, Key], _Deaths]:
    """Return the deaths with one added for each subject that the previous process was reconciling when it died."""
    deaths = dict(old_deaths)
    for item in interrupted:
        old = deaths.get(item[:2])
        is_unchanged = old is not None and old.state == item.state
        count = (old.count if old and is_unchanged else 0) + 1
        deaths[item[:2]] = _Deaths(item.state, count)
        log.warning(
            "process died while reconciling",
            kind=item.kind,
            key=str(item.key),
            deaths=count,
            quarantined=count >= DEADLY,
        )
    return deaths


def _read_slots(working: Path) -> list[Subject]:
    """Return the subjects in the slots of the previous process; unreadable slots are skipped."""
    try:
        content = working.read_bytes()
    except FileNotFoundError:
        return []
    texts = (content[begin : begin + SLOT_BYTES].rstrip(b"\0") for begin in range(0, len(content), SLOT_BYTES))
    return [subject for subject in map(_parse_slot, filter(None, texts)) if subject is not None]


def _parse_slot(text: bytes) -> Subject | None:
    """Parse the content of a slot; None if it is not readable."""
    try:
        kind, (namespace, name), state = orjson.loads(text)
    except (TypeError, ValueError):  # the process died while it wrote the slot
        return None
    return Subject(str(kind), Key(str(namespace), str(name)), str(state))


def _read_deaths(file: Path) -> dict[tuple[str, Key], _Deaths]:
    """Read the deaths from the file; empty if there is none or it is not readable."""
    try:
        rows = orjson.loads(file.read_bytes())
        return {(row["kind"], Key(*row["key"])): _Deaths(row["state"], row["count"]) for row in rows}
    except FileNotFoundError:
        return {}
    except (TypeError, ValueError, KeyError) as error:
        log.warning("record of deaths not readable", error=type(error).__name__)
        return {}


def _write_deaths(file: Path, deaths: Mapping[tuple[str, Key], _Deaths]) -> None:
    """Replace the file of deaths atomically."""
    rows = [{"kind": kind, "key": [*key], **asdict(counted)} for (kind, key), counted in deaths.items()]
    new = file.with_suffix(".new")
    new.write_bytes(orjson.dumps(rows))
    new.replace(file)
