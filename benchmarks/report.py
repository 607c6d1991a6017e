"""Figures, and where they go: the terminal, build/bench.json and a table in docs/performance.md."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JSON = ROOT / "build" / "bench.json"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- scheduler: written by `make bench` -->", "<!-- end of scheduler -->"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: which benchmark, how many clusters, what was measured."""

    id: str
    size: int
    metric: str
    value: float
    unit: str


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100) - 1, 0)]


def slopes(figures: Iterable[Figure]) -> list[Figure]:
    """How each time grows with the size: the exponent, by least squares over logarithms, with its 95% interval."""
    series: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for figure in figures:
        if figure.unit in ("ms", "s") and figure.value > 0:
            series.setdefault((figure.id, figure.metric), []).append((math.log(figure.size), math.log(figure.value)))
    found: list[Figure] = []
    for (id_, metric), points in series.items():
        if len(points) >= 3:
            slope, margin = _least_squares(points)
            found.append(Figure(id_, 0, f"slope of {metric}", round(slope, 3), "exponent"))
            found.append(Figure(id_, 0, f"95% margin of the slope of {metric}", round(margin, 3), "exponent"))
    return found


# The 97.5% quantile of Student's distribution, by degrees of freedom.
_STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}


def _least_squares(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return slope, _STUDENT.get(n - 2, 2) * math.sqrt(rest / (n - 2) / spread)


def write(figures: Sequence[Figure]) -> None:
    """Replace what was measured before of the same benchmarks, in both files."""
    measured = {figure.id for figure in figures}
    known = [Figure(**found) for found in json.loads(JSON.read_text())] if JSON.exists() else []
    kept = [figure for figure in known if figure.id not in measured]
    everything = sorted([*kept, *figures], key=lambda figure: (_number(figure.id), figure.metric, figure.size))
    JSON.parent.mkdir(exist_ok=True)
    JSON.write_text(json.dumps([asdict(figure) for figure in everything], indent=1) + "\n")
    page = PAGE.read_text() if PAGE.exists() else f"# Performance\n\n{BEGIN}\n{END}\n"
    if BEGIN not in page:
        page = f"{page.rstrip()}\n\n{BEGIN}\n{END}\n"
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n{table(everything)}{END}{tail}")


def table(figures: Sequence[Figure]) -> str:
    """One row for each thing measured, one column for each size."""
    sizes = sorted({figure.size for figure in figures if figure.size})
    values = {(figure.id, figure.metric, figure.size): figure for figure in figures}
    rows = dict.fromkeys((figure.id, figure.metric) for figure in figures if figure.size)
    lines = [
        f"| | measured | {' | '.join(f'{size:,} clusters' for size in sizes)} | slope |",
        f"|---|---|{'---:|' * len(sizes)}---:|",
    ]
    for id_, metric in rows:
        cells = [_cell(values.get((id_, metric, size))) for size in sizes]
        slope = values.get((id_, f"slope of {metric}", 0))
        margin = values.get((id_, f"95% margin of the slope of {metric}", 0))
        exponent = f"{slope.value:.2f} ± {margin.value:.2f}" if slope and margin else ""
        lines.append(f"| {id_} | {metric} | {' | '.join(cells)} | {exponent} |")
    return "\n".join(lines) + "\n"


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    digits = 0 if isinstance(figure.value, int) or figure.value >= 100 else 2
    return f"{figure.value:,.{digits}f} {figure.unit}"


def _number(id_: str) -> tuple[int, str]:
    digits = "".join(filter(str.isdigit, id_))
    return int(digits or 0), id_
