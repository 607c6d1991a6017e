"""What decides loads nothing that could reach the world: whoever imports it alone gets values and functions."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PURE = ("kube", "api", "selectors", "scheduling", "rendering", "planning")
WORLD = frozenset(
    {"aiohttp", "asyncio", "boto3", "concurrent", "google", "kopf", "multiprocessing", "prometheus_client", "pyhelm3"}
    | {"ssl", "structlog", "subprocess"}
)
LOADED = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    importlib.import_module(module.name)
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("package", PURE)
def test_a_package_that_decides_loads_nothing_that_reaches_the_world(package: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", LOADED, f"modelplane_operator.{package}"], capture_output=True, check=True
    )
    loaded = set(json.loads(answer.stdout))
    assert f"modelplane_operator.{package}" in loaded
    assert {name.partition(".")[0] for name in loaded} & WORLD == set()
