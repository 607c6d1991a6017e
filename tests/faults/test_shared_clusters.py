"""F10: operators that share the clusters, of which the one that works on a cluster is killed in the middle of a write.

It is killed at a write on that cluster, before or after its effect, and begins again when another has its clusters: so
those change hands twice in each act, once after a death and once in good order. Nothing is made twice, and every act
ends as it does where one operator does it all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from signal import SIGKILL, SIGSTOP

import pytest

from localfleet.faultproxy.rules import Match, Rule, Signal, When
from tests.faults.life import ACTS, Life, perform, twice
from tests.faults.sharing import PODS, TAKEOVER_SECONDS, begun, holders
from tests.faults.stage import SEED, FaultyStage
from tests.integration.harness import WORKERS, Operator, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800), pytest.mark.usefixtures("empty")]


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
