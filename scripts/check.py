"""Check what a change can reach: format, lint, import contracts, generated files, types and pure tests.

    python scripts/check.py                 what differs from main, or the last commit where nothing does
    python scripts/check.py --since v0.3.0  what differs from that commit
    python scripts/check.py --all           the types of everything, and no tests: `make test` runs those

Types are checked in the modules that import a changed one, however indirectly. Tests run in the test modules nearest to
a change, as far as they have pure tests. A file that is not Python reaches the tests that name it, or the top folder
that it is in; below tests/ also those beside it.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
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
EVERYWHERE = ("pyproject.toml", "requirements.txt", "tests/conftest.py")
"""Files that can change any test, and the types of anything."""
LEFT_OUT = {"fleet", "processes", "oracle", "faults", "slow", "long"}
"""Marks of tests that a plain pytest leaves out, as pyproject.toml has it."""


class UnknownError(Exception):
    """Git does not know what has changed; the message says why."""


def changed_files(since: str | None, root: Path = ROOT) -> list[Path]:
    """Return the files that differ from the commit: also those that are gone, and those that Git does not know yet."""
    differ = ("diff", "--name-only", "--no-renames")
    if since is None:
        since = run_git(root, "merge-base", "HEAD", "main").strip()
        if not run_git(root, *differ, since).strip():
            since = "HEAD~1"
    changed = run_git(root, *differ, since) + run_git(root, "ls-files", "--others", "--exclude-standard")
    return sorted({Path(line) for line in changed.splitlines()})


def run_git(root: Path, *arguments: str) -> str:
    """Return what Git prints."""
    done = subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True, text=True)
    if done.returncode:
        raise UnknownError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def build_graph() -> grimp.ImportGraph:
    """Return who imports whom, with the modules that are imported by a name in a string."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    for importer in modules_with(r"import_module\(", graph):
        for name in re.findall(r'"([\w.]+)"', (ROOT / module_path(importer)).read_text()):
            for imported in {name, f"{importer.rpartition('.')[0]}.{name}"} & graph.modules:
                graph.add_import(importer=importer, imported=imported)
    return graph


def modules_with(pattern: str, graph: grimp.ImportGraph) -> list[str]:
    """Return the modules whose source has a match; folders without `__init__.py` have none."""
    paths = {name: ROOT / module_path(name) for name in sorted(graph.modules)}
    return [name for name, path in paths.items() if path.exists() and re.search(pattern, path.read_text())]


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


def test_modules(folder: str = "tests") -> Iterator[Path]:
    """Return the test modules in a folder and below."""
    return (path.relative_to(ROOT) for path in sorted((ROOT / folder).rglob("test_*.py")))


def tests_that_name(files: Iterable[Path]) -> list[Path]:
    """Return the test modules that name one of these files, which are not Python, or the top folder that it is in."""
    names = {re.escape(name) for path in files for name in (path.name, path.parts[0]) if name != "tests"}
    if not names:
        return []
    named = re.compile(rf"""["'/]({"|".join(sorted(names))})["'/]""")
    return [test for test in test_modules() if named.search((ROOT / test).read_text())]


def tests_beside(file: Path) -> list[Path]:
    """Return the test modules in the folder of a file below tests/, or in the next one above that has any.

    A conftest.py is for all below it.
    """
    if file.name == "conftest.py":
        return [*test_modules(str(file.parent))]
    above = (folder for folder in file.parents if folder.parts[:1] == ("tests",))
    found = (sorted((ROOT / folder).glob("test_*.py")) for folder in above)
    return [path.relative_to(ROOT) for path in next(filter(None, found), [])]


def has_pure_tests(module: Path) -> bool:
    """Return whether a plain pytest runs anything of a test module, as far as the marks in its source say."""
    tree = ast.parse((ROOT / module).read_text())
    marks = {name for each in tree.body if isinstance(each, ast.Assign) for name in attributes(each)}
    tests = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    tests = (each for each in tests if each.name.startswith("test_"))
    return not marks & LEFT_OUT and any(not LEFT_OUT & attributes(*each.decorator_list) for each in tests)


def attributes(*trees: ast.AST) -> set[str]:
    """Return the names of all attributes in expressions, as of `pytest.mark.fleet`."""
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def importers_of_removed(names: Collection[str], graph: grimp.ImportGraph) -> list[str]:
    """Return the modules that still import modules which are gone."""
    imports = [rf"{re.escape(name)}\b" for name in names]
    for name in names:
        parent, _, leaf = name.rpartition(".")
        imports.append(rf"from {re.escape(parent)} import (\([^)]*|.*)\b{leaf}\b")
    return modules_with("|".join(imports), graph)


def select(files: Sequence[Path], graph: grimp.ImportGraph) -> tuple[list[Path], list[Path]]:
    """Return the modules to check for types and the modules of pure tests that a change of these files reaches."""
    python = [module_name(path) for path in files if path.suffix == ".py" and path.parts[0] in PACKAGES]
    others = [path for path in files if path.suffix != ".py"]
    removed = {name for name in python if name not in graph.modules}
    reached = order_by_distance(graph, [*python, *(importers_of_removed(removed, graph) if removed else ())])
    tests = [module_path(name) for name in reached if name.rpartition(".")[2].startswith("test_")]
    for path in files:
        if path.parts[0] == "tests" and (path in others or path.name == "conftest.py"):
            tests += tests_beside(path)
    tests += tests_that_name(others)
    typed = reached
    if everywhere := any(str(path) in EVERYWHERE for path in files):
        tests += test_modules()
    if everywhere or removed:  # what used a removed module is in no graph
        typed = sorted(graph.modules)
    own = {f"test_{path.stem}" for path in files}
    tests = sorted(filter(has_pure_tests, dict.fromkeys(tests)), key=lambda path: path.stem not in own)
    paths = [module_path(name) for name in typed if name.split(".")[0] in TYPED]
    return [path for path in paths if (ROOT / path).exists()], tests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", help="check what differs from this commit")
    parser.add_argument("--all", action="store_true", help="check everything, but run no test")
    arguments = parser.parse_args()

    typed: list[Path] = []
    tests: list[Path] = []
    if not arguments.all:
        try:
            files = changed_files(arguments.since)
        except UnknownError as error:
            sys.exit(f"check: {error}\nname a commit that is here: make check SINCE=COMMIT; or: make check-all")
        typed, tests = select(files, build_graph())
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
