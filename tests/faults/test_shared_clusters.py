"""F10: operators that share the clusters, of which the one that works on a cluster is killed in the middle of a write.

It is killed at a write on that cluster, before or after its effect, and begins again when another has its clusters: so
those change hands twice in each act, once after a death and once in good order. Nothing is made twice, and every act
ends as it does where one operator does it all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import suppress
from random import Random
from signal import SIGKILL, SIGSTOP

import pytest

from localfleet.faultproxy.rules import Match, Rule, Signal, When
from localfleet.kubeclient import ApiError
from modelplane_operator.api import labels
from modelplane_operator.clients.shares import cluster_lease
from tests.faults import cache_life
from tests.faults.life import ACTS, Life, perform, twice
from tests.faults.stage import LEASE, QUICK, SEED, FaultyStage
from tests.integration.harness import NOT_FOUND, WORKERS, Operator, until
from tests.support.manifests import Manifest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800), pytest.mark.usefixtures("empty")]

SHARED = ("--share-clusters=on", "--lease-duration=6", "--lease-deadline=4", "--lease-retry=0.5")
PODS = ("one", "two", "three")
TAKEOVER_SECONDS = 120.0
LEASES, _, LEADS = LEASE.rpartition("/")


@pytest.fixture
async def pods(stage: FaultyStage, empty: None) -> AsyncGenerator[dict[str, Operator]]:
    """Three operators that share the clusters, in the place of the stage's one."""
    del empty  # it comes first
    flags = [flag for flag in QUICK if not flag.startswith(("--lease", "--listen"))]
    pods = {
        name: Operator(
            stage.fleet,
            stage.operator.log.with_name(f"operator-{name}.log"),
            (*flags, *SHARED, f"--listen=127.0.0.1:809{number}", f"--identity={name}"),
            kubeconfig=stage.operator.kubeconfig,
            within=None,
        )
        for number, name in enumerate(PODS)
    }
    alone = stage.operator
    await alone.stop()
    beginning = [await begun(one) for one in pods.values()]
    try:
        await until("all clusters to have a pod", lambda: holders(stage), TAKEOVER_SECONDS)
        stage.operator = pods[PODS[0]]
        yield pods
    finally:
        for one in beginning:
            one.cancel()
        for one in pods.values():
            if one.is_up:
                await one.kill()
        await clear(stage)
        stage.operator = alone
        await stage.free_lease()
        await alone.start()


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.parametrize("number", [SIGKILL, SIGSTOP], ids=["killed", "stopped"])
async def test_the_work_of_an_operator_that_dies_in_the_middle_of_a_write_is_done_by_another_once(
    stage: FaultyStage, faultless: Life, pods: dict[str, Operator], number: int
) -> None:
    chance, struck = Random(f"{SEED} {number}"), Counter[str]()  # noqa: S311 - to be replayed
    for act in ACTS:
        await stage.reset()
        known = await until("all clusters to have a pod", lambda: holders(stage), TAKEOVER_SECONDS)
        calls = faultless[act].writes.calls
        where = max(WORKERS, key=lambda name: calls[name])
        if not calls[where]:  # it is of the hub alone
            await perform(stage, act, faultless[act].state)
            continue
        victim, when = known[where], chance.choice(tuple(When))
        stage.operator = pods[next(name for name in PODS if name != victim)]  # whom the stage does not bring back
        write = chance.randint(1, calls[where])
        told = f"{victim} got signal {number} {when} write {write} on {where} of {act}"
        rule = await stage.proxies[where].add(
            Rule(Match(mutating_call=write), Signal(pods[victim].pid, number, when), times=1)
        )
        waking = asyncio.create_task(back(stage, pods[victim], victim, where))
        try:
            await perform(stage, act, faultless[act].state)
            struck[act] = await stage.proxies[where].fired(rule)
            if not struck[act]:  # that act took fewer writes today
                waking.cancel()
                continue
            await waking
            await stage.quiet(f"after {told}", seconds=3.0)
            await perform(stage, act, faultless[act].state)  # again: nothing is left to do, and all is as it was
        except AssertionError as error:
            raise AssertionError(f"{told}: {error}") from None
        finally:
            waking.cancel()
            if pods[victim].is_up:
                pods[victim].resume()
        assert [*twice(faultless[act].writes, await stage.writes())] == [], told
    assert struck.total(), "nobody was struck"


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.usefixtures("without_cache")
async def test_the_leader_stages_a_cache_on_clusters_that_other_pods_hold(
    stage: FaultyStage,
    faultless_cache: Life,
    pods: dict[str, Operator],
) -> None:
    for act in cache_life.ACTS:
        await cache_life.perform(stage, act, faultless_cache[act].state)
    assert all(one.is_up for one in pods.values())


async def back(stage: FaultyStage, pod: Operator, name: str, where: str) -> None:
    """Once that pod is still, wait until another has its cluster; then let it go on, or begin anew."""
    await until(f"{name} to be still", lambda: pod.is_still, TAKEOVER_SECONDS)

    async def moved() -> bool:
        return (await holders(stage)).get(where, name) != name

    await until(f"another than {name} to have {where}", moved, TAKEOVER_SECONDS)
    if pod.is_up:
        pod.resume()
    else:
        await begun(pod)


async def begun(pod: Operator) -> asyncio.Task[None]:
    """Start it; that task is over once it leads, if it ever does."""
    before = pod.process

    async def leads() -> None:
        with suppress(AssertionError):  # it may die before
            await pod.start(seconds=1e6)

    starting = asyncio.create_task(leads())
    await until("it to be up", lambda: pod.process is not before and pod.process)
    return starting


async def leases(stage: FaultyStage) -> list[Manifest]:
    found = await stage.hub.client.request("GET", LEASES, params={"labelSelector": f"{labels.SHARING}={LEADS}"})
    return found["items"]


async def holders(stage: FaultyStage) -> dict[str, str]:
    """By cluster, which pod has it; nothing unless each cluster has one."""
    names = {cluster_lease(LEADS, worker): worker for worker in WORKERS}
    found = {
        names[one["metadata"]["name"]]: (one["spec"].get("holderIdentity") or "").partition("_")[0]
        for one in await leases(stage)
        if one["metadata"]["name"] in names
    }
    return found if len(found) == len(WORKERS) and all(found.values()) else {}


async def clear(stage: FaultyStage) -> None:
    """Nobody waits for pods that are known to be dead."""
    for one in await leases(stage):
        try:
            await stage.hub.client.request("DELETE", f"{LEASES}/{one['metadata']['name']}")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
