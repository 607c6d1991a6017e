"""Curves of figures over sizes, as SVG: both axes logarithmic, so that a power of the size is a straight line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from benchmarks.report import Figure

WIDTH, HEIGHT, LEFT, TOP, LEGEND = 560, 320, 60, 30, 16
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")

Points = list[tuple[float, float]]


def write(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """One file for each benchmark and unit that was measured at three sizes at least."""
    charts: dict[tuple[str, str, str], dict[str, Points]] = {}
    for figure in sorted(figures, key=lambda one: one.size):
        if figure.value > 0 and figure.unit in {"ms", "s", "MB", "core"} and "floor" not in figure.metric:
            chart = charts.setdefault((figure.layer, figure.id, figure.unit), {})
            chart.setdefault(figure.metric, []).append((figure.size, figure.value))
    written: list[Path] = []
    for (layer, id_, unit), series in charts.items():
        long = {metric: points for metric, points in series.items() if len(points) >= 3}
        if long:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{layer}-{id_}-{unit}.svg"
            path.write_text("\n".join(_chart(f"{id_}, {unit}", long)) + "\n")
            written.append(path)
    return written


def _chart(title: str, series: dict[str, Points]) -> Iterator[str]:
    sizes = sorted({size for points in series.values() for size, _ in points})
    decades = [math.log10(value) for points in series.values() for _, value in points]
    low, high = math.floor(min(decades)), math.ceil(max(decades))
    high = max(high, low + 1)

    def x(size: float) -> float:
        return LEFT + (WIDTH - 2 * LEFT) * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])

    def y(value: float) -> float:
        return TOP + (HEIGHT - 2 * TOP) * (high - math.log10(value)) / (high - low)

    total = HEIGHT + LEGEND * len(series) + 10
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{total}" font-family="sans-serif"'
    yield 'font-size="11">'
    yield f'<rect width="100%" height="100%" fill="white"/><text x="{LEFT}" y="18">{escape(title)}</text>'
    for decade in range(low, high + 1):
        level = y(10.0**decade)
        yield f'<line x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{level:.1f}" y2="{level:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>'
    for size in sizes:
        yield f'<text x="{x(size):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{size:,}</text>'
    for number, (metric, points) in enumerate(series.items()):
        colour, level = COLOURS[number % len(COLOURS)], HEIGHT + LEGEND * number + 8
        line = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in points)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        yield from (
            f'<circle cx="{x(size):.1f}" cy="{y(value):.1f}" r="2.5" fill="{colour}"/>' for size, value in points
        )
        yield f'<rect x="{LEFT}" y="{level - 9}" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{LEFT + 16}" y="{level}">{escape(metric)}</text>'
    yield "</svg>"
