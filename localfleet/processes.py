"""Starting programs with a log each, noticing when they die, ending them by id."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localfleet.errors import DeadlineError, ProcessDiedError
from localfleet.waiting import until


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run: its arguments, what it adds to the environment, and where its words go."""

    name: str
    argv: Sequence[str | Path]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Running:
    """A program that was started; `end` is safe to call however it fares."""

    command: Command
    process: subprocess.Popen[bytes]
    log_start: int  # where this run's words begin: a log outlives a restart

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def check(self) -> None:
        """Raise when the program has ended, with its last words."""
        code = self.process.poll()
        if code is not None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise ProcessDiedError(
                f"{self.command.name} {how}; the end of {self.command.log}:\n{tail(self.command.log)}"
            )

    def says_ready(self) -> bool:
        """Whether it has printed a line that begins with `ready`, as our own programs do."""
        with self.command.log.open("rb") as log:
            log.seek(self.log_start)
            return any(line.startswith(b"ready") for line in log)

    def wait_until(self, ready: Callable[[], bool], *, seconds: float, what: str) -> None:
        """Return once `ready`; say why not when the program dies first or the deadline passes."""

        def settled() -> bool | None:
            self.check()
            return ready() or None

        try:
            until(settled, seconds=seconds, what=what)
        except DeadlineError as error:
            raise DeadlineError(f"{error}; the end of {self.command.log}:\n{tail(self.command.log)}") from None

    def end(self, *, seconds: float = 10.0) -> None:
        """Ask the program to end, and kill it when it has not after some seconds; return once it is gone."""
        if self.alive:
            self.process.send_signal(signal.SIGCONT)  # a paused program cannot hear
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


TIED = ("setpriv", "--pdeathsig", "KILL", "--")


def start(command: Command, *, tied: bool = False) -> Running:
    """Start the program in a session of its own, so that Ctrl-C at the terminal leaves ending it to us.

    The kernel kills it when the calling thread ends, if it is `tied`: so a test run that is killed leaves nothing.
    """
    command.log.parent.mkdir(parents=True, exist_ok=True)
    with command.log.open("ab") as log:
        log_start = log.tell()
        process = subprocess.Popen(
            [*(TIED if tied else ()), *(str(argument) for argument in command.argv)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **command.environment},
            start_new_session=True,
        )
    return Running(command, process, log_start)


def tail(log: Path, *, lines: int = 12) -> str:
    """The last lines of a log, indented."""
    if not log.exists():
        return "  (no log)"
    with log.open("rb") as words:
        words.seek(max(0, log.stat().st_size - 16_384))
        found = words.read().decode(errors="replace").splitlines()[-lines:]
    return "\n".join(f"  {line}" for line in found) or "  (it said nothing)"
