"""What a build will take on this machine, said before it begins."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Collection

# Seconds of one core for each Go module, with empty caches: 40 minutes in all, as measured on two cores, divided by how
# much code each of them links.
WORK = {
    "celoracle": 60,
    "endpoint-picker": 60,
    "envoy-gateway": 620,
    "etcd": 100,
    "helm": 210,
    "kubernetes": 600,
    "kwok": 210,
    "traefik": 600,
}
OTHERS = 60  # of a module that is not in the table
WIDEST = 100


def minutes(modules: Collection[str], cores: int) -> int:
    """About how long it takes to compile these, rounded up."""
    return -(-sum(WORK.get(module, OTHERS) for module in modules) // (60 * cores))


def said(modules: Collection[str], *, parts: int) -> str:
    """What somebody should know who waits for it; empty where it is a matter of seconds."""
    cores = len(os.sched_getaffinity(0))
    expected = minutes(modules, cores)
    if expected < 2:
        return ""
    text = (
        f"The fleet's programs are not on this machine yet: {parts} parts are fetched and compiled once, from pinned "
        f"source. On its {cores} cores that takes up to {expected} minutes, some 2 GB of downloads and 6 GB of disk; "
        "from then on they are there. It may be stopped at any time, and goes on with the next part when it is begun "
        "again. Who has an archive of them builds nothing: FLEET_BINARIES=path-or-url#sha256 (make fleet-binaries "
        "makes one)."
    )
    return textwrap.fill(text, min(WIDEST, shutil.get_terminal_size().columns), break_on_hyphens=False)
