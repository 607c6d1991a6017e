"""docs/install.md, typed: what `make kind` has made is uninstalled as the page says, then all of it is installed, to an
answer, upgraded, rolled back and uninstalled. It comes last, as it leaves clusters with nothing on them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from scripts.kind import charts, clusters, images
from tests.e2e.reader import types
from tests.support.console import Command, commands, saying
from tests.support.manifests import ROOT
from tests.support.pages import INSTALL, blocks

UP = ("2. The operator", "3. The hub gateway", "4. A workload cluster", "5. A model")
DOWN = "Uninstalling"
HERE = {
    "https://berlin.example.com:6443": clusters.EAST.server,
    "node dgx-1 dgx-2 ": f"node {' '.join(f'{clusters.EAST.kind}-{node}' for node in clusters.EAST.pools)} ",
}
"""What is called otherwise on this machine."""
SAYS = {
    "kubectl rollout status": 'deployment "modelplane-operator" successfully rolled out',
    "kubectl wait inferencegateway": "inferencegateway.modelplane.ai/default condition met",
    "kubectl wait inferencecluster": "inferencecluster.modelplane.ai/berlin condition met",
    "/v1/models": '"id":"qwen3-8b"',
    "Who are you?": '"object":"chat.completion"',
    "modelplane_operator.cli why": "ml-team/qwen3-8b is Ready",
}
"""What is in the answer of a command in which this stands."""
STAYS = {
    "hub": r"[a-z]+\.(gateway\.networking\.k8s\.io|traefik\.io)",
    **dict.fromkeys(
        ("east", "west"),
        r"[a-z]+\.(gateway\.networking\.(x-)?k8s\.io|gateway\.envoyproxy\.io"
        r"|inference\.networking\.(x-)?k8s\.io|leaderworkerset\.x-k8s\.io)",
    ),
}
"""The CustomResourceDefinitions that the page leaves, by cluster."""


Typed = Callable[..., Awaitable[list[tuple[Command, str]]]]


class Reader:
    """Somebody who types the page in a folder like that of the repository, with the files that the page shows."""

    def __init__(self, folder: Path, berlin: clusters.Cluster) -> None:
        self.folder = folder
        for name in ("charts", "crds", "examples"):
            (folder / name).symlink_to(ROOT / name)
        for block in blocks(INSTALL):
            if named := re.match(r"# (\S+\.yaml)\n", block):
                (folder / named[1]).write_text(block)
        self.change_values(**{**self.values(charts.values()), **self.values()})
        (folder / "kubeconfig").write_text(clusters.contexts(hub=clusters.HUB, berlin=berlin))

    def values(self, text: str = "") -> dict[str, object]:
        return yaml.safe_load(text or (self.folder / "values.yaml").read_text())

    def change_values(self, **changed: object) -> None:
        (self.folder / "values.yaml").write_text(yaml.safe_dump({**self.values(), **changed}))

    async def types(self, asked: Sequence[Command]) -> list[tuple[Command, str]]:
        return await types(asked, self.folder, self.folder / "kubeconfig")


def under(*sections: str) -> Iterator[Command]:
    """What is typed under these headings, with this machine's names."""
    for command in commands(INSTALL):
        if command.section in sections and not command.why_not:
            yield command.renamed(HERE)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    (tmp_path / "east").mkdir()
    return Reader(tmp_path / "east", clusters.EAST)


@pytest.fixture
def of_west(tmp_path: Path) -> Reader:
    """Somebody to whom west is the cluster of the page."""
    (tmp_path / "west").mkdir()
    return Reader(tmp_path / "west", clusters.WEST)


@pytest.fixture
def typed(reader: Reader, measured: Callable[[str], None]) -> Typed:
    """Types what is under some headings, and tells how long that took."""

    async def typed(what: str, *sections: str) -> list[tuple[Command, str]]:
        began = time.monotonic()
        ran = await reader.types([*under(*sections)])
        measured(f"docs/install.md, {what}: {time.monotonic() - began:.0f} s")
        return ran

    return typed


@pytest.mark.timeout(1800)
async def test_what_make_kind_has_made_is_uninstalled_as_the_page_says(typed: Typed, of_west: Reader) -> None:
    forget_the_team()
    await typed("uninstalling what make kind has made", DOWN)
    down = [*under(DOWN)]
    on_a_cluster = next(at for at, one in enumerate(down) if one.text.endswith("use-context berlin"))
    await of_west.types(down[on_a_cluster:])

    assert left() == {}


@pytest.mark.timeout(3600)
async def test_the_page_installs_it_to_an_answer_and_leaves_nothing_but_what_it_says(
    typed: Typed, reader: Reader
) -> None:
    """On clusters with nothing on them: those of the test before, or of `make kind-bare`."""
    await asyncio.to_thread(clusters.mirror)
    ran, _ = await asyncio.gather(typed("installing, to an answer", *UP), asyncio.to_thread(clusters.adapt))
    assert saying(ran, SAYS) == SAYS.keys(), "each of these is still on the page"

    before = engines()
    reader.change_values(image=reader.values(charts.values())["image"])
    await typed("upgrading, and back", "Upgrading")
    clusters.HUB.kubectl("rollout", "status", "deployment/modelplane-operator", f"--namespace={clusters.SYSTEM}")
    history = clusters.HUB.kubectl("get", "replicasets", f"--namespace={clusters.SYSTEM}", "-o", IMAGES)
    assert {images.OPERATOR, images.PUSHED} <= {*history.split()}
    assert running() == images.PUSHED
    assert engines() == before

    await typed("uninstalling", DOWN)
    forget_the_team()
    assert left() == {}


IMAGES = "jsonpath={.items[*].spec.template.spec.containers[0].image}"


def forget_the_team() -> None:
    """What is the team's, the page leaves."""
    clusters.HUB.kubectl("delete", "namespace", "ml-team", "--ignore-not-found")
    clusters.HUB.kubectl("delete", "clusterrolebinding", "ml-team-hardware", "--ignore-not-found")


def running() -> str:
    asked = ("get", "deployment", "modelplane-operator", f"--namespace={clusters.SYSTEM}")
    return clusters.HUB.kubectl(*asked, "-o", "jsonpath={.spec.template.spec.containers[0].image}")


def engines() -> str:
    """The pods of models, by uid."""
    asked = ("get", "pods", "--namespace=modelplane-ml-team", "-o", "jsonpath={.items[*].metadata.uid}")
    return clusters.EAST.kubectl(*asked)


def left() -> dict[str, list[str]]:
    """What is on each cluster that was not there at first, and that the page does not say stays."""
    found: dict[str, list[str]] = {}
    for cluster in clusters.EVERY:
        bare, stays = {*cluster.bare.read_text().splitlines()}, re.compile(STAYS[cluster.name])
        more = [one for one in cluster.objects() if one not in bare]
        spare = [one for one in more if not stays.fullmatch(one.removeprefix("CustomResourceDefinition /"))]
        spare += cluster.kubectl("get", "nodes", "--selector=modelplane.ai/pool", "-o", "name").split()
        if spare:
            found[cluster.name] = spare
    return found
