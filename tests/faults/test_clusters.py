"""What is wrong with one cluster, or with one object, stays its own trouble, is told, and is over when it is over.

F8 a cluster that is cut off, or comes and goes; F9 credentials that are refused or replaced; F14 an object whose every
write fails; F4 a deployment that is replaced by another of its name while nobody looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from localfleet.faultproxy.rules import Answer, CloseWatch, HoldEvents, Match, Rule
from localfleet.fleet import HUB
from tests.faults.life import SPACE, Life, is_ready, model, perform, state
from tests.faults.stage import FaultyStage
from tests.integration.harness import condition, remote, until
from tests.integration.kinds import HOPPER, deployment, engine, namespace

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.usefixtures("empty")]

OUTAGE_SECONDS = 180.0  # until an outage is noticed, or its end, on a busy machine
POISON = "poison"


@pytest.fixture
async def two(stage: FaultyStage, faultless: Life, empty: None) -> AsyncGenerator[None]:
    """A model with a replica on each cluster; the wires are whole again afterwards."""
    del empty  # it comes first
    for act in ("deploy", "scale"):
        await perform(stage, act, faultless[act].state)
    await stage.reset()
    yield
    stage.fleet.heal("worker-1")
    await stage.reset()
    await stage.settle()


async def says(stage: FaultyStage, status: str) -> str:
    """Wait until worker-1's ClusterReady has that status; answers what it says."""
    found = await stage.hub.says(f"ClusterReady={status}", "InferenceCluster", "worker-1", seconds=OUTAGE_SECONDS)
    return f"{found['reason']} {found['message']}"


@pytest.mark.usefixtures("two")
async def test_a_cluster_that_is_cut_off_moves_nothing_and_is_as_before_afterwards(
    stage: FaultyStage, faultless: Life
) -> None:
    stage.fleet.cut("worker-1")
    await says(stage, "False")
    replicas = await stage.replicas(SPACE)
    assert {one["spec"]["clusterName"] for one in replicas.values()} == {"worker-1", "worker-2"}
    await stage.hub.patch("ModelDeployment", "model", SPACE, spec={"replicas": 3})  # the others go on

    async def third() -> bool:
        there = [one for one in (await stage.replicas(SPACE)).values() if one["spec"]["clusterName"] == "worker-2"]
        return len([one for one in there if is_ready(one)]) == 2

    await until("a third replica on the cluster that answers", third, OUTAGE_SECONDS)
    stage.fleet.heal("worker-1")
    await says(stage, "True")
    await perform(stage, "scale", faultless["scale"].state)


@pytest.mark.usefixtures("two")
async def test_a_cluster_that_comes_and_goes_moves_nothing(stage: FaultyStage, faultless: Life) -> None:
    for _ in range(4):
        stage.fleet.cut("worker-1")
        await asyncio.sleep(3.0)  # on and off is the fault itself, not a wait for something
        stage.fleet.heal("worker-1")
        await asyncio.sleep(3.0)
    await says(stage, "True")
    await perform(stage, "scale", faultless["scale"].state)
    assert not (await stage.writes()).creates, "something was made anew"


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_are_told_and_nothing_is_given_up(
    stage: FaultyStage, faultless: Life, status: int
) -> None:
    refused = await stage.proxies["worker-1"].add(Rule(Match(), Answer(status, message="refused")))
    broken = await stage.proxies["worker-1"].add(Rule(Match(), CloseWatch()))  # what is open would not be asked again
    told = await says(stage, "False")
    assert "refused" in told, told
    assert len(await stage.replicas(SPACE)) == 2
    for rule in (refused, broken):
        await stage.proxies["worker-1"].remove(rule)
    await says(stage, "True")
    await perform(stage, "scale", faultless["scale"].state)
    assert stage.crashes == 0


@pytest.mark.usefixtures("two")
async def test_a_kubeconfig_is_replaced_without_a_restart(stage: FaultyStage, faultless: Life) -> None:
    good = stage.kubeconfig("worker-1")
    bad = {**good, "stringData": {"kubeconfig": good["stringData"]["kubeconfig"].replace("token: ", "token: wrong-")}}
    await stage.hub.apply(bad)
    await says(stage, "False")
    await stage.hub.apply(good)
    await says(stage, "True")
    await perform(stage, "scale", faultless["scale"].state)
    assert stage.crashes == 0
    assert not (await stage.writes()).creates, "something was made anew"


async def test_an_object_whose_writes_fail_holds_up_nobody_else(stage: FaultyStage, faultless: Life) -> None:
    poisoned = [
        await proxy.add(Rule(Match(namespace=remote(POISON), mutating=True), Answer(500, message="poisoned")))
        for name, proxy in stage.proxies.items()
        if name != HUB
    ]
    await stage.hub.apply(namespace(POISON), deployment(POISON, engines=[engine(HOPPER)]))

    async def told() -> bool:
        replicas = await stage.replicas(POISON)
        return any("poisoned" in condition(one, "Synced").get("message", "") for one in replicas.values())

    await until("the replica to say why", told)
    began = await stage.mutating_calls()
    await asyncio.sleep(10.0)  # the time over which its attempts are counted
    assert await stage.mutating_calls() - began <= 20, "it is tried again and again without a pause"
    await stage.hub.delete("ModelDeployment", "model", POISON)
    for name, rule in zip(stage.workers, poisoned, strict=True):
        await stage.proxies[name].remove(rule)
    await until("its replica to go", lambda: _none(stage, POISON))
    await perform(stage, "deploy", faultless["deploy"].state)


async def _none(stage: FaultyStage, space: str) -> bool:
    return not await stage.replicas(space)


@pytest.mark.usefixtures("two")
async def test_a_deployment_that_is_replaced_unseen_is_another_deployment(stage: FaultyStage, faultless: Life) -> None:
    before = await stage.replicas(SPACE)
    held = await stage.proxies[HUB].add(Rule(Match(verbs=("watch",)), HoldEvents()))
    await stage.hub.delete("ModelDeployment", "model", SPACE)
    await stage.hub.gone("ModelDeployment", "model", SPACE)
    await stage.hub.apply(model(replicas=2))
    await stage.quiet("while nobody looks")
    await stage.proxies[HUB].remove(held)

    async def others() -> bool:
        uids = {one["metadata"]["uid"] for one in (await stage.replicas(SPACE)).values()}
        return len(uids) == 2 and not uids & {one["metadata"]["uid"] for one in before.values()}

    await until("replicas of the new deployment only", others, OUTAGE_SECONDS)
    found = await until("all of it to be there", lambda: _same(stage, faultless), OUTAGE_SECONDS)
    assert found


async def _same(stage: FaultyStage, faultless: Life) -> bool:
    return {name.rpartition(" ")[0] for name in await state(stage)} == {
        name.rpartition(" ")[0] for name in faultless["scale"].state
    }
