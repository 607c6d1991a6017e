"""What the operator's image is made of, and under which licences: for docs/licences.md and for releases.

Names, versions and hashes are those of requirements-image.txt; licences are what the packages say of themselves.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from scripts.pages import placed

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements-image.txt"
PAGE = Path("docs/licences.md")
ELSEWHERE = ("win32", "windows", "darwin", "emscripten", "python_full_version < '3.11", "pypy")
"""Markers of packages that are in no image: of other systems and older Pythons."""
STATED = {"cel-python": "Apache-2.0"}
"""What is in a package's files and not in what it tells of itself."""
CLASSIFIER = "License :: OSI Approved :: "


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    licence: str
    hashes: tuple[str, ...]


def packages() -> list[Package]:
    """All that the lock has for the image; a package that is not installed here does not say its licence."""
    found = re.finditer(
        r"^([a-z0-9][\w.-]*)==([^\s;\\]+)([^\\\n]*)\\?\n((?: +--hash.*\n)+)", LOCK.read_text(), re.MULTILINE
    )
    return [
        Package(one[1], one[2], licence(one[1]), tuple(sorted(re.findall(r"sha256:([0-9a-f]{64})", one[4]))))
        for one in found
        if not any(marker in one[3] for marker in ELSEWHERE)
    ]


def licence(name: str) -> str:
    """In a few words: the SPDX expression where there is one, else a classifier, else a short text."""
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        raise SystemExit(f"licences: {name} is not installed: run `make setup`") from None
    expression = told.get("License-Expression") or ""
    classified = [
        one.removeprefix(CLASSIFIER) for one in told.get_all("Classifier") or () if one.startswith(CLASSIFIER)
    ]
    text = (told.get("License") or "").strip()
    short = text if text and "\n" not in text and len(text) < 60 else ""
    return expression or short or ", ".join(sorted(classified)) or STATED.get(name, "see its files")


def page() -> str:
    rows = "\n".join(f"| {one.name} | {one.version} | {one.licence} |" for one in packages())
    table = f"| Package | Version | Licence |\n|---|---|---|\n{rows}\n"
    return placed((ROOT / PAGE).read_text(), "packages", table)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
