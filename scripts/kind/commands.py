"""Programs that are run, and what is said when one fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class KindError(Exception):
    """The clusters are not as asked; the message says what failed."""


def run(*command: str | Path, text: str | None = None, kubeconfig: Path | None = None) -> str:
    """What a program writes to its output."""
    environment = {**os.environ, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})}
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise KindError(f"`{' '.join(map(str, command))}` failed with {done.returncode}:\n{said}")
    return done.stdout
