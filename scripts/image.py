"""Build, push or save the operator's image with docker, podman or buildah, or say what is missing."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from modelplane_operator import __version__

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("docker", "podman", "buildah")


class ImageError(Exception):
    """There is no image; the message says what is missing."""


def tool() -> str:
    """The first of them that works here."""
    found = [name for name in TOOLS if shutil.which(name)]
    for name in found:
        if subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0:
            return name
    if found:
        raise ImageError(f"{found[0]} is here and cannot be used: is its daemon running? `{found[0]} info` says more")
    raise ImageError(f"none of {', '.join(TOOLS)} is on this machine: install one, or build the Dockerfile elsewhere")


def build(name: str, base: str) -> None:
    """Build it under that name; `build/image` has to be there (`make image-files`)."""
    command = [tool(), "build", "--tag", name, "--build-arg", f"VERSION={__version__}"]
    command += ["--build-arg", f"REVISION={revision()}"]
    if base:
        command += ["--build-arg", f"BASE_IMAGE={base}"]
    done([*command, str(ROOT)])
    print(f"built {name}")


def push(name: str) -> None:
    """Push it where its name says."""
    if "/" not in name:
        raise ImageError(f"{name} names no registry: IMAGE=registry.example.com/modelplane-operator:{__version__}")
    done([tool(), "push", name])
    print(f"pushed {name}; install the chart with image.repository and image.tag of it, or image.digest")


def save(name: str, file: Path) -> None:
    """Write it to an archive, which `docker load` and `ctr image import` read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    done([tool(), "save", "--output", str(file), name])


def revision() -> str:
    """The commit that is built; with -dirty where files differ from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or os.environ.get("REVISION", "unknown")


def done(command: list[str]) -> None:
    if code := subprocess.run(command, check=False).returncode:
        raise ImageError(f"`{' '.join(command)}` failed with {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("build", "push", "save"))
    parser.add_argument("name", help="NAME:TAG, with a registry before it to be pushed")
    parser.add_argument("--base", default="", help="another Python 3.11 or newer to begin with")
    parser.add_argument("--file", type=Path, default=Path("dist/image.tar"), help="where `save` writes")
    asked = parser.parse_args()
    try:
        match asked.do:
            case "build":
                build(asked.name, asked.base)
            case "push":
                push(asked.name)
            case _:
                save(asked.name, asked.file)
    except ImageError as error:
        sys.exit(f"image: {error}")


if __name__ == "__main__":
    main()
