"""CustomResourceDefinitions that the operator installs: files in its image, read once at startup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from kubeloop.objects import Manifest


def read_definitions(folder: Path) -> tuple[Manifest, ...]:
    """Return the CustomResourceDefinitions in the files of a folder; none if the folder does not exist."""
    return tuple(_read(folder)) if folder.is_dir() else ()


def _read(folder: Path) -> Iterator[Manifest]:
    """Yield each CustomResourceDefinition without its status."""
    for file in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document and document.get("kind") == "CustomResourceDefinition":
                yield {name: document[name] for name in ("apiVersion", "kind", "metadata", "spec")}
