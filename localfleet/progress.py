"""How far a build is, and how long the rest will take: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

HEARTBEAT = 20.0  # seconds between plain lines while nothing ends
POLL_INTERVAL = 0.5
NEARLY = 0.95  # of its work is the most that counts as done of a part that has not ended
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, eq=False)
class Part:
    """One part of a build: the programs of one Go module share almost all of their compilation."""

    title: str
    work: float
    """The processor seconds that it is expected to take."""
    started: float | None = None
    ended: float | None = None
    note: str = "waiting"
    future: Future[None] = field(default_factory=Future[None])
    spent: float = 0.0
    """The processor seconds that its compilers have used, as of the last look."""
    _compiler: int | None = None

    @property
    def elapsed(self) -> float:
        return 0.0 if self.started is None else (self.ended or time.monotonic()) - self.started

    def follow(self, compiler: int) -> None:
        """Count the processor time of this process and its children from now on."""
        self._compiler = compiler

    def look(self) -> None:
        """Read the processor time so far: of compilers that have ended, the kernel counts it to their parent."""
        if self._compiler is None:
            return
        try:
            _, _, fields = Path(f"/proc/{self._compiler}/stat").read_text().rpartition(")")
        except OSError:  # it has ended
            return
        self.spent = max(self.spent, sum(map(int, fields.split()[11:15])) / TICKS)

    @property
    def failed(self) -> bool:
        return self.future.done() and self.future.exception() is not None

    def stop(self) -> None:
        """End its compiler if one runs: Go keeps what it has compiled so far."""
        if self._compiler is not None and not self.future.done():
            with suppress(ProcessLookupError):
                os.kill(self._compiler, signal.SIGTERM)

    def done(self, scale: float) -> float:
        """Return how much of its work is done, on a machine that takes `scale` times as long as expected."""
        return self.work if self.future.done() else min(self.spent / scale, self.work * NEARLY)


@dataclass(slots=True)
class Progress:
    """A build of several parts."""

    parts: Sequence[Part]
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    began: float = field(default_factory=time.monotonic)

    def describe(self, now: float | None = None) -> str:
        """Return the percentage that is done, and the time that the rest takes at the speed so far."""
        ended = [part for part in self.parts if part.future.done() and part.spent]
        scale = sum(part.spent for part in ended) / sum(part.work for part in ended) if ended else 1.0
        total, done = sum(part.work for part in self.parts), sum(part.done(scale) for part in self.parts)
        elapsed = (now or time.monotonic()) - self.began
        # The expectation counts like one minute of measuring, so that the first seconds do not decide alone.
        speed = (done + 60 * self.cores) / (elapsed + 60)
        return f"{100 * done / total:.0f} %, about {rounded((total - done) / speed)} left"


def rounded(seconds: float) -> str:
    """Return a time as exact as an estimate of it is."""
    return f"{ceil(seconds / 60)} min" if seconds > 90 else f"{max(10, ceil(seconds / 10) * 10)} s"


def show(parts: Sequence[Part]) -> None:
    """Return when every part has ended or one has failed; until then redraw a table (on a terminal) or print lines."""
    if sys.stderr.isatty():
        show_table(parts)
    else:
        print_lines(parts, lambda line: print(line, file=sys.stderr, flush=True))


def show_table(parts: Sequence[Part]) -> None:
    from rich.console import Console  # noqa: PLC0415 - rich costs 60 ms, and only a build on a terminal draws
    from rich.live import Live  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    progress = Progress(parts)

    def table() -> Table:
        drawn = Table(title=f"making the fleet's programs, once: {progress.describe()}", title_justify="left")
        drawn.add_column("what")
        drawn.add_column("state")
        drawn.add_column("time", justify="right")
        for part in parts:
            state = "[red]failed" if part.failed else part.note
            drawn.add_row(part.title, state, f"{part.elapsed:.0f} s" if part.started is not None else "")
        return drawn

    with Live(table(), console=Console(stderr=True), transient=False) as live:
        pending = {part.future for part in parts}
        while pending and not any(part.failed for part in parts):
            _, pending = wait(pending, timeout=POLL_INTERVAL)
            for part in parts:
                part.look()
            live.update(table())


def print_lines(parts: Sequence[Part], say: Callable[[str], None]) -> None:
    progress = Progress(parts)
    say(f"making {len(parts)} of the fleet's programs, once: {'; '.join(part.title for part in parts)}")
    pending = {part.future: part for part in parts}
    printed = time.monotonic()
    while pending and not any(part.failed for part in parts):
        done, _ = wait(pending, timeout=POLL_INTERVAL, return_when="FIRST_COMPLETED")
        for part in pending.values():
            part.look()
        for future in done:
            part = pending.pop(future)
            verb = "failed" if part.failed else "made"
            took = f"{part.elapsed:.0f} s ({part.spent:.0f} s of a processor)"  # for the table of the forecast
            say(f"{verb} {part.title} in {took}; {progress.describe() if pending else 'that was all'}")
        if not done and time.monotonic() - printed > HEARTBEAT:
            current = [
                f"{part.title} ({part.note}, {part.elapsed:.0f} s)"
                for part in pending.values()
                if part.started is not None
            ]
            say(f"{progress.describe()}: {'; '.join(current)}")
            printed = time.monotonic()
