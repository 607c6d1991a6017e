"""What pages for users tell their readers to type does what they say, typed in their order."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from localfleet import binaries
from localfleet.fleet import HUB, path
from tests.integration.conftest import emptied
from tests.integration.harness import Stage
from tests.integration.kinds import cache, deployment, engine, namespace
from tests.integration.watcher import Watcher
from tests.support.console import Shell, commands, saying
from tests.support.manifests import ROOT, load
from tests.support.pages import RUN

pytestmark = pytest.mark.fleet

TEAM = "ml-team"
TOO_BIG = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("1Ti")) >= 0'
SAYS = {
    "modelplane why ml-team/too-big": "ml-team/too-big is not Ready (NoMatchingDevices",
    "modelplane plan -f": "qwen3-8b",
    "modelplane plan --drain": "worker-1",
    "modelplane hardware": "architecture=Hopper",
    "kubectl get icl dgx-h100": "gpu.nvidia.com",
    '"stream": true': "data: [DONE]",
    "Who are you?": '"choices"',
    "get inferenceclusters -o custom-columns": "worker-1",
    "kubectl get modelcache": "qwen3-8b",
    "kubectl wait llmi/qwen-anywhere": "condition met",
}
"""What is in the answer of a command in which this stands."""


@pytest.fixture
async def team(stage: Stage, watcher: Watcher) -> AsyncGenerator[None]:
    """The namespace that the pages are about, the classes and the cache that they name, and a model without a place."""
    del watcher
    classes = load(ROOT / "examples/start/2-classes.yaml")
    nowhere = deployment(TEAM, "too-big", engines=[engine(TOO_BIG)])
    await stage.hub.apply(namespace(TEAM), *classes, cache(TEAM, "qwen3-8b"), nowhere)
    yield
    await emptied(stage, TEAM)
    for one in classes:
        await stage.hub.delete(one["kind"], one["metadata"]["name"])
    await stage.hub.delete("Namespace", TEAM)


async def test_the_commands_of_the_pages_do_what_these_say(stage: Stage, team: None) -> None:
    kubectl = binaries.ensure("kubectl")["kubectl"]
    environment = {
        **os.environ,
        "HOME": str(stage.operator.log.parent),  # what the commands keep about API servers stays here
        "KUBECONFIG": str(stage.fleet.inner_kubeconfig(HUB)),
        "PATH": f"{Path(sys.executable).parent}:{kubectl.parent}:{path()}",
    }
    shell = Shell(stage.fleet.inside([], HUB), ROOT, environment)
    asked = [one for page in RUN for one in commands(page) if not one.why_not]

    ran = await asyncio.to_thread(lambda: list(shell.run(asked)))

    assert saying(ran, SAYS) == SAYS.keys(), "each of these is still on a page"
