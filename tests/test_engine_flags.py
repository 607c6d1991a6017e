"""Flags of engines in pages and examples are those of the named versions: tests/data/engine_flags.yaml has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.pins import VLLM
from modelplane_operator.models.replica.render.allowed import API_PATHS
from modelplane_operator.models.replica.render.part import unheard
from modelplane_operator.routing.service.api_routes import ROUTES
from tests.support.manifests import ROOT, Manifest, change, load
from tests.support.pages import GUIDES, blocks

MODELS = ROOT / "docs" / "models.md"
ENGINES: dict[str, Manifest] = yaml.safe_load((ROOT / "tests" / "data" / "engine_flags.yaml").read_text())
PARSERS = ("tool-call-parser", "reasoning-parser")
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
IMAGES = {"vllm/vllm-openai": "vllm", "lmsysorg/sglang": "sglang"}


def containers(value: Any) -> Iterator[Manifest]:
    """Yield everything below a value that has an image."""
    if isinstance(value, dict):
        if isinstance(value.get("image"), str):
            yield value
        value = list(value.values())
    for child in value if isinstance(value, list) else ():
        yield from containers(child)


SOURCES = [
    *((page, text) for page in GUIDES for text in blocks(page)),
    *((file, file.read_text()) for file in sorted((ROOT / "examples").rglob("*.yaml"))),
]
CASES = [
    pytest.param(engine, tag, [*one.get("command", ()), *one.get("args", ())], id=f"{file.relative_to(ROOT)} {number}")
    for number, (file, text) in enumerate(SOURCES)
    for document in yaml.safe_load_all(text)
    for one in containers(document)
    for image, _, tag in [one["image"].partition(":")]
    if (engine := IMAGES.get(image))
]


@pytest.mark.parametrize(("engine", "tag", "words"), CASES)
def test_an_engine_gets_flags_that_its_version_has(engine: str, tag: str, words: list[str]) -> None:
    known = ENGINES[engine]
    flags = re.findall(r"(?<!\S)--([a-z][\w-]*)(?:=([\w-]+))?", " ".join(words))

    assert tag == known["version"]
    assert [flag for flag, _ in flags if flag not in known["flags"]] == []
    assert [value for flag, value in flags if flag in PARSERS and value not in known[flag]] == []


FRAGMENTS = [
    pytest.param(found, id=" ".join(found["containers"][0]["args"][:2]))
    for text in blocks(MODELS)
    for one in [yaml.safe_load(text)]
    if "containers" in (found := one.get("template", {}).get("spec", one))
]


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_fragment_is_the_pod_of_a_deployment_that_answers_on_its_port(fragment: Manifest) -> None:
    first, *_ = load(ROOT / "examples" / "start" / "4-model.yaml")
    manifest = change(first, "spec.template.spec.engines[0].members[0].template.spec", fragment)
    deployment = ModelDeployment.parse(manifest)

    assert deployment.to_manifest() == manifest
    assert [unheard(engine) for engine in deployment.replica.engines] == [""]


def test_the_checks_find_engines_in_pages_and_in_examples() -> None:
    assert {case.values[0] for case in CASES} == {"vllm", "sglang"}
    assert len([case for case in CASES if str(case.id).startswith("docs/models.md")]) > 6
    assert len(CASES) > 12
    assert len(FRAGMENTS) == 8


def test_the_page_names_the_versions_that_were_read() -> None:
    assert ENGINES["vllm"]["version"] == VLLM.version, "read the flags of that version, then write it here"
    for engine, title in TITLES.items():
        assert f"{title} {ENGINES[engine]['version'].removeprefix('v')}" in MODELS.read_text()


def section() -> str:
    return MODELS.read_text().partition("## Features of engines\n")[2].partition("\n## ")[0]


def test_a_flag_in_the_text_is_one_of_an_engine() -> None:
    flags = re.findall(r"`--([a-z][\w-]*)", section())
    known = {flag for engine in ENGINES.values() for flag in engine["flags"]}

    assert len(set(flags)) > 10
    assert [flag for flag in flags if flag not in known] == []


def test_a_parser_in_the_table_is_one_of_its_engine() -> None:
    rows = re.search(r"<!-- parsers -->\n.*\n.*\n((?:\|.*\n)+)", section())
    assert rows
    cells = [[cell.strip(" `") for cell in row.split("|")[2:6]] for row in rows[1].splitlines()]
    columns = [(engine, kind) for engine in ("vllm", "sglang") for kind in PARSERS]

    assert len(cells) > 5
    for (engine, kind), column in zip(columns, zip(*cells, strict=True), strict=True):
        assert {cell for cell in column if cell} <= set(ENGINES[engine][kind]), (engine, kind)


def test_a_path_in_the_text_is_open_to_clients_unless_it_says_otherwise() -> None:
    paths = set(re.findall(r"`(/[a-z]\w*(?:/\w+)*)`", section()))
    open_paths = {path for path in paths if any(path == one or path.startswith(f"{one}/") for one in API_PATHS)}

    assert {"/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank"} <= open_paths
    assert paths - open_paths == {"/load_lora_adapter"}
    assert "/v1/messages" in ROUTES
