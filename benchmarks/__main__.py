"""Run benchmarks, print what they find, and write it to build/bench.json and docs/performance.md.

Each benchmark of each size runs in a process of its own, so that none profits from what another has remembered.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec

from benchmarks import report, schedule
from benchmarks.report import Figure

SIZES = (10, 100, 1_000, 10_000)


def _of_module(name: str) -> Callable[[int], Iterator[Figure]]:
    """The benchmark of a module that has one function `run(size)`."""
    return lambda size: import_module(name).run(size)


BENCHMARKS: dict[str, tuple[str, Callable[[int], Iterator[Figure]]]] = {
    "B1": ("schedule one replica, warm", schedule.one_replica),
    "B2": ("schedule five replicas per cluster", schedule.all_replicas),
    "B3": ("lose clusters", schedule.lost_clusters),
    "B9": ("cold start", schedule.cold_start),
}
if find_spec("benchmarks.cel"):
    BENCHMARKS["B11"] = ("evaluate selectors", _of_module("benchmarks.cel"))


def main() -> None:
    known = "\n".join(f"  {id_:4} {what}" for id_, (what, _) in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"benchmarks:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(BENCHMARKS), help="which, for example B1,B2 (default: all)")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="clusters (default: %(default)s)")
    parser.add_argument("--print-only", action="store_true", help="write no file")
    parser.add_argument("--one", metavar="ID", choices=BENCHMARKS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    if given.one:
        _print_one(given.one, sizes[0])
        return
    wanted = given.only.split(",")
    if unknown := [id_ for id_ in wanted if id_ not in BENCHMARKS]:
        parser.error(f"there is no benchmark {', '.join(unknown)}")
    figures: list[Figure] = []
    for id_ in wanted:
        for size in sizes:
            print(f"{id_} {BENCHMARKS[id_][0]}, {size:,} clusters", file=sys.stderr, flush=True)
            for figure in _in_own_process(id_, size):
                figures.append(figure)
                print(f"  {figure.metric}: {figure.value:,} {figure.unit}", flush=True)
    figures += report.slopes(figures)
    for figure in figures:
        if figure.metric.startswith("slope"):
            print(f"{figure.id} {figure.metric}: {figure.value}")
    if not given.print_only:
        report.write(figures)
        print(f"written: {report.JSON.relative_to(report.ROOT)}, {report.PAGE.relative_to(report.ROOT)}")


def _print_one(id_: str, size: int) -> None:
    # As a server does that holds many objects for long: else the collector walks the whole fleet over and over.
    gc.set_threshold(20_000, 20, 100)
    for figure in BENCHMARKS[id_][1](size):
        print(json.dumps(asdict(figure)), flush=True)


def _in_own_process(id_: str, size: int) -> Iterator[Figure]:
    command = [sys.executable, "-m", "benchmarks", "--one", id_, "--sizes", str(size)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=report.ROOT, env=environment) as process:
        for line in process.stdout or ():
            yield Figure(**json.loads(line))
    if process.returncode:
        sys.exit(f"benchmark {id_} with {size} clusters failed: exit code {process.returncode}")


if __name__ == "__main__":
    main()
