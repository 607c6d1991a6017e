"""Compare every renderer with files: `CASE.in.yaml` has its arguments, and `CASE.out.yaml` the objects that it returns.

The name of a case is a sentence. A document without a kind has the arguments that are not objects (`cases.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.rendering.cases import CASES, render
from tests.support.golden import Golden


class _Readable(yaml.SafeDumper):
    """Lists indented as people write them, texts of several lines as blocks, nothing shared."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name.removesuffix('.in.yaml')}")
def test_golden(case: Path, golden: Golden) -> None:
    found = yaml.dump_all(render(case), Dumper=_Readable, sort_keys=False, width=120)

    golden.holds(case.with_name(case.name.replace(".in.", ".out.")), found)
