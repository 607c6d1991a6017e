"""The pages of the project, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.manifests import ROOT

FOLDERS_OF_PAGES = ("docs", "kubeloop", "charts", "examples", ".github")
PAGES = [
    *sorted([*ROOT.glob("*.md"), ROOT / "llms.txt"]),
    *(page for folder in FOLDERS_OF_PAGES for page in sorted((ROOT / folder).rglob("*.md"))),
]
GUIDES = [page for page in PAGES if page.parent.name != "reference"]
"""Not what `make crds` writes: its patterns of fields look like links."""

INSTALL = ROOT / "docs/install.md"
"""The page whose commands a test types on clusters by kind."""
RUN = tuple(ROOT / "docs" / f"{name}.md" for name in ("models", "cli", "hub-gateway", "model-cache", "llminference"))
"""Pages whose commands a test types, all of them but those that say why not (tests/support/console.py)."""


def blocks(page: Path) -> Iterator[str]:
    """The blocks of YAML on a page."""
    yield from re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
