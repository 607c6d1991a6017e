"""The benchmarks still measure the operator as it is. What they find is no matter here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.report import Figure
from tests.support.manifests import ROOT


def test_a_page_gives_back_the_figures_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "docs" / "performance.md"
    page.parent.mkdir()
    page.write_text("".join(f"{mark}\n" for layer in report.LAYERS for mark in report.marks(layer)))
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "JSON", tmp_path / "build" / "bench.json")
    figures = [
        Figure("B1", 10, "one decision", 0.0773, "ms"),
        Figure("B1", 1_000, "one decision", 1_234.0, "ms", 0.03),
        Figure("B1", 1_000, "only here", 98.1, "%"),
        Figure("B6", 100, "writes", 0.0, "writes", layer="live"),
    ]

    report.write(figures, (), {"B6": "at once"}, ())

    assert list(report.shown(page.read_text())) == figures


@pytest.mark.fleet
def test_a_benchmark_of_the_whole_operator_comes_to_its_figures() -> None:
    assert "from pod to ModelDeployment.status: p99" in _figures("B7")


def test_a_benchmark_of_selectors_comes_to_its_figures() -> None:
    assert "evaluations, not remembered" in _figures("B11")


def _figures(benchmark: str) -> str:
    asked = [sys.executable, "-m", "benchmarks", benchmark, "--quick"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert said.returncode == 0, said.stderr[-2000:]
    return said.stdout
