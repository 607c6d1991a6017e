"""Somebody who types what a page says, with `helm` and `kubectl` at hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from scripts.kind import clusters
from tests.support.console import Command, Shell


async def types(asked: Sequence[Command], folder: Path, kubeconfig: Path) -> list[tuple[Command, str]]:
    """Each command with what it printed."""
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "PATH": f"{clusters.helm().parent}:{os.environ['PATH']}",
    }
    shell = Shell((), folder, environment, seconds=900.0)
    return await asyncio.to_thread(lambda: list(shell.run(asked)))
