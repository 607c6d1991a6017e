"""What a command takes end to end on a fleet that is up, as `make demo`'s: `python -m benchmarks.command why NAME`.

A process for each run, as a shell starts it, against the hub of KUBECONFIG. Beside it stands what Python takes to load
the command line and end, and how busy the machine was: on one that has other things to do, the fastest counts.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

TIMES = 20


def timed(arguments: Sequence[str]) -> tuple[float, float]:
    """Milliseconds on the clock and of the processor; whatever the answer is."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "modelplane_operator.cli", *arguments], capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    if done.returncode not in {0, 3}:
        sys.exit(f"modelplane {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds * 1000, used * 1000


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit("say which command: python -m benchmarks.command why ml-team/qwen3-8b")
    print(f"load of {os.cpu_count()} processors: {os.getloadavg()[0]:.1f}")
    for one in (["--version"], arguments):
        timed(one)  # the first run compiles what is new
        clock, processor = zip(*(timed(one) for _ in range(TIMES)), strict=True)
        print(
            f"modelplane {' '.join(one)}: fastest {min(clock):.0f} ms, median {median(clock):.0f} ms, of {TIMES}; "
            f"processor: fastest {min(processor):.0f} ms, median {median(processor):.0f} ms"
        )


if __name__ == "__main__":
    main()
