"""Versions of others' software are written in one place, which a page shows; so are those of what runs beside them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from localfleet.hostgateway import ENVOY_VERSION
from modelplane_operator.api.cluster_origin import EKS, GKE
from modelplane_operator.api.pins import ENVOY_GATEWAY, GATEWAY_API, LMCACHE, PINS, VLLM, Pin
from modelplane_operator.cli.joining import OLDEST
from tests.support.golden import Golden
from tests.support.manifests import ROOT, load

PAGE = ROOT / "docs" / "serving-stack.md"
VERSION = re.compile(r"v?\d+\.\d+\.\d+([-+].*)?")
IMAGE = re.compile(r"[a-z0-9][-a-z0-9.]*(/[-a-z0-9._]+)+:v?\d[-\w.]*(@sha256:[0-9a-f]{64})?")
ELSEWHERE = {
    "modelplane_operator/__init__.py": "the operator's own",
    "modelplane_operator/api/pins.py": "the table",
    "modelplane_operator/clusters/stack/digests.py": "the digests of what the table names; make digests writes it",
}
OTHER = {"v1.36.1+3": "a version of Kubernetes, on Vultr"}


def row(pin: Pin) -> str:
    return f"| {pin.name} | {pin.version} | {pin.released or 'not known'} | {pin.newer} | {pin.support} |"


DRIVERS = {"v0.32.0": "580"}
"""The oldest driver of NVIDIA's for an image of vLLM, by its version: that of the image's CUDA."""


def first_match(file: str, pattern: str) -> str:
    """Return the group of a pattern in a file of the tree, which has to have it."""
    found = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert found, f"{file}: {pattern}"
    return found[1]


def built(tool: str, module: str) -> str:
    """Return the version of a Go module that the local fleet is built from."""
    return first_match(f"localfleet/tools/{tool}/go.mod", rf"^(?:require)?\s*{re.escape(module)} v(\S+)")


def default_version(model: type[EKS | GKE]) -> str:
    return str(model.model_fields["kubernetes_version"].default)


def matrix() -> str:
    """Return the table of what runs together: what is the least, what is used by default, what tests run."""
    driver, kubernetes = DRIVERS[VLLM.version], built("kubernetes", "k8s.io/kubernetes")
    helm, gateway_api = built("helm", "helm.sh/helm/v3"), built("traefik", "sigs.k8s.io/gateway-api")
    sglang = yaml.safe_load((ROOT / "tests/data/engine_flags.yaml").read_text())["sglang"]["version"]
    (gateway,) = load(ROOT / "examples/start/1-gateway.yaml")
    hub = first_match("charts/modelplane-operator/Chart.yaml", r'^kubeVersion: ">=(\d+\.\d+)')
    envoy = f"{built('envoy-gateway', 'github.com/envoyproxy/gateway')}, with Envoy {ENVOY_VERSION}"
    traefik = built("traefik", "github.com/traefik/traefik/v3")
    made = f"{default_version(EKS)} on EKS, {default_version(GKE)} on GKE"
    others = sorted(
        {
            image
            for file in (ROOT / "examples/recipes").glob("*.yaml")
            for image in re.findall(r"image: (\S+:v?\d\S*)", file.read_text())
            if not image.startswith(VLLM.name)
        }
    )
    rows = [
        ("Kubernetes of the hub", hub, "yours", kubernetes),
        ("Kubernetes of a workload cluster", ".".join(map(str, OLDEST)), made, kubernetes),
        ("Helm", "3.17 on your machine", f"{helm} in the operator's image", helm),
        ("Gateway API on the hub", "", GATEWAY_API.version, gateway_api),
        ("Traefik", "", f"chart {gateway['spec']['traefik']['version']} in the examples", traefik),
        ("Envoy Gateway", "1.8, for pickers", ENVOY_GATEWAY.version, envoy),
        (
            "vLLM",
            "0.14.1; older ones let requests run code",
            f"{VLLM.version} in examples and LLMInferences",
            "its flags",
        ),
        ("vLLM with LMCache", "", f"{LMCACHE.version} in VLLMRuntimes", "none"),
        ("SGLang", "", f"{sglang} in [models.md](models.md#features-of-engines)", "its flags"),
        *((f"`{image.rpartition(':')[0]}`", "", f"{image.rpartition(':')[2]} in a recipe", "none") for image in others),
        ("NVIDIA's driver", f"{driver} for vLLM {VLLM.version}", "yours, or the cloud's", "none"),
    ]
    head = ["| Software | Oldest | By default | Run by tests |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(cells)} |" for cells in rows)])


def test_the_page_shows_every_version(golden: Golden) -> None:
    head = ["| Chart or image | Version | Released | Why no newer version | Supported until |", "|---|---|---|---|---|"]
    text = PAGE.read_text()
    for name, table in (("pins", "\n".join([*head, *map(row, PINS)])), ("matrix", matrix())):
        between = re.compile(f"<!-- {name} -->\n.*<!-- end of {name} -->", re.DOTALL)
        assert between.search(text)
        text = between.sub(f"<!-- {name} -->\n{table}\n<!-- end of {name} -->", text)

    golden.holds(PAGE, text)


def test_pages_ask_for_the_driver_and_the_versions_of_the_table() -> None:
    hub = first_match("charts/modelplane-operator/Chart.yaml", r'^kubeVersion: ">=(\d+\.\d+)')
    said = {
        "docs/install.md": (f"Kubernetes {hub} or later", f"({DRIVERS[VLLM.version]} or later for", "Helm 3.17 or"),
        "docs/clusters.md": (f"Kubernetes {'.'.join(map(str, OLDEST))} or later",),
        "examples/README.md": (f"driver {DRIVERS[VLLM.version]} or later",),
    }

    assert [
        (file, words) for file, all_of in said.items() for words in all_of if words not in (ROOT / file).read_text()
    ] == []


def literals(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_other_module_has_a_version_of_a_chart_or_an_image() -> None:
    modules = (ROOT / "modelplane_operator").rglob("*.py")
    written = {
        (str(path.relative_to(ROOT)), text)
        for path in modules
        for text in literals(path)
        if (VERSION.fullmatch(text) or IMAGE.fullmatch(text)) and text not in OTHER
    }

    assert {one for one in written if one[0] not in ELSEWHERE} == set(), "write it into api/pins.py"
