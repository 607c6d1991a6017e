"""Expected outputs in files: compared as they are, and rewritten with --golden-update."""

from __future__ import annotations

from pathlib import Path

import pytest


def assert_golden(path: Path, found: str, config: pytest.Config) -> None:
    """The text is what the file says; `make golden` makes the file say it."""
    if config.getoption("--golden-update"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
    assert path.exists(), f"{path} is missing: run `make golden` and read what it writes"
    assert found == path.read_text()
