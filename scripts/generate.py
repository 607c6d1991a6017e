"""Write what follows from the code: crds/ and the chart's copy of it, docs/reference/, docs/permissions.md,
docs/troubleshooting.md, docs/licences.md, the chart's dashboard, the schema of its values and the table of its README,
and what the operator may do on AWS and on Google Cloud.

With --check nothing is written: it says which files are not what the models say, and fails when there are any.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from modelplane_operator.api import KINDS, Kind, crd, reference
from modelplane_operator.clouds.eks.permissions import policy as eks_policy
from modelplane_operator.clouds.gke.permissions import role_file as gke_role
from scripts import chart_values, dashboard, licences, permissions, troubleshooting

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (Path("crds"), Path("charts/modelplane-operator/files/crds"), Path("docs/reference"))
EKS_POLICY = Path("examples/access/eks-policy.json")
GKE_ROLE = Path("examples/access/gke-role.yaml")
HEADER = "# Written by `make crds` from modelplane_operator/api; edit the models.\n"


def generated() -> Iterator[tuple[Path, str]]:
    """Every file that follows from others, with what it must hold."""
    yield permissions.PAGE, permissions.page()
    yield troubleshooting.PAGE, troubleshooting.page()
    yield chart_values.SCHEMA, chart_values.schema()
    yield licences.PAGE, licences.page()
    yield dashboard.FILE, dashboard.text()
    yield chart_values.PAGE, chart_values.page()
    yield EKS_POLICY, json.dumps(eks_policy(), indent=2) + "\n"
    yield GKE_ROLE, gke_role()
    pages = reference.Reference(KINDS)
    yield FOLDERS[2] / "README.md", pages.index()
    for kind in KINDS:
        for folder in FOLDERS[:2]:
            yield folder / f"{kind.definition.plural}.yaml", HEADER + crd.to_yaml(kind)
        yield FOLDERS[2] / f"{kind.definition.kind.lower()}.md", pages.page(kind, example(kind))


def example(kind: Kind) -> str:
    """The first object of the kind among the examples, as its author wrote it."""
    wanted = f"kind: {kind.definition.kind}\n"
    for file in sorted((ROOT / "examples").rglob("*.yaml")):
        for document in file.read_text().split("\n---\n"):
            if wanted in document:
                return "\n".join(line for line in document.splitlines() if not line.startswith("#"))
    sys.exit(f"generate: no example of {kind.definition.kind} in examples/: add one, its page shows it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is stale")
    check = parser.parse_args().check
    wanted = dict(generated())
    present = {file.relative_to(ROOT) for folder in FOLDERS for file in (ROOT / folder).glob("*") if file.is_file()}
    stale = [path for path, text in wanted.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text]
    left_over = sorted(present - wanted.keys())
    if check and (stale or left_over):
        names = "\n".join(f"  {path}" for path in (*stale, *left_over))
        sys.exit(f"generate: not what the models say, run `make crds`:\n{names}")
    for path in stale:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(wanted[path])
    for path in left_over:
        (ROOT / path).unlink()


if __name__ == "__main__":
    main()
