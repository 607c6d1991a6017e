"""What a workload cluster's API server says, however much, takes nothing from the others, nor the operator's memory.

Each flood (`localfleet/faultproxy/floods.py`) meets the operator as the answer to lists, to watches or to everything.
Meanwhile a model on the other cluster grows and shrinks, and what serves on the flooded one goes on serving. Once the
flood is over, the cluster is as before.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest

from localfleet.faultproxy.floods import FLOODS
from localfleet.faultproxy.rules import CloseWatch, Flood, InjectGone, Match, Rule
from tests.faults.stage import LEASE, FaultyStage
from tests.integration.harness import condition
from tests.integration.kinds import deployment, namespace, service
from tests.integration.watcher import Watcher

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

FLOODED, OTHER = "flooded", "other"
MOST = 600 * 2**20
"""What the operator may have in memory: at rest it has some 100 MB, and without limits a flood would be gigabytes."""


@dataclass(frozen=True)
class Attack:
    """Which calls of worker-1 are flooded and how, and what `ClusterReady` says then; empty: that it is there."""

    how: str
    where: str = ""
    """`list` or `watch`; empty: everything."""
    tells: str = "Misbehaving"

    @property
    def rules(self) -> tuple[Rule, ...]:
        match self.where:
            case "list":  # which only comes when a watch is too old
                return Rule(Match(verbs=("list",)), Flood(self.how)), Rule(Match(), InjectGone())
            case "watch":
                return Rule(Match(verbs=("watch",)), Flood(self.how)), Rule(Match(), CloseWatch())
            case _:
                return Rule(Match(), Flood(self.how)), Rule(Match(), CloseWatch())

    def __str__(self) -> str:
        return f"{self.how}, {self.where or 'everything'}"


OF_BOTH = ("inflated", "endless", "values", "nested", "no object", "no items", "no metadata", "headers")
ATTACKS = (
    *(Attack(how, where) for how in OF_BOTH for where in ("list", "watch")),
    *(Attack(how, "list") for how in ("pages", "circle", "crowd")),
    Attack("no type", "watch"),
    *(Attack(how, "watch", tells="") for how in ("flipping", "births", "drip", "error")),
    Attack("inflated"),
    Attack("refusal", tells="Unreachable"),
)


def test_every_flood_is_an_attack() -> None:
    assert {attack.how for attack in ATTACKS} == FLOODS.keys()


@pytest.fixture(scope="module")
async def two(stage: FaultyStage) -> AsyncGenerator[FaultyStage]:
    """A model on each cluster, which answers."""
    await stage.reset()
    for space, site in ((FLOODED, "worker-1"), (OTHER, "worker-2")):
        there = {"matchLabels": {"site": site}}
        await stage.hub.apply(namespace(space), deployment(space, clusterSelector=there), service(space))
        await stage.serving(space, 1)
    yield stage
    await stage.reset()
    for space in (FLOODED, OTHER):
        for kind in ("ModelService", "ModelDeployment"):
            await stage.hub.delete(kind, "model", space)
            await stage.hub.gone(kind, "model", space)


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
async def test_a_cluster_that_floods_us_takes_nothing_from_others(
    two: FaultyStage, watcher: Watcher, attack: Attack
) -> None:
    await survived(two, watcher, attack)


@pytest.mark.fleet
async def test_a_watch_that_inflates_without_end_takes_nothing_from_others(two: FaultyStage, watcher: Watcher) -> None:
    await survived(two, watcher, Attack("inflated", "watch"))


async def survived(stage: FaultyStage, watcher: Watcher, attack: Attack) -> None:
    """Flood worker-1, change the model on worker-2 meanwhile, and see that all is as before afterwards."""
    leader = (await stage.hub.client.request("GET", LEASE))["spec"]["holderIdentity"]
    before = set(await stage.replicas(FLOODED))
    process = Path(f"/proc/{stage.operator.pid}")
    (process / "clear_refs").write_text("5")  # its peak begins anew
    for rule in attack.rules:
        await stage.proxies["worker-1"].add(rule)
    try:
        if attack.tells:
            told = await stage.hub.says("ClusterReady=False", "InferenceCluster", "worker-1")
            assert told["reason"] == attack.tells, told
        for replicas in (2, 1):
            await stage.hub.patch("ModelDeployment", "model", OTHER, spec={"replicas": replicas})
            await stage.serving(OTHER, replicas)
        await stage.answered(FLOODED, "model")
        assert set(await stage.replicas(FLOODED)) == before, "a replica was moved"
        assert peak(process) < MOST
    finally:
        await stage.reset()
    await stage.settle()
    await stage.serving(FLOODED, 1)
    assert stage.operator.is_up
    assert (await stage.hub.client.request("GET", LEASE))["spec"]["holderIdentity"] == leader
    assert not condition(await stage.hub.get("InferenceCluster", "worker-1"), "ClusterReady").get("message")
    assert await watcher.check() == []


def peak(process: Path) -> int:
    """The most bytes that it had in memory."""
    lines = (process / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
