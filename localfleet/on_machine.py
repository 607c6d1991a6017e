"""Programs that this machine has already, by its distribution or its user, in a version that fits the pinned one.

Kubernetes' programs fit in the same minor version, etcd in the same minor version, Helm in the same major version from
the pinned minor version on: within these, storage, API and flags stay.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# How each is asked for its version, and what it says before it. Vendors' builds and pre-releases, whose version goes on
# after a dash, are left alone.
QUERIES = {
    "etcd": (("--version",), "etcd Version: "),
    "kube-apiserver": (("--version",), "Kubernetes v"),
    "kubectl": (("version", "--client"), "Client Version: v"),
    "helm": (("version", "--short"), "v"),
}
REFUSED = "LOCALFLEET_PINNED"  # a variable: when it is set, no program of the machine is taken
HIDDEN = Path("/run")  # what is there cannot be seen in the fleet's namespaces
ANSWER_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Found:
    """A program of this machine."""

    path: Path
    version: str


def find(name: str, pinned: str) -> Found | None:
    """Return the program on PATH if its version fits; None for programs that are always those of the fleet."""
    where = None if os.environ.get(REFUSED) or name not in QUERIES else shutil.which(name)
    if where is None:
        return None
    path = Path(where).absolute()
    if any(each.is_relative_to(HIDDEN) for each in (path, path.resolve())):
        return None
    version = query_version(path, name)
    return Found(path, version) if fits(name, version, pinned) else None


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
def query_version(path: Path, name: str) -> str:
    """Return the version that a program prints; empty if it fails, or prints none of a release."""
    arguments, prefix = QUERIES[name]
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(rf"^{prefix}(\d+\.\d+\.\d+)(\+\S+)?$", done.stdout, re.MULTILINE)
    return f"v{found[1]}" if found and not done.returncode else ""
