"""What clusters by kind need of this machine, and what of it is missing. Runs on a Python without any package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys


def missing() -> str:
    """The first thing that is missing, in one line; empty when all is there."""
    for tool in ("docker", "kind", "kubectl"):
        if not shutil.which(tool):
            return f"{tool} is not on this machine's PATH"
    asked = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False)
    if asked.returncode:
        at = os.environ.get("DOCKER_HOST") or "its usual socket"
        return f"no Docker daemon answers at {at}: {asked.stderr.strip().splitlines()[-1]}"
    return ""


if __name__ == "__main__":
    if lacking := missing():
        sys.exit(f"kind: {lacking}; docs/kind.md says what it takes")
