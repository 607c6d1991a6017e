"""Expected outputs in files are compared, and rewritten by nothing but what compares them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.golden import Golden
from tests.support.manifests import ROOT


def test_a_file_is_compared_until_it_is_to_be_rewritten(tmp_path: Path) -> None:
    file = tmp_path / "cases" / "one.yaml"
    with pytest.raises(AssertionError, match="--golden-update"):
        Golden(update=False).holds(file, "first")
    Golden(update=True).holds(file, "first")

    Golden(update=False).holds(file, "first")
    with pytest.raises(AssertionError):
        Golden(update=False).holds(file, "second")


@pytest.mark.processes
def test_a_run_that_rewrites_has_no_other_tests() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--golden-update", "--collect-only", "--quiet", "tests/rendering"],
        capture_output=True,
        check=True,
        cwd=ROOT,
        text=True,
    )

    files = set(re.findall(r"^(\S+?)::", found.stdout, flags=re.MULTILINE))
    assert files == {f"tests/rendering/test_{name}.py" for name in ("air_gapped", "golden", "pins")}
