"""Run benchmarks, print what they find, and write it to build/bench.json and docs/performance.md.

    python -m benchmarks                     all of them, as the page has them; hours
    python -m benchmarks --quick             all of them, small, in some minutes: that they work, and count no more
    python -m benchmarks B6 --size 100       one of them, of one size

Each benchmark of each size runs in a process of its own, so that none profits from what another has remembered. Those
of the scheduler need nothing; the live ones start API servers and operators, and measure the operator's process alone.
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
from dataclasses import asdict, dataclass, replace
from functools import partial

from benchmarks import report, schedule
from benchmarks.live import at_rest, hostile, reactions
from benchmarks.report import Figure, Target

Run = Callable[[int], Iterator[Figure]]
LiveRun = Callable[[int], AsyncIterator[Figure]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark; `ids` are those whose figures it has."""

    ids: str
    what: str
    run: Run | None = None
    live: LiveRun | None = None
    quick: LiveRun | None = None
    """The same with less of everything but its size."""
    sizes: tuple[int, ...] = (10, 100, 1_000, 10_000)
    quick_sizes: tuple[int, ...] = (10,)
    sized: str = "clusters"

    @property
    def layer(self) -> str:
        return "scheduler" if self.run else "live"


def _live(
    ids: str,
    what: str,
    run: Callable[..., AsyncIterator[Figure]],
    *,
    sizes: tuple[int, ...],
    sized: str = "clusters",
    full: Sequence[float] = (),
    quick: Sequence[float] = (),
    quick_sizes: tuple[int, ...] = (3,),
) -> Benchmark:
    """`full` and `quick`: the further arguments of a whole run and of a short one."""
    live, short = (lambda size: run(size, *full)), (lambda size: run(size, *quick))
    return Benchmark(ids, what, live=live, quick=short, sizes=sizes, quick_sizes=quick_sizes, sized=sized)


BENCHMARKS = (
    Benchmark("B1", "schedule one replica, warm", schedule.one_replica),
    Benchmark("B2", "schedule five replicas per cluster", schedule.all_replicas),
    Benchmark("B9", "from API objects to a decision", schedule.cold_start),
    _live("B2 B4 B9 B13 B14", "bring a fleet up, rest, start again", at_rest.at_rest,
          sizes=(10, 100, 1_000), full=(120,), quick=(5,)),
    _live("B6", "from apply to a workload object", reactions.applied,
          sizes=(1, 100), full=(50,), quick=(3,), quick_sizes=(1, 10), sized="at once"),
    _live("B22", "hostile tenants and clusters, on half a core", hostile.hostile,
          sizes=(20,), full=(60,), quick=(5,), quick_sizes=(6,), sized="tenants"),
)  # fmt: skip

TARGETS = (
    Target("B1", "uniform, the last pool matches: p50", 5, until=1000, layer="scheduler"),
    Target("B1", "uniform, the last pool matches: p99", 15, until=1000, layer="scheduler"),
    Target("B2", "mixed, 40 kinds of need: all decisions", 2.5, until=1000, layer="scheduler"),
    Target("B2", "CPU of the operator for each replica", 12),
    Target("B2", "decided and stored on the hub, each", 10),
    Target("B4", "no resync falls into it: writes", 0),
    Target("B4", "so every 3600 s, as by default: CPU", 0.05, until=1000),
    Target("B6", "from apply to the workload object: p50", 150),
    Target("B6", "from apply to the workload object: p99", 1000),
    Target("B9", "from start to a decision about something new", 5, until=1000),
    Target("B13", "resident, with all of it", 450, until=1000),
    Target("B13", "open files, a connection for each cluster among them", 1050, until=1000),
    Target("B14", "writes to the hub for each replica", 6),
    Target("B14", "writes to the workload for each replica", 5),
    Target("B22", "/healthz, beside them: p99", 100),
    Target("B22", "leases lost, beside them", 0),
)


