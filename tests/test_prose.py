"""Pages speak plainly, in the words of the glossary; their shell blocks are shell, and their YAML has real fields."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from modelplane_operator.api import KINDS
from modelplane_operator.cli.__main__ import COMMANDS as OF_MODELPLANE
from scripts import chart_values
from tests.support.api import Api
from tests.support.manifests import ROOT, Manifest, load
from tests.support.pages import GUIDES, blocks

OURS = {
    "front door": "hub gateway",
    "management cluster": "hub",
    "control cluster": "hub",
    "host cluster": "hub",
    "member cluster": "workload cluster",
    "spoke": "workload cluster",
    "managed cluster": "workload cluster",
    "entry point picker": "endpoint picker",
    "api gateway": "hub gateway",
    "auth service": "key service",
    "manager cluster": "hub",
    "model replica set": "ModelReplica",
}
"""What others say, and our word for it: docs/glossary.md."""
PLAIN = (
    *("leverage", "utilize", "utilise", "seamless", "seamlessly", "robust", "blazing", "effortless", "effortlessly"),
    *("cutting-edge", "state-of-the-art", "world-class", "best-in-class", "game-changing", "next-generation"),
    *("out of the box", "under the hood", "simply", "obviously", "of course", "easily", "please note", "in order to"),
    *("e.g.", "i.e.", "etc.", "and/or", "plethora", "myriad", "synergy", "holistic", "paradigm", "delve"),
)
"""Words that say nothing, or less than plainer ones."""


def prose(page: Path) -> str:
    """A page without what is quoted from elsewhere: blocks, code, addresses."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", " ", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_it_plainly_and_in_our_words(page: Path) -> None:
    text = prose(page).lower()
    found = [word for word in (*OURS, *PLAIN) if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)]

    assert found == [], {word: OURS.get(word, "say it plainly, or leave it out") for word in found}


def test_our_word_for_a_thing_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()

    assert [word for word in OURS.values() if word not in glossary] == []


def test_the_glossary_is_in_the_order_of_the_alphabet() -> None:
    words = re.findall(r"^\| (?!Word |-)(.+?) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)

    assert len(words) > 20
    assert words == sorted(words, key=str.lower)


SHELL = [
    pytest.param(page, block, id=f"{page.relative_to(ROOT)} {number}")
    for page in GUIDES
    for number, block in enumerate(
        re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), start=1
    )
]


def typed(block: str) -> str:
    """What of a block its reader types: what follows `$ `, with the lines that belong to it; else all of it."""
    if not re.search(r"^\$ ", block, re.MULTILINE):
        return block
    lines, on, until = list[str](), False, ""
    for line in block.splitlines():
        if until or on or line.startswith("$ "):
            lines.append(line.removeprefix("$ "))
            if until:
                until = "" if line == until else until
            elif document := re.search(r"<<'?(\w+)'?$", line):
                until = document[1]
            on = not until and line.endswith("\\")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("page", "block"), SHELL)
def test_a_shell_block_is_shell(page: Path, block: str) -> None:
    done = subprocess.run(["bash", "-n"], input=typed(block), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, ""), page


