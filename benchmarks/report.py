"""Figures, and where they go: the terminal, build/bench.json, tables in docs/."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JSON = ROOT / "build" / "bench.json"
PAGE = ROOT / "docs" / "performance.md"
SIZING_PAGE = ROOT / "docs" / "scaling.md"
COUNTS = ROOT / "benchmarks" / "counts.json"
COUNTED = frozenset({"writes", "requests", "files", "kB"})
TOLERATED = 4 / 3
LAYERS = ("scheduler", "live")
SIZING = {
    "replicas": ("B2", "replicas, of ten to a deployment"),
    "memory of the clusters alone": ("B13", "resident, clusters alone"),
    "memory, with the replicas": ("B13", "resident, with all of it"),
    "CPU at rest": ("B4", "so every 3600 s, as by default: CPU"),
    "requests at rest": ("B4", "no resync falls into it: reads"),
    "CPU for a new replica": ("B2", "CPU of the operator for each replica"),
    "writes to the hub for it": ("B14", "writes to the hub for each replica"),
    "etcd, with its history": ("B2", "etcd of the hub, with its history"),
    "from start to leading": ("B9", "from start to leading"),
    "until all clusters are known": ("B9", "from start until all clusters are known"),
}
"""What somebody asks who sizes a hub, and which figures answer it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: which benchmark, of what size, what was measured."""

    id: str
    size: int
    metric: str
    value: float
    unit: str
    cv: float | None = None
    """How far runs differ: their standard deviation by their mean."""
    layer: str = "scheduler"

    @property
    def series(self) -> tuple[str, str, str]:
        return self.layer, self.id, self.metric


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure of that benchmark and metric is to be at most, at sizes from `since` to `until`."""

    id: str
    metric: str
    most: float
    since: int = 0
    until: int = 10**9
    layer: str = "live"

    def concerns(self, figure: Figure) -> bool:
        return figure.series == (self.layer, self.id, self.metric) and self.since <= figure.size <= self.until


def counts(figures: Iterable[Figure]) -> dict[str, float]:
    """What does not depend on the machine, of each benchmark in all: by what is counted."""
    return {
        f"{one.id} {one.metric}": one.value
        for one in figures
        if one.unit in COUNTED and not one.metric.startswith("of those")
    }


def regressions(figures: Iterable[Figure], kept: Mapping[str, float]) -> list[str]:
    """What is more than a third above what was kept of it."""
    return [
        f"{what}: {now:g}, and it was {kept[what]:g}"
        for what, now in counts(figures).items()
        if what in kept and now > kept[what] * TOLERATED
    ]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100) - 1, 0)]


def median(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """The median of several runs, and how far they differ."""
    found: dict[tuple[str, str, str, int], list[Figure]] = {}
    for figure in (figure for run in runs for figure in run):
        found.setdefault((*figure.series, figure.size), []).append(figure)
    return [_median(figures) for figures in found.values()]


def _median(figures: Sequence[Figure]) -> Figure:
    values = [figure.value for figure in figures]
    mean = statistics.fmean(values)
    cv = statistics.stdev(values) / mean if len(values) > 1 and mean else None
    return replace(figures[0], value=statistics.median(values), cv=cv)


def slopes(figures: Iterable[Figure]) -> dict[tuple[str, str, str], tuple[float, float]]:
    """How each cost grows with the size: the exponent, by least squares over logarithms, and half its 95% interval."""
    points: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for figure in figures:
        if figure.unit in ("ms", "s", "core", "MB") and figure.value > 0 and "floor" not in figure.metric:
            points.setdefault(figure.series, []).append((math.log(figure.size), math.log(figure.value)))
    return {series: _least_squares(known) for series, known in points.items() if len(known) >= 3}


# The 97.5% quantile of Student's distribution, by degrees of freedom.
_STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}


