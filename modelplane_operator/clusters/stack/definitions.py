"""CustomResourceDefinitions that the operator installs: files in its image, read once at startup."""

from __future__ import annotations

from pathlib import Path

import yaml

from kubeloop.objects import Manifest


def read_definitions(folder: Path) -> tuple[Manifest, ...]:
    """Return the CustomResourceDefinitions in the files of a folder; none if the folder does not exist."""
    if not folder.is_dir():
        return ()
    return tuple(
        {name: document[name] for name in ("apiVersion", "kind", "metadata", "spec")}  # without its status
        for file in sorted(folder.glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
        if document and document.get("kind") == "CustomResourceDefinition"
    )
