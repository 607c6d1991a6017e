"""The command `modelplane` as somebody types it: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from modelplane_operator.cli.__main__ import main

YES, ERROR, USAGE, NO, OUT_OF_REACH = range(5)


async def modelplane(kubeconfig: Path, *arguments: str, stdin: str = "") -> tuple[int, str]:
    """In a thread of this process: another process would take a second to begin."""
    async with asyncio.timeout(120):
        return await asyncio.to_thread(_typed, [*arguments, f"--kubeconfig={kubeconfig}"], stdin)


def _typed(arguments: list[str], stdin: str) -> tuple[int, str]:
    said, code = io.StringIO(), 0
    with (
        redirect_stdout(said),
        redirect_stderr(said),
        patch.object(sys, "argv", ["modelplane", *arguments]),
        patch.object(sys, "stdin", io.StringIO(stdin)),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return code, said.getvalue()
