"""The benchmarks still measure the operator as it is. What they find is no matter here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.manifests import ROOT

pytestmark = pytest.mark.fleet


def test_a_benchmark_of_the_whole_operator_comes_to_its_figures() -> None:
    asked = [sys.executable, "-m", "benchmarks", "B7", "--quick"]

    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    assert said.returncode == 0, said.stderr[-2000:]
    assert "from pod to ModelDeployment.status: p99" in said.stdout
