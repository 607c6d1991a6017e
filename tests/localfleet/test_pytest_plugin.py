"""The fleet that tests share ends with the last of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.manifests import ROOT

STAND_IN = """
import pytest

@pytest.fixture(scope="session")
def fleet():
    print("the fleet starts")
    yield
    print("the fleet ends")

@pytest.fixture(scope="module")
def stage(fleet):
    print("the stage is put up")
    yield
    print("the stage is cleared")
"""
TESTS = """
def test_one(stage): print("one")
def test_two(stage): print("two")
def test_three(): print("three")
def test_four(fleet): print("four")
"""


def test_it_ends_before_the_next_test_that_does_not_ask_for_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(STAND_IN)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "localfleet.pytest_plugin", "--quiet", "--capture=no", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    said = [line.lstrip(".") for line in ended.stdout.splitlines() if line.lstrip(".")]
    assert said[:-1] == [
        "the fleet starts",
        "the stage is put up",
        *("one", "two"),
        *("the stage is cleared", "the fleet ends"),
        "three",
        *("the fleet starts", "four", "the fleet ends"),
    ]
