"""The hydrator as the process that a Job runs, and what it leaves."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONTENT = "0123456789abcdef"


@dataclass(frozen=True)
class Ended:
    code: int
    word: str
    """The container's termination message."""
    log: str
    volume: Path

    @property
    def files(self) -> dict[str, bytes]:
        """What an engine sees."""
        found = (path for path in self.volume.rglob("*") if path.is_file())
        named = {str(path.relative_to(self.volume)): path.read_bytes() for path in found}
        return {name: content for name, content in named.items() if not name.startswith(".modelplane/")}

    @property
    def is_marked(self) -> bool:
        return (self.volume / ".modelplane" / "complete.json").exists()


def run(folder: Path, *arguments: str, secret: Mapping[str, str] | None = None, mounted: str = "") -> Ended:
    """`mounted`: options of a file system of its own, which is gone with the process."""
    volume, word = folder / "volume", folder / "word"
    volume.mkdir(exist_ok=True)
    word.write_text("")
    command = [sys.executable, "-m", "modelplane_operator.hydrate", f"--volume={volume}", f"--content={CONTENT}"]
    if mounted:
        permissions = [] if os.geteuid() == 0 else ["--map-root-user"]
        mount = f'mount -t tmpfs -o {mounted} tmpfs {shlex.quote(str(volume))} && exec "$@"'
        command = ["unshare", "--mount", *permissions, "sh", "-ec", mount, "sh", *command]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **(secret or {})}
    done = subprocess.run(
        [*command, f"--termination-message={word}", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(done.returncode, word.read_text(), done.stdout + done.stderr, volume)
