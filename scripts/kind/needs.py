"""What clusters by kind need of this machine, and what of it is missing. Runs on a Python without any package."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).resolve().parents[2] / "modelplane_operator" / "api" / "pins.py"


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


def missing_picker() -> str:
    """Return why the real picker cannot be had, in one line; empty when it can, or when it is not asked for."""
    if not os.environ.get("REAL_PICKER"):
        return ""
    image = runpy.run_path(str(PINS))["PICKER"].image  # by path, as its package imports what may not be installed yet
    # The client asks the registry itself, by the proxies of this environment, which kind hands on to the nodes.
    asked = subprocess.run(["docker", "manifest", "inspect", image], capture_output=True, text=True, check=False)
    if asked.returncode:
        said = asked.stderr.strip().splitlines()[-1]
        return f"docker cannot fetch {image} ({said}): make its registry reachable, or unset REAL_PICKER"
    return ""


if __name__ == "__main__":
    if lacking := missing() or missing_picker():
        sys.exit(f"kind: {lacking}; docs/kind.md says what it takes")
