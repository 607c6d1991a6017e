"""Expected outputs in files: compared as they are, and rewritten with --golden-update."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Golden:
    """What the fixture `golden` is: with --golden-update only tests that ask for it run."""

    update: bool

    def holds(self, path: Path, found: str) -> None:
        """The text is what the file says, or with --golden-update the file is made to say it."""
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found)
        assert path.exists(), f"{path} is missing: run the test with --golden-update, and read what it writes"
        assert found == path.read_text()
