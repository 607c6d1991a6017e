"""List known vulnerabilities of the Go modules that are pinned: those in Helm, and the software of charts and images.

They are looked up in the Go vulnerability database, which is a Go module and so comes from where modules come from.
There is no such package of Python's advisories: give the bill of materials of a release to a scanner for them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from modelplane_operator.api import pins

DATABASE: Final = "golang.org/x/vulndb@latest"
MODULES: Final[Mapping[pins.Pin, str]] = {
    pins.ENVOY_GATEWAY: "github.com/envoyproxy/gateway",
    pins.AI_GATEWAY: "github.com/envoyproxy/ai-gateway",
    pins.CERT_MANAGER: "github.com/cert-manager/cert-manager",
    pins.LEADER_WORKER_SET: "sigs.k8s.io/lws",
    pins.NODE_FEATURE_DISCOVERY: "sigs.k8s.io/node-feature-discovery",
    pins.METALLB: "go.universe.tf/metallb",
    pins.PICKER: "github.com/llm-d/llm-d-router",
}
"""Of which module a chart or an image is, where it has its version."""


@dataclass(frozen=True, order=True)
class Module:
    """A Go module, or Go's own library, at a version; and what it is in."""

    name: str
    version: str
    part: str


@dataclass(frozen=True, order=True)
class Vulnerability:
    """One that is known of a module."""

    module: Module
    number: str
    summary: str
    fixed: str
    """The version in which it is mended; empty where there is none."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helm", type=Path, required=True, help="the helm of the image")
    parser.add_argument("--go", type=Path, required=True, help="the go that reads what is in helm")
    asked = parser.parse_args()
    modules = [*in_helm(asked.helm, asked.go), *in_charts()]
    folder, version = database(asked.go)
    found = sorted(known(modules, folder))
    for one in found:
        mended = f"mended in {one.fixed}" if one.fixed else "not mended"
        print(f"{one.number}  {one.module.name} {one.module.version} in {one.module.part}: {one.summary} ({mended})")
    print(f"{len(found)} known of {len(modules)} modules, by the Go vulnerability database {version}")
    sys.exit(1 if found else 0)


def in_helm(helm: Path, go: Path) -> Iterator[Module]:
    """Yield the modules that a binary says it was linked from, and the library of the Go that has built it."""
    said = subprocess.run([go, "version", "-m", helm], capture_output=True, text=True, check=True).stdout
    if built := re.search(r": go(\d\S*)", said):
        yield Module("stdlib", built[1], "Helm")
    for name, version in re.findall(r"^\t(?:mod|dep|=>)\t(\S+)\tv(\S+)", said, re.MULTILINE):
        yield Module(name, version, "Helm")


def in_charts() -> Iterator[Module]:
    """Yield the modules of the charts and images that are pinned."""
    for pin, name in MODULES.items():
        yield Module(name, pin.version.removeprefix("v"), f"{pin.name} {pin.version}")


def database(go: Path) -> tuple[Path, str]:
    """Return the folder with the database and its version."""
    done = subprocess.run([go, "mod", "download", "-json", DATABASE], capture_output=True, text=True, check=False)
    said: dict[str, Any] = json.loads(done.stdout or "{}")
    if done.returncode or "Dir" not in said:
        sys.exit(f"audit: {DATABASE} cannot be fetched: {said.get('Error') or done.stderr.strip()}")
    return Path(said["Dir"]) / "data/osv", said["Version"]


def known(modules: Sequence[Module], folder: Path) -> Iterator[Vulnerability]:
    """Yield what a folder of advisories (OSV) says of the modules."""
    by_name = dict[str, list[Module]]()
    for one in modules:
        by_name.setdefault(one.name, []).append(one)
    for file in sorted(folder.glob("*.json")):
        advisory: dict[str, Any] = json.loads(file.read_text())
        if advisory.get("withdrawn"):
            continue
        for affected in advisory.get("affected", ()):
            for module in by_name.get(affected["package"]["name"], ()):
                for ranges in affected.get("ranges", ()):
                    if (fixed := mended(ranges.get("events", ()), module.version)) is not None:
                        yield Vulnerability(module, advisory["id"], advisory.get("summary", ""), fixed)


def mended(events: Sequence[Mapping[str, str]], version: str) -> str | None:
    """Return where a version that is affected is mended, empty if nowhere; None for one that is not affected."""
    affected, fixed = False, ""
    for event in sorted(events, key=lambda one: order(next(iter(one.values())))):
        [(kind, at)] = event.items()
        if order(at) <= order(version):
            affected = kind == "introduced"
        elif kind == "fixed":
            fixed = fixed or at
    return fixed if affected else None


def order(version: str) -> tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]:
    """Return what versions are compared by: numbers, and before a version what leads to it."""
    numbers, _, before = version.partition("+")[0].partition("-")
    parts = [(not one.isdigit(), int(one) if one.isdigit() else 0, one) for one in before.split(".")]
    return tuple(int(one) for one in re.findall(r"\d+", numbers)), not before, tuple(parts)


if __name__ == "__main__":
    main()
