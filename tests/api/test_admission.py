"""What a real API server takes and refuses, row by row of admission.yaml, and that every rule has a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from localfleet.kubeclient import ApiError
from modelplane_operator.api import KINDS, crd
from tests.api.contract import rich, rules_in
from tests.support.api import Api, named
from tests.support.manifests import ABSENT, Manifest, change

LONG = "a" * 254  # stands for LONG in the table
HUGE = "a" * 10240  # and this for HUGE: the longest selector


@dataclass(frozen=True, slots=True)
class Row:
    """One change of one object, and whether it is refused: by which rule, and in which words."""

    of: str
    name: str
    changes: dict[str, Any]
    verdict: str
    stored: bool = False
    at: str | None = None
    because: str = ""
    also: str = ""
    before: Manifest = field(default_factory=Manifest)
    """What the stored object has been bent by."""

    def __str__(self) -> str:
        return f"{self.of} {self.verdict} {self.name}"


def rows() -> Iterator[Row]:
    text = (Path(__file__).parent / "admission.yaml").read_text().replace("LONG", LONG).replace("HUGE", HUGE)
    for group in yaml.load(text, Loader=yaml.CSafeLoader):
        places = group["of"] if isinstance(group["of"], dict) else {group["of"]: ""}
        for of, place in places.items():
            for name, changes in group.get("accept", {}).items():
                yield Row(of, name, _placed(changes, place), "takes")
            for name, given in group.get("update", {}).items():
                changes, before = {**given}, _placed(given.get("from", {}), place)
                changes.pop("from", None)
                yield Row(of, name, _placed(changes, place), "takes the update to", stored=True, before=before)
            for name, refused in group.get("refuse", {}).items():
                stored = "update" in refused
                yield Row(
                    of,
                    name,
                    _placed(refused["update" if stored else "set"], place),
                    "refuses",
                    stored=stored,
                    at=_join(place, refused["at"]) if "at" in refused else None,
                    because=refused["because"],
                    also=refused.get("also", ""),
                    before=_placed(refused.get("from", {}), place),
                )


def _placed(changes: dict[str, Any], place: str) -> dict[str, Any]:
    return {_join(place, path): ABSENT if value is None else value for path, value in changes.items()}


def _join(place: str, path: str) -> str:
    return ".".join(filter(None, (place, path)))


def bend(manifest: Manifest, changes: Manifest) -> Manifest:
    for path, value in changes.items():
        manifest = change(manifest, path, value)
    return manifest


ROWS = [*rows()]


@pytest.mark.fleet
@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_server(api: Api, row: Row) -> None:
    manifest = rich()[row.of]
    complaint = await (_refused_update(api, row) if row.stored else api.refusal(bend(manifest, row.changes)))

    if row.verdict == "refuses":
        assert row.because in complaint
        assert row.also in complaint
        assert "evaluating rule" not in complaint, "a rule fails instead of answering"
    else:
        assert complaint == ""


async def _refused_update(api: Api, row: Row) -> str:
    stored = await api.create(bend(named({**rich()[row.of]}, "stored"), row.before))
    try:
        await api.replace(bend(stored, row.changes))
    except ApiError as error:
        return str(error)
    finally:
        await api.delete(stored)
    return ""


@cache
def rules() -> set[tuple[str, str, str]]:
    """Of each rule its kind, where it is, and what it says."""
    return {(kind.definition.kind, at, rule["message"]) for kind in KINDS for at, rule in rules_in(crd.schema(kind))}


def means(row: Row, rule: tuple[str, str, str]) -> bool:
    kind, at, message = rule
    return (row.of.partition(" ")[0], row.at) == (kind, at) and row.because in message


def test_every_rule_has_a_row_that_it_refuses() -> None:
    assert [rule for rule in rules() if not any(means(row, rule) for row in ROWS)] == []


def test_every_row_that_names_a_rule_means_one() -> None:
    assert [row for row in ROWS if row.at is not None and sum(means(row, rule) for rule in rules()) != 1] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.definition.kind)
def test_every_kind_has_a_row_that_is_taken(kind: Any) -> None:
    assert any(row.of.startswith(kind.definition.kind) and row.verdict == "takes" for row in ROWS)


def test_every_message_says_what_to_do() -> None:
    """It is all that the person reads: a sentence that ends, and more than what is wrong."""
    assert [message for _, _, message in rules() if not message.endswith(".") or len(message) < 50] == []
