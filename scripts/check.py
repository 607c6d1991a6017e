"""Check what a change can reach: format, lint, import contracts, generated files, types and pure tests.

    python scripts/check.py                 what differs from main, or the last commit where nothing does
    python scripts/check.py --since v0.3.0  what differs from that commit
    python scripts/check.py --all           the types of everything, and no tests: `make test` runs those

Types are checked in the modules that import a changed one, however indirectly. Tests run in the test modules nearest to
a change. A file that is not Python reaches the tests that name it, or the top folder that it is in.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
TYPED = ("kubeloop", "modelplane_operator", "localfleet")
"""The packages that pyright checks, as pyproject.toml has it."""
PACKAGES = (*TYPED, "benchmarks", "scripts", "tests")
NEAREST = 25
"""Number of test modules that run: they take half a minute on two cores."""
NO_TESTS = 5
"""Exit code of pytest when no test runs."""


def changed_files(since: str | None) -> list[Path]:
    """Return the files that differ from the commit, those that Git does not know yet included."""
    if since is None:
        since = run_git("merge-base", "HEAD", "main").strip()
        if not run_git("diff", "--name-only", since).strip():
            since = "HEAD~1"
    changed = run_git("diff", "--name-only", since) + run_git("ls-files", "--others", "--exclude-standard")
    return sorted({Path(line) for line in changed.splitlines()})


def run_git(*arguments: str) -> str:
    """Return what Git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def order_by_distance(graph: grimp.ImportGraph, start: Collection[str]) -> list[str]:
    """Return these modules and all that import them, however indirectly, the nearest first."""
    distance = dict.fromkeys((module for module in start if module in graph.modules), 0)
    for module in (queue := list(distance)):
        for importer in sorted(graph.find_modules_that_directly_import(module)):
            if importer not in distance:
                distance[importer] = distance[module] + 1
                queue.append(importer)
    return queue


def module_name(path: Path) -> str:
    """Return the name by which Python imports a file."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_path(name: str) -> Path:
    """Return the file of a module."""
    path = Path(*name.split("."))
    return path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py")


def tests_that_name(files: Iterable[Path]) -> list[str]:
    """Return the test modules that name one of these files, which are not Python, or the top folder that it is in."""
    names = {re.escape(name) for path in files for name in (path.name, path.parts[0]) if name != "tests"}
    if not names:
        return []
    named = re.compile(rf"""["'/]({"|".join(sorted(names))})["'/]""")
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    return [module_name(test.relative_to(ROOT)) for test in tests if named.search(test.read_text())]


def select(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the modules to check for types and the modules of tests that a change of these files reaches."""
    python = [module_name(path) for path in files if path.suffix == ".py" and path.parts[0] in PACKAGES]
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    reached = order_by_distance(graph, python)
    typed = [module_path(name) for name in reached if name.split(".")[0] in TYPED]
    tests = [name for name in reached if name.rpartition(".")[2].startswith("test_")]
    tests += [name for name in tests_that_name(path for path in files if path.suffix != ".py") if name not in tests]
    return typed, [module_path(name) for name in tests]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", help="check what differs from this commit")
    parser.add_argument("--all", action="store_true", help="check everything, but run no test")
    arguments = parser.parse_args()

    typed: list[Path] = []
    tests: list[Path] = []
    if not arguments.all:
        files = changed_files(arguments.since)
        typed, tests = select(files)
        left = f", of which the nearest {NEAREST} run" if len(tests) > NEAREST else ""
        print(
            f"{len(files)} changed files reach {len(typed)} modules with types and {len(tests)} of tests{left}.",
            flush=True,
        )
    commands: list[Sequence[str | Path]] = [
        [BIN / "ruff", "format", "--check", "--quiet", "."],
        [BIN / "ruff", "check", "--quiet", "."],
        [BIN / "lint-imports", "--no-logo"],
        [sys.executable, "scripts/generate.py", "--check"],
        [sys.executable, "scripts/words.py", "--check"],
    ]
    if tests:
        commands.append([BIN / "pytest", "--quiet", "--numprocesses=2", "--hypothesis-profile=quick", *tests[:NEAREST]])
    types = subprocess.Popen([BIN / "pyright", *typed], cwd=ROOT) if typed or arguments.all else None
    failed = next(filter(run, commands), None)
    return 1 if (types and types.wait()) or failed else 0


def run(command: Sequence[str | Path]) -> bool:
    """Return whether a command fails. Modules whose tests all wait for programs are no failure."""
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return code != 0 and not (code == NO_TESTS and command[0] == BIN / "pytest")


if __name__ == "__main__":
    sys.exit(main())
