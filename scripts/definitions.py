"""Fetch the definitions of kinds that the operator installs and no chart brings: FOLDER/hub and FOLDER/cluster.

They come out of pinned Go modules, which the Go module proxy keeps and its checksum database vouches for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import yaml

SOURCES = {
    "hub": ("sigs.k8s.io/gateway-api@v1.5.1", "config/crd/standard"),
    "cluster": ("sigs.k8s.io/gateway-api-inference-extension@v1.0.1", "config/crd/bases"),
}
"""Where they go, and the module, and the folder in it, that they come from. Those of clusters are for stacks that name
`ai-gateway`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to put them, for example build/definitions")
    parser.add_argument("--go", default="go", help="the Go command (default: go)")
    asked = parser.parse_args()
    for part, (module, inside) in SOURCES.items():
        wanted = asked.folder / part
        wanted.mkdir(parents=True, exist_ok=True)
        for file in sorted((fetched(module, asked.go) / inside).glob("*.yaml")):
            # Beside definitions there may be admission policies, which are the cluster's own affair.
            defined = [one for one in yaml.safe_load_all(file.read_text()) if one and one["kind"] == DEFINITION]
            if defined:
                (wanted / file.name).write_text(yaml.safe_dump_all(defined))
                print(f"{wanted / file.name}")


DEFINITION = "CustomResourceDefinition"


def fetched(module: str, go: str) -> Path:
    """Where Go has unpacked a module."""
    with tempfile.TemporaryDirectory() as nowhere:  # or the go.mod of a folder above would have a say
        command = [go, "mod", "download", "-json", module]
        done = subprocess.run(command, cwd=nowhere, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout or "{}")
    if done.returncode or "Dir" not in said:
        raise SystemExit(f"definitions: {module}: {said.get('Error') or done.stderr.strip()}")
    return Path(said["Dir"])


if __name__ == "__main__":
    main()
