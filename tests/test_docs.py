"""What the pages tell their reader to type or to open is there: files, anchors, commands, values, manifests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from kubeloop.client import channel_process
from localfleet.__main__ import app
from modelplane_operator.api import KINDS, crd
from modelplane_operator.cli.__main__ import COMMANDS
from modelplane_operator.selectors import quantity
from modelplane_operator.settings import Settings
from tests.support.manifests import ROOT, Manifest, change, load
from tests.support.pages import GUIDES, blocks

TOLD = [*GUIDES, ROOT / "charts/modelplane-operator/templates/NOTES.txt", ROOT / "scripts/demo.py"]
"""Whatever tells somebody which file to use."""
BY_NAME = {kind.definition.kind: kind for kind in KINDS}
VALUES: Manifest = yaml.safe_load((ROOT / "charts/modelplane-operator/values.yaml").read_text())
FOLDERS = "benchmarks|charts|crds|docs|examples|kubeloop|localfleet|modelplane_operator|scripts|tests"


def said(pages: list[Path], pattern: str) -> list[Any]:
    """What a pattern finds on the pages, as parameters named after the page."""
    return [
        pytest.param(page, *found.groups(), id=f"{page.relative_to(ROOT)} {' '.join(filter(None, found.groups()))}")
        for page in pages
        for found in re.finditer(pattern, page.read_text(), re.MULTILINE)
    ]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("page", "target"), said(GUIDES, r"\]\((?!https?:)([^)\s]+)\)"))
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    file, _, anchor = target.partition("#")
    there = (page.parent / file).resolve() if file else page

    assert there.exists()
    if anchor:
        assert anchor in anchors(there)


def test_the_index_of_decisions_lists_each_page_by_its_title() -> None:
    folder = ROOT / "docs" / "internals" / "decisions"
    rows = re.findall(r"^- \[(.+)\]\((\S+)\): .+\.$", (folder / "README.md").read_text(), re.MULTILINE)
    pages = [(page.name, page.read_text().split("\n")[0]) for page in sorted(folder.glob("0*.md"))]

    assert sorted((name, f"# {title}") for title, name in rows) == pages


def test_a_link_to_a_decision_has_the_number_of_its_page() -> None:
    links = [
        (page, *link)
        for page in GUIDES
        for link in re.findall(r"\[[Dd]ecision (\d+)\]\((?:\S*/)?(\d{4})-[^)]*\)", page.read_text())
    ]

    assert len(links) > 20
    assert [link for link in links if int(link[1]) != int(link[2])] == []


def test_every_page_is_reached_from_the_readme() -> None:
    """Decisions and the reference by their folder."""
    linked, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        linked.add(page)
        targets = re.findall(r"\]\((?!https?:)([^)#\s]+\.md)", page.read_text())
        waiting += {there for target in targets if (there := (page.parent / target).resolve()) not in linked}

    assert {page for page in GUIDES if page.parent == ROOT / "docs"} <= linked


SECURITY = ROOT / "docs" / "security.md"


@pytest.mark.parametrize("section", re.split(r"^## ", SECURITY.read_text(), flags=re.MULTILINE)[2:])
def test_each_section_of_the_page_on_security_says_what_shows_it(section: str) -> None:
    """After the first, which says who there is."""
    assert re.search(r"`tests/[\w./]+`", section), f"no test, and none is said to be missing: {section.splitlines()[0]}"


def test_each_attack_has_a_test_that_tries_it() -> None:
    page = (ROOT / "docs" / "security-attacks.md").read_text()
    rows = re.findall(r"^\| (?!Attack )(.+) \|$", page, re.MULTILINE)

    assert len(rows) > 100
    assert [row for row in rows if not re.search(r" \| `tests/[^|]+$", row)] == []


def test_the_quota_of_a_tenant_counts_kinds_that_there_are() -> None:
    (quota,) = load(ROOT / "examples" / "access" / "quota.yaml")
    ours = {f"count/{kind.definition.plural}.{kind.definition.group}" for kind in KINDS}

    assert quota["spec"]["hard"].keys() <= ours


@pytest.mark.parametrize(("page", "path"), said(TOLD, rf"(?<![\w./-])((?:{FOLDERS})/[\w./-]*\w)(?![\w*{{]|/\*)"))
def test_a_path_that_a_page_names_is_there(page: Path, path: str) -> None:
    assert (ROOT / path).exists() or (ROOT / f"{path}.py").exists(), page


FILES = [
    f"/{file.relative_to(ROOT)}"
    for folder in [*ROOT.glob(".github"), *map(ROOT.joinpath, FOLDERS.split("|"))]
    for file in folder.rglob("*.*")
] + [f"/{file.name}" for file in ROOT.glob("*.*")]
OF_READERS = {"credentials.json", "trust.json", "config.json", "adapter_config.json"}
"""Files that a page's reader has, some of them beside a model's weights."""


@pytest.mark.parametrize(
    ("page", "name"), said(GUIDES, r"`(?!build/)([\w./-]*\w\.(?:js|json|md|py|toml|tpl|txt|ya?ml))`")
)
def test_a_file_that_a_page_names_is_somewhere_in_the_tree(page: Path, name: str) -> None:
    """Tables leave out the folder that their page or the row before names."""
    assert name in OF_READERS or any(file.endswith(f"/{name}") for file in FILES), page


@pytest.mark.parametrize(("page", "target"), said(GUIDES, r"(?:`|\$ |^)make ([a-z][a-z0-9-]*)"))
def test_a_make_target_is_there(page: Path, target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), page


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_is_that_of_the_checkout_or_of_the_image(page: Path) -> None:
    """A bare `python` has none of our dependencies."""
    bare = re.findall(r"(?<![\w/])python3? -m (?:modelplane_operator|localfleet|benchmarks).*", page.read_text())

    assert [line for line in bare if "in the image" not in line] == []


@pytest.mark.parametrize(
    ("page", "command", "sub"), said(GUIDES, r"python -m localfleet ([a-z]+)(?: (cut|heal|[a-z]+))?")
)
def test_a_command_of_the_local_fleet_is_there(page: Path, command: str, sub: str | None) -> None:
    commands = get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    assert command in commands, page
    if command == "fault":
        assert sub in commands[command].commands


@pytest.mark.parametrize(("page", "command"), said(GUIDES, r"(?:`|\$ |bin/|kubectl )modelplane ([a-z]+)"))
def test_a_command_of_modelplane_is_there(page: Path, command: str) -> None:
    assert command in COMMANDS, page


ALERTS = ROOT / "charts" / "modelplane-operator" / "files" / "alerts.yaml"


def test_a_setting_that_an_alert_names_is_there() -> None:
    named = re.findall(r"settings\.([\w-]+)", ALERTS.read_text())

    assert {name.replace("-", "_") for name in named} <= {option.name for option in fields(Settings)}


@pytest.mark.parametrize(("page", "value"), said(GUIDES, r"--set[= ]'?([a-zA-Z]+(?:[.][\w-]+)*)="))
def test_a_value_of_the_chart_that_is_set_is_there(page: Path, value: str) -> None:
    first, *rest = value.split(".")
    if first == "settings":
        assert rest[0].replace("-", "_") in {option.name for option in fields(Settings)}, page
        return
    held: Any = VALUES
    for key in (first, *rest):
        held = held[key]


OBJECTS = [
    pytest.param(manifest, id=f"{page.relative_to(ROOT)} {manifest['kind']} {manifest['metadata']['name']}")
    for page in GUIDES
    for block in blocks(page)
    for manifest in yaml.safe_load_all(block)
    if isinstance(manifest, dict) and manifest.get("kind") in BY_NAME
]


@pytest.mark.parametrize("manifest", OBJECTS)
def test_a_manifest_of_a_page_says_nothing_that_its_kind_does_not_know(manifest: Manifest) -> None:
    if manifest["kind"] == "ServingStack":  # is applied over the operator's own, which has the required ones
        manifest = change(manifest, "spec.secrets", [{"name": "k", "key": "kubeconfig", "type": "Kubeconfig"}])

    assert BY_NAME[manifest["kind"]].parse(manifest).to_manifest() == manifest


def fields_of(schema: Manifest, path: str = "") -> Iterator[str]:
    """Every field of a schema as people write it: `spec.engines.members`, whether that is a list or not."""
    yield path
    for name, child in schema.get("properties", {}).items():
        yield from fields_of(child, f"{path}.{name}".lstrip("."))
    for below in ("items", "additionalProperties"):
        if isinstance(schema.get(below), dict):
            yield from fields_of(schema[below], path)


FIELDS = {
    field
    for file in (ROOT / "crds").glob("*.yaml")
    for definition in load(file)
    for field in fields_of(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
}


@pytest.mark.parametrize(("page", "field"), said(GUIDES, r"`((?:spec|status)\.[a-zA-Z.\[\]]+)`"))
def test_a_field_that_a_page_names_is_one_of_some_kind(page: Path, field: str) -> None:
    assert field.replace("[]", "") in FIELDS, page


def rows_of(page: Path) -> dict[str, tuple[str, str] | None]:
    """Return the fields of a page of the reference, and the kind and path of those that are like another one."""
    return {
        path: (of or page.stem, other) if other else None
        for path, other, of in re.findall(
            r"^\| \**`([^`]+)`.*?(?: As \[?`([^`]+)`(?: of (\w+)\]\([^)]*\))?\. \|)?$", page.read_text(), re.MULTILINE
        )
    }


REFERENCE = {page.stem: rows_of(page) for page in (ROOT / "docs" / "reference").glob("*.md")}


def described(kind: str, path: str) -> bool:
    """True if the page of a kind has a row for a field, or leads to one."""
    return path in REFERENCE[kind].keys() | REFERENCE["README"].keys() or any(
        described(other[0].lower(), other[1] + path[len(prefix) :])
        for prefix, other in REFERENCE[kind].items()
        if other and path.startswith((f"{prefix}.", f"{prefix}[]"))
    )


def paths_of(schema: Manifest, path: str) -> Iterator[str]:
    """Yield the fields below one, with `[]` for the items of lists and maps."""
    inner = schema.get("items") or schema.get("additionalProperties") or {}
    for name, child in (inner or schema).get("properties", {}).items():
        below = f"{path}{'[]' if inner else ''}.{name}"
        yield below
        yield from paths_of(child, below) if below != "spec.crossplane" else ()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.definition.kind)
def test_the_reference_describes_each_field_or_leads_to_where_it_does(kind: Any) -> None:
    properties = crd.schema(kind)["properties"]
    paths = [path for root in ("spec", "status") for path in paths_of(properties[root], root)]

    assert [path for path in paths if not described(kind.definition.kind.lower(), path)] == []


def test_the_charts_memory_holds_the_fleets_that_the_pages_name() -> None:
    """By what was measured, with two Helms that take all they may, and what reads for clusters of tenants."""
    measured = (ROOT / "docs/internals/performance-tables.md").read_text()
    found = re.search(r"^\| at its peak \| MB \| \S+ \| (\S+) \| (\S+) \|", measured, re.MULTILINE)
    assert found
    hundred, thousand = (float(figure.replace(",", "")) * 10**6 for figure in found.groups())
    a_cluster = (thousand - hundred) / 900
    memory = (ROOT / "docs/operations.md").read_text()
    told = re.search(r"The chart's limit, (\S+), holds .* some (\S+) clusters; ", memory)
    assert told
    limit, helms = quantity.parse(told[1]).as_float(), 2 * Settings().helm_memory

    assert quantity.parse(VALUES["resources"]["limits"]["memory"]).as_float() == limit
    assert helms + channel_process.MEMORY + hundred + (int(told[2].replace(",", "")) - 100) * a_cluster <= limit


RECIPES = [
    file
    for folder in ("start", "recipes")
    for file in sorted((ROOT / "examples" / folder).glob("*.yaml"))
    if any(one["kind"] == "ModelDeployment" for one in load(file))
]


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.name)
def test_a_recipe_says_what_it_takes(file: Path) -> None:
    """On which nodes, in which image, of which date, and how much memory of how much."""
    head = "".join(re.findall(r"^# ?(.*\n)", file.read_text().partition("\napiVersion:")[0] + "\n", re.MULTILINE))
    told = re.match(r"Hardware: (.+?)\. Image: (\S+?),?(?: .+?)?\. Date: \w+ 20\d\d\.", head)

    assert told, head
    images = re.findall(r"image: (\S+)", file.read_text())
    assert set(images) == {told[2]}
    assert re.search(r"parameters of two bytes: [\d.]+ GB|\d GB, and its cache", head)
