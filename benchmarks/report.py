"""Figures: printed, compared with counts that are kept, and written into the tables of two pages."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "internals" / "performance-tables.md"
SIZING_PAGE = ROOT / "docs" / "scaling.md"
COUNTS = ROOT / "benchmarks" / "counts.json"
COUNTED = frozenset({"writes", "requests", "files", "kB"})
TOLERATED = 4 / 3
SIZING = {
    "replicas": ("bring-up", "replicas, of ten to a deployment"),
    "memory of the clusters alone": ("memory", "resident, clusters alone"),
    "memory, with the replicas": ("memory", "resident, with replicas"),
    "CPU at rest": ("rest", "a resync every 3600 s, the default: CPU"),
    "requests at rest": ("rest", "without a resync: reads"),
    "CPU for a new replica": ("bring-up", "CPU of the operator for each replica"),
    "writes to the hub for it": ("writes", "writes to the hub for each replica"),
    "etcd, with its history": ("bring-up", "etcd of the hub, with its history"),
    "from start to leading": ("restart", "from start to leading"),
    "until all clusters are connected": ("restart", "from start until all clusters are connected"),
}
"""The columns of the table for those who size a hub, and the figures in them."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: of which benchmark, of what size, what was measured."""

    name: str
    size: int
    metric: str
    value: float
    unit: str
    cv: float | None = None
    """The standard deviation of several runs by their mean."""

    @property
    def series(self) -> tuple[str, str]:
        return self.name, self.metric


@dataclass(frozen=True, slots=True)
class Target:
    """The maximum that is aimed at for a figure of that benchmark and metric, up to a size."""

    name: str
    metric: str
    maximum: float
    until: int = 10**9

    def applies_to(self, figure: Figure) -> bool:
        return figure.series == (self.name, self.metric) and figure.size <= self.until


def counts(figures: Iterable[Figure]) -> dict[str, float]:
    """Return the figures that do not depend on the machine, by benchmark and metric."""
    return {
        f"{figure.name} {figure.metric}": figure.value
        for figure in figures
        if figure.unit in COUNTED and not figure.metric.startswith("of those")
    }


def regressions(figures: Iterable[Figure], kept: Mapping[str, float]) -> list[str]:
    """Return what is more than a third above the count that was kept of it."""
    return [
        f"{metric}: {now:g}, and it was {kept[metric]:g}"
        for metric, now in counts(figures).items()
        if metric in kept and now > kept[metric] * TOLERATED
    ]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent of the values do not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100) - 1, 0)]


def median(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Return the median of several runs, and how far they differ."""
    series: dict[tuple[tuple[str, str], int], list[Figure]] = {}
    for figure in (figure for run in runs for figure in run):
        series.setdefault((figure.series, figure.size), []).append(figure)
    return [_median(figures) for figures in series.values()]


def _median(figures: Sequence[Figure]) -> Figure:
    values = [figure.value for figure in figures]
    mean = statistics.fmean(values)
    cv = statistics.stdev(values) / mean if len(values) > 1 and mean else None
    return replace(figures[0], value=statistics.median(values), cv=cv)


# Pages ---------------------------------------------------------------------------------------------------------------


def write(figures: Sequence[Figure], targets: Sequence[Target], units: Mapping[str, str]) -> None:
    """Write figures into both pages, which keep those that were not measured. `units`: what sizes count, by name."""
    page = PAGE.read_text()
    measured = {(figure.name, figure.size) for figure in figures}
    every = [*(one for one in read(page) if (one.name, one.size) not in measured), *figures]
    tables = [
        f"### {name}\n\n{table(of_name, targets, unit)}"
        for name, unit in units.items()
        if (of_name := sorted((one for one in every if one.name == name), key=lambda one: (one.metric, one.size)))
    ]
    PAGE.write_text(_with(page, "figures", "\n" + "\n".join(tables) + "\n"))
    SIZING_PAGE.write_text(_with(SIZING_PAGE.read_text(), "sizing", sizing(every)))


def read(page: str) -> Iterator[Figure]:
    """Return the figures on a page, as exact as it has them."""
    begin, end = marks("figures")
    name, sizes = "", list[int]()
    for line in page.partition(begin)[2].partition(end)[0].splitlines():
        if line.startswith("### "):
            name = line.removeprefix("### ")
        match [cell.strip() for cell in line.split("|")[1:-1]]:
            case ["measured", _, *columns, _]:
                sizes = [int(_number(column)) for column in columns]
            case [metric, unit, *cells, _] if not metric.startswith("---"):
                for size, cell in zip(sizes, cells, strict=True):
                    if cell:
                        _, _, cv = cell.partition(" ± ")
                        yield Figure(name, size, metric, _number(cell), unit, float(cv[:-1]) / 100 if cv else None)
            case _:
                pass


def _number(cell: str) -> float:
    return float(cell.partition(" ")[0].replace(",", ""))


def marks(name: str) -> tuple[str, str]:
    """Return the lines of a page between which figures are."""
    return f"<!-- {name}: written by `make bench` -->", f"<!-- end of {name} -->"


def _with(page: str, name: str, tables: str) -> str:
    """Return a page with these tables between the marks of that name."""
    begin, end = marks(name)
    head, mark, tail = page.partition(begin)
    if not mark:
        raise LookupError(f"there is no line {begin}")
    return f"{head}{begin}\n{tables}{end}{tail.partition(end)[2]}"


def sizing(figures: Iterable[Figure]) -> str:
    """Return the table of what a hub needs, one row for each size of a fleet."""
    figure_of = {(*figure.series, figure.size): figure for figure in figures}
    sizes = sorted(size for name, metric, size in figure_of if (name, metric) == SIZING["replicas"])
    lines = [f"| clusters | {' | '.join(SIZING)} |", f"|---:|{'---:|' * len(SIZING)}"]
    for size in sizes:
        row = (figure_of.get((*series, size)) for series in SIZING.values())
        cells = (f"{_value(figure)} {figure.unit}" if figure else "" for figure in row)
        lines.append(f"| {size:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table(figures: Sequence[Figure], targets: Sequence[Target], unit: str) -> str:
    """Return a table with one row for each metric and one column for each size."""
    sizes = sorted({figure.size for figure in figures})
    lines = [
        f"| measured | unit | {' | '.join(f'{size:,} {unit}' for size in sizes)} | target |",
        f"|---|---|{'---:|' * len(sizes)}---|",
    ]
    for metric in dict.fromkeys(figure.metric for figure in figures):
        row = {figure.size: figure for figure in figures if figure.metric == metric}
        cells = " | ".join(_value(row[size]) if size in row else "" for size in sizes)
        shown = next(iter(row.values())).unit
        lines.append(f"| {metric} | {shown} | {cells} | {_verdict([*row.values()], targets)} |")
    return "\n".join(lines) + "\n"


def _value(figure: Figure) -> str:
    value = figure.value
    digits = 0 if float(value).is_integer() or value >= 100 else 2 if value >= 0.1 else 4
    return f"{value:,.{digits}f}" + (f" ± {figure.cv:.0%}" if figure.cv else "")


def _verdict(figures: Sequence[Figure], targets: Sequence[Target]) -> str:
    """Return the target of these figures, and whether the worst of them misses it."""
    for target in targets:
        if of_target := [figure.value for figure in figures if target.applies_to(figure)]:
            return f"{target.maximum:g}" + (", missed" if max(of_target) > target.maximum else "")
    return ""
