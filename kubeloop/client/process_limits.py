"""Bounds of processes that read what strangers send."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def confine(pid: int, niceness: int, bounds: Mapping[int, int]) -> None:
    """Bound what a process may take. It is begun already, but not yet beyond these; it may even have ended.

    Where memory is short all the same, the kernel ends it, and not the operator.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    if sys.platform != "linux":
        return
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    for bound, most in {**bounds, resource.RLIMIT_CORE: 0}.items():
        with suppress(OSError, ValueError):  # it is bound closer than that already
            resource.prlimit(pid, bound, (most, most))