def _least_squares(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return slope, _STUDENT.get(n - 2, 2) * math.sqrt(rest / (n - 2) / spread)


# Files ---------------------------------------------------------------------------------------------------------------


def merged(figures: Sequence[Figure]) -> list[Figure]:
    """All that is known, with what was measured now in the place of what was before; sorted."""
    measured = {(figure.layer, figure.id, figure.size) for figure in figures}
    known = [Figure(**found) for found in json.loads(JSON.read_text())] if JSON.exists() else shown(PAGE.read_text())
    kept = [one for one in known if (one.layer, one.id, one.size) not in measured]
    return sorted([*kept, *figures], key=lambda one: (one.layer, _number(one.id), one.metric, one.size))


def shown(page: str) -> Iterator[Figure]:
    """The figures on a page, as exact as it has them: all that is known in a clone that has measured nothing yet."""
    for layer in LAYERS:
        begin, end = marks(layer)
        sizes: list[int] = []
        for line in page.partition(begin)[2].partition(end)[0].splitlines():
            match [cell.strip() for cell in line.split("|")[1:-3]]:
                case ["", "measured", *columns]:
                    sizes = [int(_number_of(column)) for column in columns]
                case [id_, metric, *cells] if id_.startswith("B"):
                    for size, cell in zip(sizes, cells, strict=True):
                        if cell:
                            _, unit, *spread = cell.split()
                            cv = float(spread[1].rstrip("%")) / 100 if spread else None
                            yield Figure(id_, size, metric, _number_of(cell), unit, cv, layer)
                case _:
                    pass


def _number_of(cell: str) -> float:
    return float(cell.partition(" ")[0].replace(",", ""))


def marks(part: str) -> tuple[str, str]:
    """The lines between which a layer's figures are on the page, or another part."""
    return f"<!-- {part}: written by `make bench` -->", f"<!-- end of {part} -->"


def write(figures: Sequence[Figure], targets: Sequence[Target], sized: Mapping[str, str]) -> None:
    """Write all figures into both files. `sized`: what the sizes of a benchmark count."""
    JSON.parent.mkdir(exist_ok=True)
    JSON.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    page, between = PAGE.read_text(), "\n"
    for layer in LAYERS:
        tables = _tables([figure for figure in figures if figure.layer == layer], targets, sized)
        page = _with(page, layer, between.join(tables))
    PAGE.write_text(page)
    SIZING_PAGE.write_text(_with(SIZING_PAGE.read_text(), "sizing", sizing(figures)))


def _with(page: str, part: str, tables: str) -> str:
    """A page with these tables between the marks of that part."""
    begin, end = marks(part)
    head, found, rest = page.partition(begin)
    if not found:
        raise LookupError(f"there is no line {begin}")
    return f"{head}{begin}\n{tables}{end}{rest.partition(end)[2]}"


def sizing(figures: Iterable[Figure]) -> str:
    """One row for each size of a fleet."""
    values = {(one.id, one.metric, one.size): one for one in figures if one.layer == "live"}
    sizes = sorted({size for id_, metric, size in values if (id_, metric) == SIZING["replicas"]})
    lines = [f"| clusters | {' | '.join(SIZING)} |", f"|---:|{'---:|' * len(SIZING)}"]
    lines += [
        f"| {size:,} | {' | '.join(_cell(values.get((*one, size))) for one in SIZING.values())} |" for size in sizes
    ]
    return "\n".join(lines) + "\n"


def _tables(figures: Sequence[Figure], targets: Sequence[Target], sized: Mapping[str, str]) -> Iterator[str]:
    """One table for each set of sizes and what they count."""
    by_id: dict[str, list[Figure]] = {}
    for figure in figures:
        by_id.setdefault(figure.id, []).append(figure)
    groups: dict[tuple[str, tuple[int, ...]], list[Figure]] = {}
    for id_, of_id in by_id.items():
        sizes = tuple(sorted({figure.size for figure in of_id}))
        groups.setdefault((sized.get(id_, "clusters"), sizes), []).extend(of_id)
    for (unit, _), group in groups.items():
        yield table(group, targets, unit)


def table(figures: Sequence[Figure], targets: Sequence[Target], unit: str) -> str:
    """One row for each thing measured, one column for each size."""
    sizes = sorted({figure.size for figure in figures})
    values = {(*figure.series, figure.size): figure for figure in figures}
    exponents = slopes(figures)
    lines = [
        f"| | measured | {' | '.join(f'{size:,} {unit}' for size in sizes)} | slope | target |",
        f"|---|---|{'---:|' * len(sizes)}---:|---|",
    ]
    for series in dict.fromkeys(figure.series for figure in figures):
        found = [values.get((*series, size)) for size in sizes]
        slope = "{:.2f} ± {:.2f}".format(*exponents[series]) if series in exponents else ""
        cells = " | ".join(map(_cell, found))
        lines.append(f"| {series[1]} | {series[2]} | {cells} | {slope} | {_verdict(found, targets)} |")
    return "\n".join(lines) + "\n"


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    value = figure.value
    digits = 0 if float(value).is_integer() or value >= 100 else 2 if value >= 0.1 else 4
    spread = f" ± {figure.cv:.0%}" if figure.cv else ""
    return f"{value:,.{digits}f} {figure.unit}{spread}"


def _verdict(figures: Sequence[Figure | None], targets: Sequence[Target]) -> str:
    """What the target is, and how far the worst figure is from it."""
    judged = [(figure, target) for figure in figures if figure for target in targets if target.concerns(figure)]
    if not judged:
        return ""
    figure, target = max(judged, key=lambda one: one[0].value)
    said = f"<= {target.most:g} {figure.unit}"
    if figure.value <= target.most:
        return f"{said}: met"
    return f"{said}: missed, {figure.value / target.most:.1f} times that" if target.most else f"{said}: missed"


def _number(id_: str) -> tuple[int, str]:
    digits = "".join(filter(str.isdigit, id_))
    return int(digits or 0), id_
