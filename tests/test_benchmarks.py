"""The benchmarks still measure the operator as it is. What they find is no matter here."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from benchmarks import report
from benchmarks.live.workload_clusters import Feed
from benchmarks.report import Figure
from tests.controllers import virtual_time
from tests.support.manifests import ROOT

SECONDS = 8.0  # of a watch, before its first bookmark


def test_a_page_gives_back_the_figures_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "docs" / "performance.md"
    page.parent.mkdir()
    page.write_text("".join(f"{mark}\n" for layer in report.LAYERS for mark in report.marks(layer)))
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "JSON", tmp_path / "build" / "bench.json")
    sizing = tmp_path / "docs" / "scaling.md"
    sizing.write_text("".join(f"{mark}\n" for mark in report.marks("sizing")))
    monkeypatch.setattr(report, "SIZING_PAGE", sizing)
    figures = [
        Figure("B1", 10, "one decision", 0.0773, "ms"),
        Figure("B1", 1_000, "one decision", 1_234.0, "ms", 0.03),
        Figure("B1", 1_000, "only here", 98.1, "%"),
        Figure("B2", 100, "replicas, of ten to a deployment", 500.0, "replicas", layer="live"),
        Figure("B13", 100, "resident, with all of it", 250.0, "MB", layer="live"),
        Figure("B6", 100, "writes", 0.0, "writes", layer="live"),
    ]

    report.write(figures, (), {"B6": "at once"})

    assert list(report.shown(page.read_text())) == figures
    assert "| 100 | 500 replicas |  | 250 MB |" in sizing.read_text()


def test_a_watch_of_a_site_does_not_end_with_a_bookmark_beyond_what_it_has_told() -> None:
    feed, told = Feed(cast(Any, None), "/api/v1/pods", version=1), list[Any]()

    def happens() -> None:
        feed.version = 2
        feed.take("ADDED", {"metadata": {"name": "p", "namespace": "n--here", "resourceVersion": "2"}})

    async def watch() -> None:
        asyncio.get_running_loop().call_at(SECONDS, happens)  # in the turn of the loop in which the watch ends
        told.extend([orjson.loads(line) async for line in feed.watched("here", "", 1, SECONDS)])

    virtual_time.run(watch())
    assert [(one["type"], one["object"]["metadata"]["resourceVersion"]) for one in told] == [("ADDED", "2")]


def test_what_is_counted_a_third_above_what_it_was_is_told() -> None:
    figures = [
        Figure("B14", 3, "writes to the hub for each replica", 12.1, "writes"),
        Figure("B14", 3, "of those, events", 9.0, "writes"),
        Figure("B13", 3, "open files", 12, "files"),
        Figure("B4", 3, "writes", 1, "writes"),
        Figure("B9", 3, "from start to leading", 99.0, "s"),
        Figure("B5", 3, "something new", 7, "writes"),
    ]
    kept = {
        "B14 writes to the hub for each replica": 9.0,
        "B13 open files": 9,
        "B4 writes": 0,
        "B14 of those, events": 1,
    }

    assert report.regressions(figures, kept) == [
        "B14 writes to the hub for each replica: 12.1, and it was 9",
        "B4 writes: 1, and it was 0",
    ]


@pytest.mark.fleet
@pytest.mark.slow
def test_a_fleet_takes_no_more_writes_requests_connections_and_bytes_than_it_did() -> None:
    """The whole operator, by `--quick`, which fails where a count has grown by a third."""
    assert "writes to the hub for each replica" in _figures("B14")


@pytest.mark.processes
def test_a_benchmark_of_the_scheduler_comes_to_its_figures() -> None:
    assert "uniform, the last pool matches: p99" in _figures("B1")


def _figures(benchmark: str) -> str:
    asked = [sys.executable, "-m", "benchmarks", benchmark, "--quick"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert said.returncode == 0, said.stderr[-2000:]
    return said.stdout
