"""F10: two operators, of which the one that leads is stopped in its tracks again and again, and wakes up too late.

It is stopped at a write, before or after its effect; the other takes over, and when it leads, the first goes on where
it was: with decisions of long ago in its hands, and the belief that it leads. What keeps it from harm are conditions
that the API servers check (resourceVersion, uid, names), and that it looks at the clock before it writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from random import Random
from signal import SIGSTOP

import pytest

from localfleet.faultproxy.rules import Match, Rule, Signal, When
from localfleet.fleet import HUB
from tests.faults.life import ACTS, Life, perform, twice
from tests.faults.stage import QUICK, SEED, FaultyStage
from tests.integration.harness import SECONDS, Operator, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800), pytest.mark.usefixtures("empty")]

LEASES = ("--lease-duration=6", "--lease-deadline=4", "--lease-retry=0.5")
TAKEOVER_SECONDS = 120.0


@pytest.fixture
async def pair(stage: FaultyStage, empty: None) -> AsyncGenerator[list[Operator]]:
    """Two operators in the place of the stage's one; the first leads."""
    del empty  # it comes first
    flags = [flag for flag in QUICK if not flag.startswith(("--lease", "--listen"))]
    pair = [
        Operator(
            stage.fleet,
            stage.operator.log.with_name(f"operator-{number}.log"),
            (*flags, *LEASES, f"--listen=127.0.0.1:808{number}"),
            kubeconfig=stage.operator.kubeconfig,
            within=None,
        )
        for number in (1, 2)
    ]
    alone = stage.operator
    await alone.stop()
    await pair[0].start()
    stage.operator = pair[0]
    standby = asyncio.create_task(pair[1].start(seconds=1e6))  # it is over once that one leads
    try:
        await until("the standby to be up", lambda: pair[1].process)
        yield pair
    finally:
        standby.cancel()
        for one in pair:
            if one.is_up:
                await one.kill()
        stage.operator = alone
        await stage.free_lease()
        await alone.start()


async def test_a_leader_that_wakes_up_too_late_does_no_harm(
    stage: FaultyStage, faultless: Life, pair: list[Operator]
) -> None:
    chance = Random(SEED)  # noqa: S311 - to be replayed
    for act in ACTS:
        await stage.reset()
        leader = max(pair, key=last_led)
        other = next(one for one in pair if one is not leader)
        number = chance.randint(1, faultless[act].writes.calls[HUB])
        signal = Signal(leader.pid, SIGSTOP, chance.choice(tuple(When)))
        rule = await stage.proxies[HUB].add(Rule(Match(mutating_call=number), signal, times=1))
        waking = asyncio.create_task(wake(stage, rule, leader, other))
        try:
            await perform(stage, act, faultless[act].state)
            if not await stage.proxies[HUB].fired(rule):  # that act took fewer writes today
                waking.cancel()
                continue
            await waking
            await stage.quiet(f"after both of {act}", seconds=3.0)
            await perform(stage, act, faultless[act].state)  # again: nothing is left to do, and all is as it was
        finally:
            waking.cancel()
            leader.resume()
        assert list(twice(faultless[act].writes, await stage.writes())) == []
        assert all(one.is_up for one in pair)


async def wake(stage: FaultyStage, rule: int, leader: Operator, other: Operator) -> None:
    """Once the leader is stopped, wait until the other leads, and let the first go on."""
    led = last_led(other)

    async def stopped() -> int:
        return await stage.proxies[HUB].fired(rule)

    await until("the leader to be stopped", stopped, TAKEOVER_SECONDS)
    await until("the other to lead", lambda: last_led(other) > led, TAKEOVER_SECONDS + SECONDS)
    leader.resume()


def last_led(operator: Operator) -> str:
    """When an operator last began to lead; times are text that sorts."""
    text = operator.log.read_text() if operator.log.exists() else ""
    begun = [line for line in text.splitlines() if '"event":"leading"' in line]
    return begun[-1].partition('"time":"')[2][:27] if begun else ""
