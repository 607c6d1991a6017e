"""The API as facts, from contract.yaml: what the CRDs and the API server are held against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.manifests import Manifest, load

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Contract:
    """One kind: what each field is, and which CEL rules judge which."""

    kind: str
    fields: dict[str, dict[str, Any]]
    rules: dict[str, list[str]]


@cache
def contracts() -> dict[str, Contract]:
    facts = yaml.load((HERE / "contract.yaml").read_text(), Loader=yaml.CSafeLoader)
    return {kind: Contract(kind, dict(_expanded(of["fields"])), of.get("rules", {})) for kind, of in facts.items()}


def _expanded(fields: dict[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, field in fields.items():
        match field:
            case {"like": other}:
                for below, same in fields.items():
                    if below == other:
                        yield path, {fact: value for fact, value in same.items() if fact != "required"}
                    elif below.startswith((f"{other}.", f"{other}[", f"{other}{{")):
                        yield path + below.removeprefix(other), same
            case _:
                yield path, field


@cache
def rich() -> dict[str, Manifest]:
    """A valid object with every field set, by `Kind` (and `Kind name` where there are two)."""
    manifests = load(HERE / "rich.yaml")
    return {
        manifest["kind"]
        if manifest["metadata"]["name"] == "rich"
        else f"{manifest['kind']} {manifest['metadata']['name']}": manifest
        for manifest in manifests
    }


def rules_in(schema: Manifest, path: str = "") -> Iterator[tuple[str, Manifest]]:
    """Every CEL rule of a schema, by the path of what it judges."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule
    for name, child in schema.get("properties", {}).items():
        yield from rules_in(child, f"{path}.{name}".removeprefix("."))
    if "items" in schema:
        yield from rules_in(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from rules_in(schema["additionalProperties"], f"{path}{{}}")
