"""One run of the Helm binary: bounded in what it takes, and never cut short."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from resource import RLIMIT_CPU, RLIMIT_DATA, RLIMIT_FSIZE
from typing import Any

from pyhelm3.command import Command  # pyright: ignore[reportMissingTypeStubs]

from kubeloop.client.limits import KIB, MIB, shown
from kubeloop.client.process_limits import confine
from kubeloop.errors import ClientError
from kubeloop.tracing import Span, call

HISTORY = 5  # revisions that Helm keeps of a release: what runs, and how the last attempts at something else ended
WORDS = 1000
NICENESS = 10  # the operator comes first
CPU_SECONDS = 120  # a large chart takes some ten
OF_A_FILE = 64 * MIB  # that it writes: charts, and what it says
SAID = 16 * MIB  # of which so much is read, all at once
COMPLAINED = 64 * KIB
OUTLIVED = 60.0  # Helm keeps to its timeout, but for connections that hang
_ANSWERS = re.compile(  # that Helm quotes: of whatever has answered in the place of an API server
    r"""(is missing in |error on the server \(|malformed HTTP response )(['"]).*\2"""
)
_PROXY = re.compile(r"socks connect tcp \S+->(\S+): unknown error ")  # helm_proxy, at another port each time


class HelmError(ClientError):
    """Helm could not do it; in Helm's words."""


class HelmCommand(Command):
    """pyhelm3 knows Helm's arguments; the process is ours. `check` raises when it may not be begun any more."""

    def __init__(  # noqa: PLR0917 - what bounds it
        self,
        executable: str,
        kubeconfig: Path,
        environment: Mapping[str, str],
        timeout: float,
        memory: int,
        check: Callable[[], None],
    ) -> None:
        super().__init__(
            executable=executable,
            kubeconfig=kubeconfig,
            default_timeout=f"{timeout:g}s",
            history_max_revisions=HISTORY,
        )
        self.extra: Sequence[str] = ()
        self._program, self._folder = executable, kubeconfig.parent
        self._arguments = ("--kubeconfig", str(kubeconfig))
        self._environment, self._seconds, self._memory = environment, timeout + OUTLIVED, memory
        self._check = check

    async def fetched(self, chart: str, repository: str | None, version: str) -> Path:
        """A chart's archive, in our own folder, where nobody changes it after a look; raises HelmError."""
        ours = self._folder / "chart.tgz"
        if repository is None and not chart.startswith("oci://"):  # of a mirror that is a folder
            try:
                await asyncio.to_thread(shutil.copyfile, chart, ours)
            except OSError as error:
                raise HelmError(f"{chart} cannot be read: {os.strerror(error.errno or 0)}") from error
            return ours
        pulled = self._folder / "pulled"
        pulled.mkdir()
        where = ["--repo", repository] if repository else []
        await self.run(["pull", chart, *where, "--version", version, "--destination", pulled])
        found = list(pulled.glob("*.tgz"))
        if len(found) != 1:
            raise HelmError(f"helm pull brought {len(found)} archives of {chart} {version}")
        return found[0].rename(ours)

    async def run(self, command: list[Any], input: bytes | None = None) -> bytes:  # noqa: A002 - as its parent has it
        """What Helm answers; raises HelmError."""
        with call(f"helm {command[0]}", lambda: {"process.executable.name": "helm"}) as span:
            return await self._run(command, input, span)

    async def _run(self, command: list[Any], given: bytes | None, span: Span) -> bytes:
        values, said, complained = (self._folder / name for name in ("values", "said", "complained"))
        values.write_bytes(given or b"")
        self._check()
        with values.open("rb") as stdin, said.open("wb") as stdout, complained.open("wb") as stderr:
            try:
                process = await asyncio.create_subprocess_exec(
                    self._program,
                    *map(str, command),
                    *self.extra,
                    *self._arguments,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=dict(self._environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise HelmError(f"{self._program} cannot be run: {os.strerror(error.errno or 0)}") from error
            # Of its data and not of its addresses, of which Go reserves many times what it uses.
            bounds = {RLIMIT_DATA: self._memory, RLIMIT_FSIZE: OF_A_FILE, RLIMIT_CPU: CPU_SECONDS}
            confine(process.pid, NICENESS, bounds)
        code = await self._ended(process)
        span.tell("process.exit.code", code)
        if code:
            raise HelmError(self._why(_end(complained), code))
        if said.stat().st_size > SAID:
            raise HelmError(f"helm said more than the {shown(SAID)} that are allowed")
        return said.read_bytes()

    def _why(self, complained: str, code: int) -> str:
        if "out of memory" in complained:  # Go adds a page of where it was then
            return f"helm took more than the {shown(self._memory)} of memory that it may (setting helm-memory)"
        return _words(complained, self._folder) or f"helm ended with {code}"

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        """The exit code. Helm is asked to end only when it should long have ended: it then says so in its release."""
        for ask in (signal.SIGTERM, signal.SIGKILL):
            try:
                async with asyncio.timeout(self._seconds if ask == signal.SIGTERM else OUTLIVED):
                    return await process.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, ask)
        return await process.wait()


def _end(file: Path) -> str:
    """The end of a text, where Helm says why it failed."""
    with file.open("rb") as text:
        if text.seek(max(0, file.stat().st_size - COMPLAINED)):
            text.readline()  # the rest of one
        return text.read(COMPLAINED).decode(errors="replace")


def _words(complained: str, folder: Path) -> str:
    """Why Helm failed, without its warnings, answers that it quotes, and names that differ from run to run."""
    lines = [line.strip() for line in complained.replace(str(folder), "").splitlines() if line.strip()]
    begins = next((at for at, line in enumerate(lines) if line.startswith("Error: ")), len(lines) - 1)
    said = _PROXY.sub(r"\1: ", " ".join(lines[max(begins, 0) :]).removeprefix("Error: "))
    return _ANSWERS.sub(r"\1\2...\2", said)[:WORDS]
