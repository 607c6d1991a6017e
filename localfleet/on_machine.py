"""Programs that this machine has already, by its distribution or its user, in a version that fits the pinned one.

Kubernetes' programs fit in the same minor version, etcd in the same minor version, Helm in the same major version from
the pinned minor version on: within these, storage, API and flags stay.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# How each is asked for its version.
QUERIES = {
    "etcd": ("--version",),
    "kube-apiserver": ("--version",),
    "kubectl": ("version", "--client"),
    "helm": ("version", "--short"),
}
ANSWER_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Found:
    """A program of this machine."""

    path: Path
    version: str


def find(name: str, pinned: str) -> Found | None:
    """Return the program on PATH if its version fits; None for programs that are always those of the fleet."""
    path = shutil.which(name) if name in QUERIES else None
    version = query_version(Path(path), QUERIES[name]) if path else ""
    return Found(Path(path), version) if path and fits(name, version, pinned) else None


def fits(name: str, version: str, pinned: str) -> bool:
    """True if a fleet that is made for the pinned version can use this one."""
    if not version:
        return False
    (major, minor), (pinned_major, pinned_minor) = numbers(version), numbers(pinned)
    return major == pinned_major and (minor >= pinned_minor if name == "helm" else minor == pinned_minor)


def numbers(version: str) -> tuple[int, int]:
    major, minor, *_ = version.removeprefix("v").split(".")
    return int(major), int(minor)


@cache
def query_version(path: Path, arguments: tuple[str, ...]) -> str:
    """Return the version that a program prints first; empty if it prints none."""
    try:
        output = subprocess.run(
            [path, *arguments], capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\bv?(\d+\.\d+\.\d+)\b", output)
    return f"v{found[1]}" if found else ""
