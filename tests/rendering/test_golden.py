"""Compare every renderer with files: `CASE.in.yaml` has its arguments, and `CASE.out.yaml` the objects that it returns.

The name of a case is a sentence. A document without a kind has the arguments that are not objects (`cases.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from modelplane_operator.models.replica.render import REVISION
from tests.rendering.cases import CASES, GOLDEN, render
from tests.support.golden import Golden


class _Readable(yaml.SafeDumper):
    """Lists indented as people write them, texts of several lines as blocks, nothing shared."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name.removesuffix('.in.yaml')}")
def test_golden(case: Path, golden: Golden) -> None:
    found = yaml.dump_all(render(case), Dumper=_Readable, sort_keys=False, width=120)

    golden.holds(case.with_name(case.name.replace(".in.", ".out.")), found)


RELEASED = {
    "cache-gives-the-model-argument": "one engine from a cache",
    "gang-over-two-nodes": "a gang",
    "picker-of-four-copies": "copies behind an endpoint picker",
    "prefill-alone-and-decode-as-a-gang": "a sidecar, and an endpoint picker that knows roles",
}
"""Cases whose pods are stored for each released revision, by what they show."""


@pytest.mark.parametrize("revision", range(REVISION + 1))
@pytest.mark.parametrize("name", RELEASED)
def test_the_pods_of_a_released_revision_stay_as_they_were_released(
    name: str, revision: int, golden: Golden, tmp_path: Path
) -> None:
    """Rewrite these files for a new revision only: a change in an older one restarts every engine that has it."""
    first, *others = yaml.safe_load_all((GOLDEN / "model_replica" / f"{name}.in.yaml").read_text())
    first["spec"]["podRevision"] = revision
    folder = tmp_path / "model_replica"
    folder.mkdir()
    (folder / f"{name}.in.yaml").write_text(yaml.safe_dump_all([first, *others]))

    pods = [
        {
            "name": manifest["metadata"]["name"],
            **{key: manifest["spec"][key] for key in TEMPLATES & manifest["spec"].keys()},
        }
        for manifest in render(folder / f"{name}.in.yaml")
        if manifest["kind"] in {"Deployment", "LeaderWorkerSet"}
    ]

    text = yaml.dump_all(pods, Dumper=_Readable, sort_keys=False, width=120)
    golden.holds(GOLDEN / "revisions" / str(revision) / f"{name}.out.yaml", text)


TEMPLATES = {"template", "leaderWorkerTemplate"}