def words(block: str) -> Iterator[list[str]]:
    """The commands of a block, each as its words; what is inside of a pipe or of `$( )` is one, too."""
    text = re.sub(r"<<'?(\w+)'?\n.*?^\1$", "", typed(block), flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    for line in text.splitlines():
        for part in re.split(r"\||&&|;|\$\(|\)", re.sub(r"'[^']*'", lambda one: one[0].replace("|", " "), line)):
            try:
                found = shlex.split(part, comments=True)
            except ValueError:  # a quotation that goes on in another part
                continue
            yield [word for index, word in enumerate(found) if index or "=" not in word]


COMMANDS = [
    pytest.param(found, id=f"{case.id} {' '.join(found)[:50]}")
    for case in SHELL
    for found in words(str(case.values[1]))
    if found
]
KUBERNETES = {
    *("all", "clusterrole", "configmap", "crd", "deployment", "job", "lease", "namespace", "node", "nodes", "pod"),
    *(
        "envoyproxy",
        "envoyextensionpolicies",
        "httproute",
        "resourceclaimtemplate",
        "clusterroles",
        "clusterrolebindings",
    ),
    "mutatingwebhookconfigurations",
    *("pods", "pvc", "resourceslices", "rolebinding", "secret", "secrets", "service", "validatingwebhookconfiguration"),
}
NAMED = {
    name for kind in KINDS for name in (kind.definition.plural, kind.definition.kind.lower(), kind.definition.short)
}
WITH_VALUE = {"-n", "-l", "-o", "-p", "-f", "--context", "--kubeconfig", "--namespace"}
VERBS = {"get", "describe", "delete", "wait", "patch", "annotate", "scale", "label", "taint", "edit"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_asks_for_what_there_is(command: list[str]) -> None:
    program, *arguments = command
    if program.endswith("modelplane") and arguments and not arguments[0].startswith("-"):
        assert arguments[0] in OF_MODELPLANE
    values = {index + 1 for index, word in enumerate(arguments) if word in WITH_VALUE}
    plain = [word for index, word in enumerate(arguments) if index not in values and not word.startswith("-")]
    if (
        program == "kubectl"
        and len(plain) > 1
        and plain[0] in VERBS
        and "-f" not in arguments
        and "--raw" not in arguments
    ):
        kinds = plain[1].partition("/")[0].split(",")
        assert {kind.partition(".")[0] for kind in kinds} <= KUBERNETES | NAMED


OTHERS = {"pools", "providers", "model_list"}
"""Of a profile of the local fleet, which its tests read, of the values of Traefik's chart, and of LiteLLM."""


def fragments() -> Iterator[Any]:
    for page in GUIDES:
        for number, block in enumerate(blocks(page), start=1):
            for said in yaml.safe_load_all(block):
                if isinstance(said, dict) and "kind" not in said and not OTHERS & said.keys():
                    yield pytest.param(said, id=f"{page.relative_to(ROOT)} {number} {' '.join(said)[:40]}")


def below(schema: Manifest, path: str = "") -> Iterator[tuple[str, bool]]:
    """Every field of a schema, and whether there are fields in it."""
    inside = schema.get("properties", {})
    if path:
        yield path, bool(inside)
    for name, child in inside.items():
        for one in (
            child,
            *(child[part] for part in ("items", "additionalProperties") if isinstance(child.get(part), dict)),
        ):
            yield from below(one, f"{path}.{name}")


FIELDS: dict[str, bool] = {}
for _path, _deep in (
    *(
        one
        for file in (ROOT / "crds").glob("*.yaml")
        for definition in load(file)
        for one in below(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    ),
    *below(chart_values.closed(chart_values.values(), "", {})),
):
    FIELDS[_path] = FIELDS.get(_path, False) or _deep


def unknown(said: Any, path: str) -> Iterator[str]:
    """The fields of a fragment that no kind and no value of the chart has, wherever it begins."""
    if isinstance(said, list):
        for one in said:
            yield from unknown(one, path)
    elif isinstance(said, dict):
        for key, value in said.items():
            here = f"{path}.{key}"
            found = [deep for field, deep in FIELDS.items() if field.endswith(here)]
            if not found:
                yield here
            elif any(found):
                yield from unknown(value, here)


@pytest.mark.parametrize("said", list(fragments()))
def test_a_fragment_has_fields_that_there_are(said: Manifest) -> None:
    assert list(unknown(said, "")) == []


FOREIGN = {"ScaledObject", "PodMonitor", "InferencePool", "VLLMRuntime"}
"""Kinds that the API server of a test does not know."""


@pytest.mark.fleet
async def test_a_server_takes_every_manifest_of_the_pages(api: Api) -> None:
    """Strictly, with all of our rules. ServingStacks are applied over the operator's own, which has what they lack."""
    found = [
        (page, one)
        for page in GUIDES
        for block in blocks(page)
        for one in yaml.safe_load_all(block)
        if isinstance(one, dict) and {"kind", "apiVersion", "metadata"} <= one.keys()
        if one["kind"] not in {*FOREIGN, "ServingStack"}
    ]
    for namespace in sorted({one["metadata"].get("namespace", "default") for _, one in found} - {"default"}):
        await api.kubectl("create", "namespace", namespace)
    refused = dict[str, str]()
    for page, one in found:
        try:
            await api.kubectl("create", "--dry-run=server", "--validate=strict", "-f-", stdin=yaml.safe_dump(one))
        except AssertionError as error:
            refused[f"{page.name} {one['kind']} {one['metadata'].get('name')}"] = str(error)

    assert len(found) > 10
    assert refused == {}


def test_what_is_typed_is_told_from_what_is_shown() -> None:
    block = "$ one \\\n    two\nshown\n$ three - <<END\nfour\nEND\nshown\n"

    assert typed(block) == "one \\\n    two\nthree - <<END\nfour\nEND\n"
    assert list(words(block)) == [["one", "two"], ["three", "-"]]
    assert list(words("$ A=$(kubectl get ms x | cut -f1)\n")) == [[], ["kubectl", "get", "ms", "x"], ["cut", "-f1"], []]
    assert list(unknown({"spec": {"isolation": {"limitRanges": {}}}}, "")) == [".spec.isolation.limitRanges"]
