"""A hub and two workload clusters of real nodes: python -m scripts.kind up | adapt | down.

KIND_NODE_IMAGE is the image of their nodes (default: kind's own), BASE_IMAGE the Python that images begin with,
DRA_IMAGE the driver of made-up GPUs, REAL_PICKER=1 takes the endpoint picker from its registry; Docker is where
DOCKER_HOST says. docs/kind.md tells the rest.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from scripts.kind import clusters, images, needs
from scripts.kind.commands import KindError

Steps = tuple[tuple[str, Callable[[], None]], ...]
BARE: Steps = (
    ("images", lambda: images.build(os.environ.get("BASE_IMAGE") or "python:3.13-slim")),
    ("clusters", lambda: clusters.create(os.environ.get("KIND_NODE_IMAGE", ""))),
    ("images into nodes", clusters.load),
    ("a mirror of charts", clusters.mirror),
)
ON_THEM: Steps = (
    ("the operator, by its chart", clusters.install),
    ("the gateway and two clusters, brought", clusters.bring),
    ("the gateway is ready", lambda: clusters.wait("inferencegateway/default", "--for=condition=Ready", seconds=300)),
    (
        "the clusters are ready",
        lambda: clusters.wait("inferenceclusters", "--all", "--for=condition=Ready", seconds=600),
    ),
)


def up(steps: Steps) -> None:
    began = time.monotonic()
    for what, step in steps:
        begun = time.monotonic()
        print(f"{what} ...", flush=True)
        step()
        print(f"  {time.monotonic() - begun:.0f} s", flush=True)
    print(f"up in {time.monotonic() - began:.0f} s; kubeconfigs are in {clusters.FOLDER}")


def down() -> None:
    for cluster in clusters.EVERY:
        cluster.delete()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("up", "adapt", "down"))
    parser.add_argument("--bare", action="store_true", help="without the operator: to type docs/install.md by hand")
    asked = parser.parse_args()
    if lacking := needs.missing() or (needs.missing_picker() if asked.do == "up" else ""):
        sys.exit(f"kind: {lacking}; docs/kind.md says what it takes")
    try:
        match asked.do:
            case "up":
                up(BARE if asked.bare else BARE + ON_THEM)
            case "adapt":
                clusters.adapt()
            case _:
                down()
    except KindError as error:
        sys.exit(f"kind: {error}")


if __name__ == "__main__":
    main()
