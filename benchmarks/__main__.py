"""Run benchmarks, print their figures, and write them to docs/internals/performance-tables.md and docs/scaling.md.

    python -m benchmarks                            all of them, as the pages have them; hours
    python -m benchmarks --quick                    all of them, small, in some minutes, to see that they work
    python -m benchmarks placement --size 100       one of them, of one size

Each benchmark of each size runs in a process of its own, so that none profits from what another has cached. Those of
the scheduler need nothing; the others start API servers and operators, and measure the operator's process alone.
MODELPLANE_BENCH_PROFILE=FOLDER leaves a profile (cProfile) of every operator there.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from benchmarks import report, scheduler
from benchmarks.live import apply_to_workload, fleet, hostile_tenants
from benchmarks.report import Figure, Target

Run = Callable[[int], Iterator[Figure] | AsyncIterator[Figure]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark; `names` are those of its groups of figures."""

    names: tuple[str, ...]
    description: str
    run: Run
    quick: Run
    """The same with less of everything but its size."""
    sizes: tuple[int, ...] = (10, 100, 1_000, 10_000)
    quick_sizes: tuple[int, ...] = (10,)
    unit: str = "clusters"
    """What the sizes count."""


def _of_scheduler(name: str, description: str, run: Run) -> Benchmark:
    return Benchmark((name,), description, run, run)


BENCHMARKS = (
    _of_scheduler("placement", "place one replica, warm", scheduler.measure_placement),
    _of_scheduler("many-placements", "place five replicas for each cluster", scheduler.measure_many_placements),
    _of_scheduler("first-decision", "from API objects to a decision", scheduler.measure_first_decision),
    Benchmark(
        ("bring-up", "rest", "restart", "memory", "writes"),
        "bring a fleet up, rest, start again",
        run=lambda size: fleet.measure_fleet(size, seconds=120),
        quick=lambda size: fleet.measure_fleet(size, seconds=5),
        sizes=(10, 100, 1_000),
        quick_sizes=(3,),
    ),
    Benchmark(
        ("apply-to-workload",),
        "from apply to a workload object",
        run=lambda size: apply_to_workload.measure_applied(size, deployments=50),
        quick=lambda size: apply_to_workload.measure_applied(size, deployments=3),
        sizes=(1, 100),
        quick_sizes=(1, 10),
        unit="at once",
    ),
    Benchmark(
        ("hostile-tenants",),
        "hostile tenants and clusters, on half a core; needs root",
        run=lambda size: hostile_tenants.measure_beside_hostile_tenants(size, seconds=60),
        quick=lambda size: hostile_tenants.measure_beside_hostile_tenants(size, seconds=5),
        sizes=(20,),
        quick_sizes=(6,),
        unit="tenants",
    ),
)
UNITS = {name: benchmark.unit for benchmark in BENCHMARKS for name in benchmark.names}

TARGETS = (
    Target("placement", "uniform, the last pool matches: p50", 5, until=1000),
    Target("placement", "uniform, the last pool matches: p99", 15, until=1000),
    Target("many-placements", "mixed: all decisions", 2.5, until=1000),
    Target("bring-up", "CPU of the operator for each replica", 12),
    Target("bring-up", "from apply until decided and stored, for each replica", 10),
    Target("rest", "without a resync: writes", 0),
    Target("rest", "a resync every 3600 s, the default: CPU", 0.05, until=1000),
    Target("restart", "from start to a decision about something new", 5, until=1000),
    Target("memory", "resident, with replicas", 450, until=1000),
    Target("memory", "open files and connections", 1050, until=1000),
    Target("writes", "writes to the hub for each replica", 6),
    Target("writes", "writes to the workload for each replica", 5),
    Target("apply-to-workload", "from apply to the workload object: p50", 150),
    Target("apply-to-workload", "from apply to the workload object: p99", 1000),
    Target("hostile-tenants", "/healthz, beside them: p99", 100),
    Target("hostile-tenants", "leases lost, beside them", 0),
)


def main() -> None:
    listed = "\n".join(f"  {' '.join(each.names):40} {each.description}" for each in BENCHMARKS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which, for example: placement rest (default: all)")
    parser.add_argument("--size", type=int, action="append", help="another size than the usual ones; may be repeated")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, of which the median counts (default: 1)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small and short; fails where counts are a third above benchmarks/counts.json",
    )
    parser.add_argument("--keep-counts", action="store_true", help="of a short run: write benchmarks/counts.json")
    parser.add_argument("--print-only", action="store_true", help="write no file")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.keep_counts and not given.quick:
        parser.error("--keep-counts goes with --quick")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    if given.one is not None:
        _print_one(BENCHMARKS[given.one], given.size[0], quick=given.quick)
        return
    selected = {*given.names}
    if unknown := selected - {*UNITS}:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(UNITS)}")
    figures: list[Figure] = []
    for number, benchmark in enumerate(BENCHMARKS):
        if selected and not selected & {*benchmark.names}:
            continue
        for size in given.size or (benchmark.quick_sizes if given.quick else benchmark.sizes):
            print(f"{benchmark.description}, {size:,} {benchmark.unit}", file=sys.stderr, flush=True)
            runs = [[*_run_in_own_process(number, size, quick=given.quick)] for _ in range(given.repeat)]
            figures += report.median(runs)
    if given.quick:
        _check_counts(figures, keep=given.keep_counts)
    if not (given.print_only or given.quick):
        report.write(figures, TARGETS, UNITS)
        print(f"written: {', '.join(str(path.relative_to(report.ROOT)) for path in (report.PAGE, report.SIZING_PAGE))}")


def _check_counts(figures: Sequence[Figure], *, keep: bool) -> None:
    """Fail where requests, connections or bytes are more than they were; times depend on the machine."""
    kept: dict[str, float] = json.loads(report.COUNTS.read_text())
    if keep:
        report.COUNTS.write_text(json.dumps(kept | report.counts(figures), indent=2, sort_keys=True) + "\n")
    elif worse := report.regressions(figures, kept):
        sys.exit("\n".join(["more than a third above benchmarks/counts.json:", *worse]))


def _print_one(benchmark: Benchmark, size: int, *, quick: bool) -> None:
    # As a server does that holds many objects for long: else the collector walks the whole fleet over and over.
    gc.set_threshold(20_000, 20, 100)
    figures = (benchmark.quick if quick else benchmark.run)(size)
    if isinstance(figures, AsyncIterator):
        asyncio.run(_print_all(figures))
    else:
        for figure in figures:
            _print(figure)


async def _print_all(figures: AsyncIterator[Figure]) -> None:
    async for figure in figures:
        _print(figure)


def _print(figure: Figure) -> None:
    print(json.dumps(asdict(figure)), flush=True)


def _run_in_own_process(number: int, size: int, *, quick: bool) -> Iterator[Figure]:
    command = [sys.executable, "-m", "benchmarks", f"--one={number}", f"--size={size}", *["--quick"] * quick]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=report.ROOT, env=environment) as process:
        try:
            for line in process.stdout or ():
                figure = Figure(**json.loads(line))
                print(f"  {figure.name} {figure.metric}: {figure.value:,} {figure.unit}", flush=True)
                yield figure
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        sys.exit(f"benchmark {BENCHMARKS[number].names[0]} of size {size} failed: exit code {process.returncode}")


if __name__ == "__main__":
    main()
