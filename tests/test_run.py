"""A long run says how far it is, and cannot pass by leaving tests out."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.groups import FLEET, LONG, SECOND_STAGE, SHARED, STAGE, group_of
from tests.support.manifests import ROOT
from tests.support.run import NICE, fit

pytestmark = pytest.mark.processes

PYTEST = (sys.executable, "-m", "pytest")
HUB_GATEWAY = "tests/routing/gateway/test_hub_gateway.py"
FILES = ("tests/kubeloop/test_lease.py", HUB_GATEWAY, "tests/routing/gateway/test_path.py")
PASSES = "def test_passes(): pass\n"
DIES = "import os\ndef test_dies(): os._exit(3)\n"
SKIPS = "import pytest\n@pytest.mark.skip(reason='no mood')\ndef test_skips(): pass\n"
SKIPS_ALL = "import pytest\npytest.skip('no mood', allow_module_level=True)\n"
RULES = ("-p", "tests.conftest")
TELLS = "import os\ndef test_tells(measured): measured(f'nice: {os.nice(0)}')\n"
MEASURES = "def test_measures(measured): measured('two and two are four')\n"


def run(folder: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    """A run of these files over workers, as CI makes it."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.support.run", "-n1", *arguments, str(folder)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CI": "1",
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_run_ends_with_what_was_measured_and_pytests_own_words(tmp_path: Path) -> None:
    ended = run(tmp_path, "-n2", *RULES, one=PASSES, two=PASSES, three=MEASURES)
    assert ended.returncode == 0, ended.stdout
    assert "two and two are four" in ended.stdout
    assert "minutes of the longest groups: test_" in ended.stdout
    assert ended.stdout.partition("workers were done after: ")[2].splitlines()[0].count(" min") == 2
    assert re.search(r"^the machine was idle for \d+% of the time$", ended.stdout, re.MULTILINE)
    assert " 3 passed in " in ended.stdout.splitlines()[-1]


def test_whoever_asks_for_as_many_workers_as_fit_gets_one_more_than_cores_and_one_behind(tmp_path: Path) -> None:
    """In the order in which `make test-fleet` loads what says so: xdist, which has an answer of its own, comes last."""
    (tmp_path / "test_one.py").write_text(PASSES)
    fits = {fit()}
    ended = subprocess.run(
        [*PYTEST, "-p", "tests.support.run", "--numprocesses=auto", "-c", os.devnull, str(tmp_path)],
        cwd=ROOT, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    fits.add(fit())  # others take memory meanwhile
    assert any(f"created: {count + 1}/{count + 1} workers" in ended.stdout for count in fits), ended.stdout


def test_the_worker_behind_has_what_computes_and_leaves_the_others_their_time(tmp_path: Path) -> None:
    (folder := tmp_path / "tests/selectors").mkdir(parents=True)
    (folder / "test_computes.py").write_text(TELLS)
    others = 2 * fit()  # at least one for each worker before this one, which takes some, too, once it has computed
    ended = run(tmp_path, "--numprocesses=auto", *RULES, **{f"waits_{number}": TELLS for number in range(others)})
    assert ended.returncode == pytest.ExitCode.OK, ended.stdout
    found = sorted(int(one) for one in re.findall(r"nice: (-?\d+)", ended.stdout))
    assert found == [os.nice(0)] * others + [min(os.nice(0) + NICE, 19)]


def test_a_run_fails_when_a_worker_dies(tmp_path: Path) -> None:
    ended = run(tmp_path, one=PASSES, two=f"{DIES}{PASSES}", three=PASSES)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout
    assert "\nthe run is incomplete: a worker died\nthe run is incomplete: 3 of 4 tests have ended\n" in ended.stdout
    assert " 1 failed, 3 passed in " in ended.stdout.splitlines()[-1]


def summary(failed: int, passed: int = 1) -> str:
    """The end of what pytest prints."""
    counts = f"{failed} failed, {passed} passed" if failed else f"{passed} passed"
    return "".join(f"FAILED tests/test_one.py::test_{number}\n" for number in range(failed)) + f"== {counts} in 1.0s =="


@pytest.mark.parametrize(
    ("logs", "code"),
    [
        ({}, 0),
        ({"test": summary(2), "test-fleet": summary(3)}, 0),
        ({"test": summary(6)}, 1),
        ({"test": summary(3), "test-fleet": summary(3)}, 1),
        ({"test-fleet": f"the run is incomplete: a worker died\n{summary(1)}"}, 1),
        ({"test-slow": "make: *** [Makefile:1: test-slow] Error 3"}, 1),
    ],
)
def test_ci_forgives_a_handful_that_passes_alone_and_no_run_that_is_incomplete(
    tmp_path: Path, logs: dict[str, str], code: int
) -> None:
    """Its make prints these logs, and its pytest passes, which is the second try."""
    for name, text in (
        ("bin/make", 'cat "$1.log" 2>/dev/null && exit 1; echo "== 1 passed in 1.0s =="'),
        (".venv/bin/python", "true"),
        (".venv/bin/pytest", 'echo "== 1 passed in 1.0s =="'),
        (".ci/run", (ROOT / ".ci" / "run").read_text()),
    ):
        (program := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    for part, log in logs.items():
        (tmp_path / f"{part}.log").write_text(f"{log}\n")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    ended = subprocess.run(
        [tmp_path / ".ci" / "run"], env={**os.environ, "PATH": path, "CI_KIND": ""}, capture_output=True, check=False
    )
    assert ended.returncode == code, ended.stdout


def test_a_run_fails_when_a_test_or_a_file_is_skipped(tmp_path: Path) -> None:
    one = run(tmp_path, *RULES, one=PASSES, two=SKIPS)
    assert one.returncode == pytest.ExitCode.TESTS_FAILED, one.stdout
    assert "skipped, which is a failure in CI" in one.stdout
    assert run(tmp_path, *RULES, two=SKIPS_ALL).returncode != pytest.ExitCode.OK


def test_a_run_of_no_test_fails(tmp_path: Path) -> None:
    assert run(tmp_path).returncode != pytest.ExitCode.OK
    assert run(tmp_path, "--collect-only", one=PASSES).returncode != pytest.ExitCode.OK


def test_what_shares_a_fleet_is_one_group() -> None:
    assert group_of("tests/integration/test_rules.py::test_one[a::b]") == STAGE
    assert group_of("tests/integration/test_walls.py::test_one") == SECOND_STAGE
    assert group_of("tests/faults/test_crashes.py::test_one") == FLEET
    assert group_of("tests/api/test_names.py::test_one") == "tests/api/test_names.py"
    assert all(name in {STAGE, SECOND_STAGE, FLEET} or any(ROOT.glob(f"{name}*")) for name in (*LONG, *SHARED))


def test_what_shares_a_stage_comes_together_and_groups_that_take_long_come_first(tmp_path: Path) -> None:
    """Else a stage is set up again for each file of it that chance puts elsewhere."""
    only = ("--collect-only", "--quiet", "--randomly-seed=1", "-m", "fleet")
    command = [*PYTEST, *only, "tests/faults", *FILES]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    files = [line.partition("::")[0] for line in ended.stdout.splitlines() if "::" in line]
    found = list(dict.fromkeys("tests/faults" if one.startswith("tests/faults") else one for one in files))

    assert [one for one, _ in itertools.groupby(files)] == list(dict.fromkeys(files))
    assert found == ["tests/routing/gateway/test_path.py", "tests/faults", HUB_GATEWAY, "tests/kubeloop/test_lease.py"]
