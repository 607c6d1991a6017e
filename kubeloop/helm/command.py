"""One run of the Helm binary, with limited resources and never cancelled."""

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

from kubeloop.client.limits import KIB, MIB, format_size
from kubeloop.client.process_limits import confine
from kubeloop.errors import ClientError
from kubeloop.tracing import Span, call

HISTORY = 5  # revisions that Helm keeps of a release: the deployed one, and the last attempts to change it
MAX_MESSAGE = 1000  # characters of a message
NICENESS = 10  # lower priority than the operator
CPU_SECONDS = 120  # a large chart takes some ten
OF_A_FILE = 64 * MIB  # that Helm writes: charts and its output
MAX_OUTPUT = 16 * MIB  # of its output that are read
COMPLAINED = 64 * KIB  # at the end of its error output that are read
OUTLIVED = 60.0  # seconds beyond Helm's own timeout, which hanging connections may exceed
_ANSWERS = re.compile(  # responses that Helm quotes, possibly of a server that is no API server
    r"""(is missing in |error on the server \(|malformed HTTP response )(['"]).*\2"""
)
_PROXY = re.compile(r"socks connect tcp \S+->(\S+): unknown error ")  # of helm/proxy.py, with another port each time


class HelmError(ClientError):
    """A Helm run failed; the message is Helm's."""


class HelmCommand(Command):
    """A pyhelm3 command that runs Helm in its own session. `check` raises if no new run may start."""

    def __init__(  # noqa: PLR0917 - what bounds it
        self,
        executable: str,
        kubeconfig: Path,
        environment: Mapping[str, str],
        timeout: float,
        memory: int,
        check: Callable[[], None],
    ) -> None:
        """Set the limits of runs: `timeout` in seconds and `memory` in bytes."""
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

    async def fetch(self, chart: str, repository: str | None, version: str) -> Path:
        """Download a chart's archive into the run's private folder, so that it cannot change after its check.

        Raises HelmError.
        """
        archive = self._folder / "chart.tgz"
        if repository is None and not chart.startswith("oci://"):  # from a mirror that is a folder
            try:
                await asyncio.to_thread(shutil.copyfile, chart, archive)
            except OSError as error:
                raise HelmError(f"{chart} cannot be read: {os.strerror(error.errno or 0)}") from error
            return archive
        pull_folder = self._folder / "pulled"
        pull_folder.mkdir()
        repository_arguments = ["--repo", repository] if repository else []
        await self.run(["pull", chart, *repository_arguments, "--version", version, "--destination", pull_folder])
        archives = list(pull_folder.glob("*.tgz"))
        if len(archives) != 1:
            raise HelmError(f"helm pull brought {len(archives)} archives of {chart} {version}")
        return archives[0].rename(archive)

    async def run(self, command: list[Any], input: bytes | None = None) -> bytes:  # noqa: A002 - as its parent has it
        """Run Helm and return its output; raises HelmError."""
        with call(f"helm {command[0]}", lambda: {"process.executable.name": "helm"}) as span:
            return await self._run(command, input, span)

    async def _run(self, command: list[Any], given: bytes | None, span: Span) -> bytes:
        """Run Helm with output to files, which also works when the operator ends before Helm."""
        values, output, errors = (self._folder / name for name in ("values", "said", "complained"))
        values.write_bytes(given or b"")
        self._check()
        with values.open("rb") as stdin, output.open("wb") as stdout, errors.open("wb") as stderr:
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
            # Limit the data segment, and not addresses, of which Go reserves many times what it uses.
            bounds = {RLIMIT_DATA: self._memory, RLIMIT_FSIZE: OF_A_FILE, RLIMIT_CPU: CPU_SECONDS}
            confine(process.pid, NICENESS, bounds)
        code = await self._wait(process)
        span.tell("process.exit.code", code)
        if code:
            complaint = _read_end(errors)
            if "out of memory" in complaint:  # Go appends a long stack trace
                limit = format_size(self._memory)
                raise HelmError(f"helm took more than the {limit} of memory that it may (setting helm-memory)")
            raise HelmError(_error_message(complaint, self._folder) or f"helm ended with {code}")
        if output.stat().st_size > MAX_OUTPUT:
            raise HelmError(f"helm said more than the {format_size(MAX_OUTPUT)} that are allowed")
        return output.read_bytes()

    async def _wait(self, process: asyncio.subprocess.Process) -> int:
        """Wait for the exit code.

        Helm is terminated long after its timeout only, and then records that in its release.
        """
        for stop_signal in (signal.SIGTERM, signal.SIGKILL):
            try:
                async with asyncio.timeout(self._seconds if stop_signal == signal.SIGTERM else OUTLIVED):
                    return await process.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, stop_signal)
        return await process.wait()


def _read_end(file: Path) -> str:
    """Return the end of a file, where Helm reports its error."""
    with file.open("rb") as text:
        if text.seek(max(0, file.stat().st_size - COMPLAINED)):
            text.readline()  # an incomplete line
        return text.read(COMPLAINED).decode(errors="replace")


def _error_message(errors: str, folder: Path) -> str:
    """Return Helm's error without warnings, quoted responses, and names that differ from run to run."""
    lines = [line.strip() for line in errors.replace(str(folder), "").splitlines() if line.strip()]
    first = next((index for index, line in enumerate(lines) if line.startswith("Error: ")), len(lines) - 1)
    message = _PROXY.sub(r"\1: ", " ".join(lines[max(first, 0) :]).removeprefix("Error: "))
    return _ANSWERS.sub(r"\1\2...\2", message)[:MAX_MESSAGE]