def main() -> None:
    known = "\n".join(f"  {one.ids:17} {one.layer:9}  {one.what}" for one in BENCHMARKS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"benchmarks:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="which, for example B1 B6 (default: all)")
    parser.add_argument("--layer", choices=report.LAYERS, help="only those of the scheduler, or only live ones")
    parser.add_argument("--size", type=int, action="append", help="another size than the usual ones; may be repeated")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, of which the median counts (default: 1)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small and short; fails where counts are a third above benchmarks/counts.json",
    )
    parser.add_argument("--keep-counts", action="store_true", help="of a short run: write benchmarks/counts.json anew")
    parser.add_argument("--print-only", action="store_true", help="write no file")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.keep_counts and not given.quick:
        parser.error("--keep-counts goes with --quick")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    if given.one is not None:
        _print_one(BENCHMARKS[given.one], given.size[0], quick=given.quick)
        return
    wanted = {id_.upper() for id_ in given.ids}
    if unknown := wanted - {id_ for one in BENCHMARKS for id_ in one.ids.split()}:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    figures: list[Figure] = []
    for number, one in enumerate(BENCHMARKS):
        if (wanted and not wanted & {*one.ids.split()}) or given.layer not in {None, one.layer}:
            continue
        for size in given.size or (one.quick_sizes if given.quick else one.sizes):
            print(f"{one.ids} {one.what}, {size:,} {one.sized}", file=sys.stderr, flush=True)
            runs = [[*_in_own_process(number, size, quick=given.quick)] for _ in range(given.repeat)]
            figures += report.median(runs)
    _say_slopes(figures)
    if given.quick:
        _hold_against(figures, keep=given.keep_counts)
    if not (given.print_only or given.quick):
        everything = report.merged(figures)
        report.write(everything, TARGETS, {id_: one.sized for one in BENCHMARKS for id_ in one.ids.split()})
        print(f"written: {', '.join(str(path.relative_to(report.ROOT)) for path in (report.JSON, report.PAGE))}")


def _hold_against(figures: Sequence[Figure], *, keep: bool) -> None:
    """Fail where there are more requests, connections or bytes than there were; how long it took is the machine's."""
    kept: dict[str, float] = json.loads(report.COUNTS.read_text())
    if keep:
        report.COUNTS.write_text(json.dumps(kept | report.counts(figures), indent=2, sort_keys=True) + "\n")
    elif worse := report.regressions(figures, kept):
        sys.exit("\n".join(["more than a third above benchmarks/counts.json:", *worse]))


def _say_slopes(figures: Sequence[Figure]) -> None:
    for (_, id_, metric), (slope, margin) in report.slopes(figures).items():
        print(f"{id_} slope of {metric}: {slope:.2f} ± {margin:.2f}")


def _print_one(one: Benchmark, size: int, *, quick: bool) -> None:
    # As a server does that holds many objects for long: else the collector walks the whole fleet over and over.
    gc.set_threshold(20_000, 20, 100)
    if one.run:
        for figure in one.run(size):
            _say(figure)
    elif live := one.quick if quick else one.live:
        asyncio.run(_say_all(partial(live, size)))


async def _say_all(run: Callable[[], AsyncIterator[Figure]]) -> None:
    async for figure in run():
        _say(replace(figure, layer="live"))


def _say(figure: Figure) -> None:
    print(json.dumps(asdict(figure)), flush=True)


def _in_own_process(number: int, size: int, *, quick: bool) -> Iterator[Figure]:
    command = [sys.executable, "-m", "benchmarks", f"--one={number}", f"--size={size}", *["--quick"] * quick]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=report.ROOT, env=environment) as process:
        try:
            for line in process.stdout or ():
                figure = Figure(**json.loads(line))
                print(f"  {figure.id} {figure.metric}: {figure.value:,} {figure.unit}", flush=True)
                yield figure
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        sys.exit(f"benchmark {BENCHMARKS[number].ids} of size {size} failed: exit code {process.returncode}")


if __name__ == "__main__":
    main()
