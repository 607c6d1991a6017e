"""What a build takes on this machine, announced before it starts."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Sequence
from math import ceil

# Seconds of one core for each Go module with empty caches, with its share of downloads and of waiting. The six of the
# demo took 1,041 seconds on two idle cores, whose processor time was divided like this; a core that compiles alone is a
# fifth faster. The last two compile what others have compiled before. A build begins with the longest one: what is left
# at its end is short, and no core waits for it.
WORK = {
    "traefik": 720,
    "kubernetes": 900,
    "envoy-gateway": 650,
    "kwok": 200,
    "helm": 185,
    "etcd": 85,
    "celoracle": 10,
    "endpoint-picker": 2,
}
OTHERS = 60  # of a module that is not in the table
FETCHING = 10  # what is copied, and not compiled
SHORT = 90.0  # seconds for which nobody needs an announcement
WIDEST = 100


def announce(work: Sequence[float]) -> str:
    """Return what to tell somebody who waits for so many parts, and what to do meanwhile; empty if it takes seconds."""
    cores = len(os.sched_getaffinity(0))
    seconds = sum(work) / cores
    if seconds < SHORT:
        return ""
    text = (
        f"The fleet's programs are not on this machine yet: {len(work)} parts are fetched and compiled once. The fleet "
        "runs the real API server, scheduler and gateways, and compiles them from source whose checksums are pinned, "
        f"so it needs neither containers nor packages of others. On {cores} cores that takes about "
        f"{ceil(seconds / 60)} minutes, some 400 MB of downloads and 10 GB of disk; later runs find the programs. You "
        "may stop it at any time: the next run goes on with the next part. With an archive of the programs nothing is "
        "compiled: FLEET_BINARIES=path-or-url#sha256 (`make fleet-binaries` makes one)."
    )
    meanwhile = (
        "To look at meanwhile: docs/tour.md shows what the demo lets you try, docs/models.md how to run models, and "
        "examples/demo/ has what `make demo` applies."
    )
    width = min(WIDEST, shutil.get_terminal_size().columns)
    return "\n".join(textwrap.fill(paragraph, width, break_on_hyphens=False) for paragraph in (text, meanwhile))
