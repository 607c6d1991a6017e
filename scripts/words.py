"""Measure the language of the code, file by file, and fail where it gets worse.

    python scripts/words.py            print the figures of each package
    python scripts/words.py --check    fail for a file that is worse than its row in scripts/words.json, or new and poor
    python scripts/words.py --write    write the rows of files that have improved, moved or gone

A file without a row has to meet the goals at once.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "scripts" / "words.json"
PACKAGES = ("kubeloop", "modelplane_operator")
DIALECT = re.compile(
    r"alike|anew|asked|begun|beside|beyond|borrowed|chance|counted|course|found|glance|gone|heard|held|"
    r"judged|kept|known|lacking|left|lender|listed|look|looks|meant|mine|named|nearness|neighbour|news|"
    r"nobody|one|ours|placed|rest|said|seen|settled|shown|somebody|spend|stays|stuck|theirs|told|trouble|"
    r"untold|wanted|whoever|whole|why|words"
)
"""Parts of names for which the field has a noun or a verb of its own."""
RIDDLE = re.compile(
    r"(After|And|As|Before|Between|Beyond|By|For|How|In|Nobody|None|Not|Of|Once|Or|Since|So|Somebody|Such|"
    r"The latter|The same|Those|To|Until|What|Whatever|When|Where|Wherever|Whether|Which|Who|Whoever|Whom|Whose|Why|"
    r"With|Without)\b"
)
"""How a docstring does not begin: a verb says what a function does, a noun what a value is."""
DOUBLE = re.compile(
    r"\b(alike|anew|any more|are to be|as long again|beside|goes on|in vain|is to be|let us|lets? go|nobody|of ours|"
    r"of theirs|somebody|that is there|what is there|whoever|whomever)\b",
    re.IGNORECASE,
)
"""Words by which a sentence has to be read twice."""
PAST = re.compile(
    r"begun|cut|done|found|given|gone|held|kept|known|left|lost|made|meant|met|said|seen|sent|shown|taken|"
    r"told"
)
GOALS = {"dialect": 0.01, "participles": 0.03, "riddles": 0.10, "double": 0.02, "one caller": 0.12}
"""The share of each that a file may have: of the parts of names, functions, docstrings twice, private functions.

A private function with one caller and one or two statements is better read where it is called.
"""
FEW = 1  # of a kind, which no file is refused for


class Figures:
    """How often each fault occurs in a file, and of how many."""

    def __init__(self, text: str) -> None:
        self.faults: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        tree = ast.parse(text)
        self._uses = Counter(re.findall(r"\b_[a-z]\w*", text))
        self._called = {_name_of(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            self._count(node)

    def _count(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef(name=name, body=body) | ast.AsyncFunctionDef(name=name, body=body):
                self._name(name)
                if not name.startswith("__") and not any("property" in ast.unparse(one) for one in node.decorator_list):
                    self._add("participles", _is_participle(next(iter(_parts(name)), "")))
                if name.startswith("_") and not name.startswith("__"):
                    is_jump = self._uses[name] <= 2 and name in self._called  # and not a callback, which needs a name
                    self._add("one caller", is_jump and len(body) - _has_docstring(body) <= 2)
            case ast.ClassDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                self._name(name)
            case _:
                pass
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    self._add("riddles", RIDDLE.match(text.strip()) is not None)
                    self._add("double", DOUBLE.search(text) is not None)
                case _:
                    pass

    def _name(self, name: str) -> None:
        for part in _parts(name):
            self._add("dialect", DIALECT.fullmatch(part) is not None)

    def _add(self, kind: str, fault: bool) -> None:  # noqa: FBT001 - one of two counters
        self.totals[kind] += 1
        self.faults[kind] += fault

    def poor(self) -> list[str]:
        """Return the goals that these figures miss."""
        return [
            f"{kind}: {self.faults[kind]} of {self.totals[kind]}"
            for kind, goal in GOALS.items()
            if self.faults[kind] > max(FEW, goal * self.totals[kind])
        ]


def _parts(name: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)]


def _name_of(function: ast.expr) -> str:
    """Return the name by which a function is called."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _has_docstring(body: list[ast.stmt]) -> bool:
    return isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)


def _is_participle(word: str) -> bool:
    return bool(PAST.fullmatch(word)) or (len(word) > 4 and word.endswith(("ed", "en", "ing")))


def measure() -> dict[str, Figures]:
    """Return the figures of each module, by its path."""
    modules = (module for package in PACKAGES for module in sorted((ROOT / package).rglob("*.py")))
    return {str(module.relative_to(ROOT)): Figures(module.read_text()) for module in modules}


def worse(figures: dict[str, Figures], rows: dict[str, dict[str, int]]) -> list[str]:
    """Return what has got worse, a line for each file."""
    found = list[str]()
    for file, now in figures.items():
        row = rows.get(file)
        faults = (
            now.poor()
            if row is None
            else [
                f"{kind}: {now.faults[kind]}, {row.get(kind, 0)} before"
                for kind in GOALS
                if now.faults[kind] > row.get(kind, 0)
            ]
        )
        if faults:
            found.append(f"{file}: {'; '.join(faults)}")
    return found


def show(figures: dict[str, Figures]) -> None:
    """Print the shares of each package."""
    packages: dict[str, list[Figures]] = {}
    for file, one in figures.items():
        packages.setdefault("/".join(file.split("/")[: 2 if file.count("/") > 1 else 1]), []).append(one)
    for package, members in packages.items():
        faults, totals = (
            sum((one.faults for one in members), Counter()),
            sum((one.totals for one in members), Counter()),
        )
        shares = (f"{kind} {faults[kind] / max(1, totals[kind]):.1%}" for kind in GOALS)
        print(f"{package:32}", "  ".join(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where the language has got worse")
    parser.add_argument("--write", action="store_true", help="write the rows of files that have improved")
    asked = parser.parse_args()
    figures = measure()
    rows: dict[str, dict[str, int]] = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    if not asked.check and not asked.write:
        show(figures)
        return
    if faults := worse(figures, rows) if rows else []:
        print("The language of these files is worse than it was, or they are new and miss a goal (scripts/words.py):")
        sys.exit("\n".join(faults))
    if asked.write:
        kept = {
            file: {kind: n for kind in GOALS if (n := one.faults[kind])} for file, one in figures.items() if one.poor()
        }
        ROWS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
