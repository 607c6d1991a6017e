"""Resource limits of processes that read data of strangers."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def confine(pid: int, niceness: int, bounds: Mapping[int, int]) -> None:
    """Limit the resources of a process that has just started, and may even have ended.

    When memory is short, the kernel then kills it instead of the operator.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    if sys.platform != "linux":
        return
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    for bound, limit in {**bounds, resource.RLIMIT_CORE: 0}.items():
        with suppress(OSError, ValueError):  # the current limit is lower
            resource.prlimit(pid, bound, (limit, limit))
