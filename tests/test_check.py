"""What `make check` runs for a change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import grimp
import pytest

from scripts import check
from tests.support.manifests import ROOT


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return check.build_graph()


def find_tests(graph: grimp.ImportGraph, *files: str) -> list[str]:
    return [str(path) for path in check.select([Path(file) for file in files], graph)[1]]


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("tests/rendering/golden/dense.yaml", "tests/rendering/test_golden.py"),
        ("tests/golden/chart/defaults.yaml", "tests/test_golden.py"),
        ("tests/clouds/golden/eks.yaml", "tests/clouds/test_requests.py"),
        ("tests/api/contract.yaml", "tests/api/test_contract.py"),
        ("tests/clouds/conftest.py", "tests/clouds/test_eks_session.py"),
        ("modelplane_operator/cli/render.py", "tests/cli/test_rendering.py"),
        ("modelplane_operator/cli/rolling.py", "tests/cli/test_asking.py"),
        ("modelplane_operator/cli/platform.py", "tests/cli/test_asking.py"),
        ("pyproject.toml", "tests/test_imports.py"),
        ("requirements.txt", "tests/scheduling/test_schedule.py"),
        ("tests/conftest.py", "tests/scheduling/test_schedule.py"),
    ],
)
def test_what_no_module_imports_reaches_its_tests(graph: grimp.ImportGraph, file: str, test: str) -> None:
    assert test in find_tests(graph, file)


@pytest.mark.parametrize("file", ["kubeloop/errors.py", "modelplane_operator/api/names.py"])
def test_a_modules_own_tests_come_first(graph: grimp.ImportGraph, file: str) -> None:
    assert Path(find_tests(graph, file)[0]).name == f"test_{Path(file).name}"


def test_modules_that_wait_for_programs_take_no_place(graph: grimp.ImportGraph) -> None:
    found = find_tests(graph, "localfleet/fleet.py")

    assert "tests/localfleet/test_parts.py" in found
    assert "tests/localfleet/test_fleet.py" not in found


def test_a_removed_module_has_everything_typed_and_those_tested_that_import_it(
    graph: grimp.ImportGraph,
) -> None:
    typed, tests = check.select([Path("localfleet/gone.py")], graph)
    assert len(typed) > 300
    assert tests == []

    assert "tests.localfleet.test_progress" in check.importers_of_removed({"localfleet.progress"}, graph)


@pytest.mark.parametrize("file", check.EVERYWHERE)
def test_what_can_change_anything_has_everything_typed(graph: grimp.ImportGraph, file: str) -> None:
    assert len(check.select([Path(file)], graph)[0]) > 300
    assert check.select([Path("docs/tour.md")], graph)[0] == []


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_module_that_moves_is_named_at_both_places(tmp_path: Path) -> None:
    (tmp_path / "before.py").write_text("HERE = 1\n")
    git(tmp_path, "init", "--initial-branch=main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message=one")
    git(tmp_path, "mv", "before.py", "after.py")
    (tmp_path / "new.py").touch()

    assert check.changed_files("HEAD", tmp_path) == [Path("after.py"), Path("before.py"), Path("new.py")]
    with pytest.raises(check.UnknownError, match="HEAD~1"):  # a clone of the last commit alone
        git(tmp_path, "commit", "--message=two", "--amend")
        check.changed_files(None, tmp_path)


def test_the_marks_that_are_left_out_are_pytests_own() -> None:
    (line,) = [line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("addopts")]

    assert all(f"not {mark}" in line for mark in check.LEFT_OUT)
    assert line.count("not ") == len(check.LEFT_OUT)
