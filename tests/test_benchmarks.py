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
from benchmarks.report import Figure, Target
from tests.support import virtual_time
from tests.support.manifests import ROOT

SECONDS = 8.0  # of a watch, before its first bookmark


def test_a_page_keeps_the_figures_that_were_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, sizing = tmp_path / "performance-tables.md", tmp_path / "scaling.md"
    for path, name in ((page, "figures"), (sizing, "sizing")):
        path.write_text("".join(f"{mark}\n" for mark in report.marks(name)))
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "SIZING_PAGE", sizing)
    known = [
        Figure("placement", 1_000, "another decision", 98.1, "ms"),
        Figure("placement", 10, "one decision", 0.0773, "ms"),
        Figure("placement", 1_000, "one decision", 1_234.0, "ms", 0.03),
        Figure("bring-up", 100, "replicas, of ten to a deployment", 500.0, "replicas"),
    ]
    measured = [
        Figure("memory", 100, "resident, with replicas", 250.0, "MB"),
        Figure("apply-to-workload", 100, "writes for each", 3.0, "writes"),
    ]
    targets = (Target("memory", "resident, with replicas", 200),)
    units = {"placement": "clusters", "bring-up": "clusters", "memory": "clusters", "apply-to-workload": "at once"}

    report.write(known, targets, units)
    report.write(measured, targets, units)

    assert list(report.read(page.read_text())) == [*known, *measured]
    assert "| resident, with replicas | MB | 250 | 200, missed |" in page.read_text()
    assert "| measured | unit | 100 at once | target |" in page.read_text()
    assert "| 100 | 500 replicas |  | 250 MB |" in sizing.read_text()


def test_a_watch_of_a_site_does_not_end_with_a_bookmark_beyond_what_it_has_told() -> None:
    feed, told = Feed(cast(Any, None), "/api/v1/pods", version=1), list[Any]()

    def happens() -> None:
        feed.version = 2
        feed.take("ADDED", {"metadata": {"name": "p", "namespace": "n--here", "resourceVersion": "2"}})

    async def watch() -> None:
        asyncio.get_running_loop().call_at(SECONDS, happens)  # in the turn of the loop in which the watch ends
        told.extend([orjson.loads(line) async for line in feed.watch_lines("here", "", 1, SECONDS)])

    virtual_time.run(watch())
    assert [(one["type"], one["object"]["metadata"]["resourceVersion"]) for one in told] == [("ADDED", "2")]


def test_a_count_a_third_above_the_one_that_was_kept_is_a_regression() -> None:
    figures = [
        Figure("writes", 3, "writes to the hub for each replica", 12.1, "writes"),
        Figure("writes", 3, "of those, events", 9.0, "writes"),
        Figure("memory", 3, "open files and connections", 12, "files"),
        Figure("rest", 3, "writes", 1, "writes"),
        Figure("restart", 3, "from start to leading", 99.0, "s"),
        Figure("rest", 3, "something new", 7, "writes"),
    ]
    kept = {
        "writes writes to the hub for each replica": 9.0,
        "memory open files and connections": 9,
        "rest writes": 0,
        "writes of those, events": 1,
    }

    assert report.regressions(figures, kept) == [
        "writes writes to the hub for each replica: 12.1, and it was 9",
        "rest writes: 1, and it was 0",
    ]


@pytest.mark.fleet
@pytest.mark.slow
def test_a_fleet_takes_no_more_writes_requests_connections_and_bytes_than_it_did() -> None:
    """The whole operator, by `--quick`, which fails where a count has grown by a third."""
    assert "writes to the hub for each replica" in _figures("writes")


@pytest.mark.processes
def test_a_benchmark_of_the_scheduler_comes_to_its_figures() -> None:
    assert "uniform, the last pool matches: p99" in _figures("placement")


def _figures(benchmark: str) -> str:
    asked = [sys.executable, "-m", "benchmarks", benchmark, "--quick"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert said.returncode == 0, said.stderr[-2000:]
    return said.stdout
