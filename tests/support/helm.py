"""The real Helm, in a coat that notes how it is called, so that a test can read that, and end it in the middle."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from localfleet import binaries


def noted_helm(folder: Path) -> Path:
    """A program that is Helm. Beside it: `runs`, a line `verb release` each, `argv`, `environment`, `pid.RELEASE`."""
    program = folder / "helm"
    program.write_text(
        f'#!/bin/sh\necho "$1 $2" >> {folder}/runs\nprintf "%s\\n" "$@" >> {folder}/argv\nenv >> {folder}/environment\n'
        f'echo $$ > {folder}/pid.$2\nexec {binaries.ensure("helm")["helm"]} "$@"\n'
    )
    program.chmod(0o755)
    return program


def process(folder: Path, release: str) -> int | None:
    """The process of the Helm that runs for a release; None when it has ended."""
    try:
        pid = int((folder / f"pid.{release}").read_text())
        ours = str(folder) in Path(f"/proc/{pid}/cmdline").read_text()  # else the number is another's by now
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return pid if ours else None


def kill(folder: Path) -> None:
    """End all that still run, as a machine that loses power does."""
    for file in folder.glob("pid.*"):
        if pid := process(folder, file.name.removeprefix("pid.")):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
