"""Manifests in tests: reading files of them, and bending one value in one.

A path is written as people write it: `spec.engines[].members[1].role`. `[]` and `{}` stand for the first item of a list
and the first value of a map; `[n]` for the item at n.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from yaml._yaml import CParser
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

Manifest = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(file for file in (ROOT / "examples").rglob("*.yaml") if file.parent.name not in {"access", "plain"})
"""The examples of our own kinds."""


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
"""The value of a field that is not there: `change(manifest, "spec.serving", ABSENT)` takes it out."""


def load(path: Path) -> list[Manifest]:
    """The manifests of a file; an anchor of one document may be used in a later one."""
    text = path.read_text()
    return [document for document in yaml.load_all(text, Loader=_OneAnchorSpace) if document]


class _OneAnchorSpace(Composer, CParser, SafeConstructor, Resolver):
    """A safe loader; the definitions are long, and parsed in C that takes a quarter of the time."""

    def __init__(self, stream: str) -> None:
        CParser.__init__(self, stream)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)

    def compose_document(self) -> yaml.Node:
        self.get_event()  # DocumentStart
        node = self.compose_node(None, None)
        self.get_event()  # DocumentEnd; the anchors stay
        assert node is not None
        return node


def change(manifest: Manifest, path: str, value: Any) -> Manifest:
    """A copy of the manifest with the value at the path; missing objects on the way are made."""
    copy = deepcopy(manifest)
    *way, last = _steps(path)
    holder: Any = copy
    for step in way:
        holder = _child(holder, step)
    if value is ABSENT:
        holder.pop(last) if isinstance(holder, list) else holder.pop(last, None)
    else:
        holder[_first(holder) if last == "" else last] = deepcopy(value)
    return copy


def find(manifest: Manifest, path: str) -> Any:
    """The value at the path, or ABSENT."""
    found: Any = manifest
    for step in _steps(path):
        try:
            found = found[_first(found) if step == "" else step]
        except (KeyError, IndexError, StopIteration):
            return ABSENT
    return found


def _steps(path: str) -> list[str | int]:
    """`a.b[].c[2]` as `a b "" c 2`; keys with dots stand in quotes."""
    return [
        int(index) if index else "" if brackets else key.strip('"')
        for key, brackets, index in re.findall(r'("[^"]+"|[^.\[\]{}]+)|(\[\]|\{\}|\[(\d+)\])', path)
    ]


def _child(holder: Any, step: str | int) -> Any:
    if step == "":
        return holder[_first(holder)]
    return holder[step] if isinstance(holder, list) else holder.setdefault(step, {})


def _first(holder: Any) -> Any:
    return 0 if isinstance(holder, list) else next(iter(holder))
