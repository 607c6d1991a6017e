"""Versions of others' software are written in one place, which a page shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from modelplane_operator.api.pins import PINS, Pin
from tests.support.golden import Golden
from tests.support.manifests import ROOT

PAGE = ROOT / "docs" / "serving-stack.md"
VERSION = re.compile(r"v?\d+\.\d+\.\d+([-+].*)?")
IMAGE = re.compile(r"[a-z0-9][-a-z0-9.]*(/[-a-z0-9._]+)+:v?\d[-\w.]*(@sha256:[0-9a-f]{64})?")
ELSEWHERE = {
    "modelplane_operator/__init__.py": "the operator's own",
    "modelplane_operator/api/pins.py": "the table",
    "modelplane_operator/clusters/stack/digests.py": "the digests of what the table names; make digests writes it",
}
OTHER = {"v1.36.1+3": "a version of Kubernetes, on Vultr"}


def row(pin: Pin) -> str:
    return f"| {pin.name} | {pin.version} | {pin.released or 'not known'} | {pin.newer} | {pin.support} |"


def test_the_page_shows_every_version(golden: Golden) -> None:
    head = ["| Chart or image | Version | Released | Why no newer version | Supported until |", "|---|---|---|---|---|"]
    table = "\n".join([*head, *map(row, PINS)])
    text, between = PAGE.read_text(), re.compile("<!-- pins -->\n.*<!-- end of pins -->", re.DOTALL)
    assert between.search(text)

    golden.holds(PAGE, between.sub(f"<!-- pins -->\n{table}\n<!-- end of pins -->", text))


def literals(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_other_module_has_a_version_of_a_chart_or_an_image() -> None:
    modules = (ROOT / "modelplane_operator").rglob("*.py")
    written = {
        (str(path.relative_to(ROOT)), text)
        for path in modules
        for text in literals(path)
        if (VERSION.fullmatch(text) or IMAGE.fullmatch(text)) and text not in OTHER
    }

    assert {one for one in written if one[0] not in ELSEWHERE} == set(), "write it into api/pins.py"
