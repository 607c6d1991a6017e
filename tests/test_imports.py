"""What is imported: by what decides, nothing that could reach the world; and of what the image has, all."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

from modelplane_operator.api import KINDS
from tests.support.manifests import ROOT

WORLD = frozenset(
    {"aiohttp", "asyncio", "concurrent", "kopf", "multiprocessing", "prometheus_client", "pyhelm3", "ssl", "structlog"}
    | {"subprocess"}
)
LOADED = """
import importlib, json, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
print(json.dumps(sorted(sys.modules)))
"""
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PACKAGES = ("kubeloop", "modelplane_operator")
MODULES = [module for package in PACKAGES for module in (ROOT / package).rglob("*.py")]


def name_of(module: Path) -> str:
    return ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_what_decides_loads_nothing_that_reaches_the_world() -> None:
    """As the contract has it, but with what packages load that are not ours."""
    pure = next(one["source_modules"] for one in CONTRACTS if one["name"] == "What decides does no I/O")
    wanted = [re.compile(one.replace(".", r"\.").replace("*", r"\w+") + r"(\.|$)") for one in pure]
    names = [name for name in map(name_of, MODULES) if any(one.match(name) for one in wanted)]
    assert all(any(one.match(name) for name in names) for one in wanted)

    answer = subprocess.run([sys.executable, "-c", LOADED, *names], capture_output=True, check=True)
    assert {name.partition(".")[0] for name in json.loads(answer.stdout)} & WORLD == set()


def test_the_architecture_tells_the_layers_of_the_contract() -> None:
    layers = next(one["layers"] for one in CONTRACTS if one["type"] == "layers")

    assert f"\n{'  >  '.join(layers)}\n" in (ROOT / "docs/architecture.md").read_text()


def test_nothing_is_installed_that_the_operator_does_not_import() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(extras) == {"dev", "eks", "gke", "hydrate", "otel"}, "the image has the dependencies and these"
    wanted = {
        re.split(r"[<>=\[]", asked)[0] for asked in (*project["dependencies"], *extras["hydrate"], *extras["otel"])
    }
    source = "".join(module.read_text() for module in MODULES)
    used = set(re.findall(r'^ *(?:import|from) (\w+)|find_spec\("(\w+)"\)', source, flags=re.MULTILINE))
    modules = {name for pair in used for name in pair if name}
    named = {each for module, those in packages_distributions().items() if module in modules for each in those}
    unused = wanted - {name.lower().replace("_", "-") for name in named}
    assert unused == {"tzdata"}, "Python's zoneinfo reads it, where the system has no time zones"


def test_no_module_is_longer_than_five_hundred_lines() -> None:
    assert {module.name: lines for module in MODULES if (lines := len(module.read_text().splitlines())) > 500} == {}


def test_no_test_module_imports_from_another() -> None:
    """What two of them need is in `tests/support`."""
    found = {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^(?:from|import) tests\.(?:\w+\.)*(test_\w+)", file.read_text(), flags=re.MULTILINE)
    }
    assert found == set()


def test_what_runs_controllers_knows_no_kind() -> None:
    kinds = {kind.__name__ for kind in KINDS} | {kind.__module__.rpartition(".")[2] for kind in KINDS}
    named = {
        name
        for file in (ROOT / "kubeloop").rglob("*.py")
        for asked in ast.walk(ast.parse(file.read_text()))
        if isinstance(asked, ast.ImportFrom)
        for name in (*(asked.module or "").split("."), *(one.name for one in asked.names))
    }
    assert named & kinds == set()


ONE_NAME = {
    "Observed": "what was seen for a plan: of each kind its own",
    "ClusterState": "what was seen of the cluster that a plan is about: of each kind its own",
    "Condition": "one that we write into a status, and one that is read of somebody else's object",
    "ModelReady": "a condition's type, of each kind its own",
    "RoutingReady": "a condition's type, of each kind its own",
    "Failover": "of a ModelDeployment, as a user writes it and as the scheduler reads it",
    "Taint": "of an InferenceCluster, as a user writes it and as the scheduler reads it",
    "Toleration": "of a ModelDeployment, as a user writes it and as the scheduler reads it",
    "GoogleCloudStorage": "a source of weights, and the hydrator's way to fetch them",
    "HuggingFace": "a source of weights, and the hydrator's way to fetch them",
    "S3": "a source of weights, and the hydrator's way to fetch them",
    "Credentials": "of a cloud's account: how a user names them, and what each cloud's twin module makes of them",
    "Facts": "what only the cloud can say: twins for EKS and GKE",
    "ListContext": "a list of what a cloud has: twins for EKS and GKE",
    "Session": "twins for EKS and GKE, and what of EKS's a list of it needs",
    "Request": "a call to an API server, and one to AWS",
    "Call": "a request that was made, and a function in a selector's tree",
    "Frame": "of HTTP/2, and of a selector that is evaluated",
}
"""Classes of one name, and what each of them is. Whoever adds to it has looked for another name first."""


def test_a_class_has_its_name_for_itself() -> None:
    found = Counter(
        node.name
        for module in MODULES
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, classes in found.items() if classes > 1} == set(ONE_NAME)
