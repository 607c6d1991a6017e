"""Definitions in a chart: which are read from its archive, and which of a cluster's they may replace."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeloop.errors import ClientError
from kubeloop.helm import definitions
from kubeloop.helm.definitions import find_keeper, read_chart_definitions

Manifest = dict[str, Any]


def definition(name: str = "toys.example.com", *versions: str, managers: tuple[str, ...] = ()) -> Manifest:
    fields = [{"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {}}} for manager in managers]
    status = [{"manager": "kube-apiserver", "subresource": "status", "fieldsV1": {"f:status": {}, "f:spec": {}}}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name, **({"managedFields": [*fields, *status]} if managers else {})},
        "spec": {"versions": [{"name": version, "served": True} for version in versions or ("v1",)]},
    }


def package(folder: Path, files: dict[str, str]) -> Path:
    path = folder / "chart.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_definitions_are_those_in_the_folder_crds_of_a_chart_and_of_charts_within_it(tmp_path: Path) -> None:
    two = yaml.safe_dump_all([definition("a.example.com"), definition("b.example.com")])
    files = {
        "toy/crds/both.yaml": two,
        "toy/crds/deeper/c.yml": yaml.safe_dump(definition("c.example.com")),
        "toy/crds/notes.txt": "no YAML",
        "toy/crds/other.yaml": "kind: ConfigMap",
        "toy/charts/inner/crds/d.yaml": yaml.safe_dump(definition("d.example.com")),
        "toy/templates/e.yaml": yaml.safe_dump(definition("e.example.com")),
    }
    found = read_chart_definitions(package(tmp_path, files))
    assert [(one.manifest["metadata"]["name"][0], one.subchart) for one in found] == [
        ("a", ""),
        ("b", ""),
        ("c", ""),
        ("d", "charts/inner/"),
    ]


def test_an_archive_that_cannot_be_read_or_has_too_much_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClientError, match="cannot be read: ParserError"):
        read_chart_definitions(package(tmp_path, {"toy/crds/a.yaml": "a: ["}))
    monkeypatch.setattr(definitions, "MAX_TOTAL", 10)
    with pytest.raises(ClientError, match="have more than"):
        read_chart_definitions(package(tmp_path, {"toy/crds/a.yaml": "kind: " + "a" * 20}))
    (tmp_path / "chart.tgz").write_text("no archive")
    with pytest.raises(ClientError, match="cannot be read: ReadError"):
        read_chart_definitions(tmp_path / "chart.tgz")


@pytest.mark.parametrize(
    ("managers", "live", "chart", "reason"),
    [
        (("helm",), ("v1",), ("v1", "v2"), ""),
        (("helm", "modelplane"), ("v1",), ("v1",), ""),
        (("kubectl",), ("v1",), ("v1",), "kubectl wrote it"),
        (("helm", "addon-manager"), ("v1",), ("v1",), "addon-manager wrote it"),
        (("helm",), ("v1alpha1", "v1"), ("v1",), "the chart lacks version v1alpha1"),
    ],
)
def test_a_definition_is_kept_from_others_and_keeps_its_versions(
    managers: tuple[str, ...], live: tuple[str, ...], chart: tuple[str, ...], reason: str
) -> None:
    stored = definition("toys.example.com", *live, managers=managers)
    assert find_keeper(stored, definition("toys.example.com", *chart)) == reason
