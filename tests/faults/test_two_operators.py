"""F10: two operators, of which the one that leads is stopped in its tracks again and again, and wakes up too late.

It is stopped at a write, before or after its effect; the other takes over, and when it leads, the first goes on where
it was: with decisions of long ago in its hands, and the belief that it leads. What keeps it from harm are conditions
that the API servers check (resourceVersion, uid, names), and that it looks at the clock before it writes.

What the leader makes on a cluster, the other does not watch while there is nothing of that type (decision 35). So the
other must look before it believes anything, above all where the leader has just written and nobody gets any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from random import Random
from signal import SIGKILL, SIGSTOP, Signals

import pytest

from localfleet.faultproxy.rules import Match, Rule, Signal, When
from localfleet.fleet import HUB
from tests.faults.life import ACTS, SPACE, Life, perform, twice
from tests.faults.stage import IMPATIENT, QUICK, SEED, FaultyStage
from tests.integration.harness import SECONDS, WORKERS, Operator, condition, until
from tests.support.manifests import Manifest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800), pytest.mark.usefixtures("empty")]

LEASE_DURATION = "--lease-duration=6"
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
            (*flags, LEASE_DURATION, f"--listen=127.0.0.1:808{number}"),
            kubeconfig=stage.operator.kubeconfig,
            within=None,
            module=IMPATIENT,
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
        leader, other = in_turn(pair)
        number = chance.randint(1, faultless[act].writes.calls[HUB])
        signal = Signal(leader.pid, SIGSTOP, chance.choice(tuple(When)))
        rule = await stage.proxies[HUB].add(Rule(Match(mutating_call=number), signal, times=1))
        waking = asyncio.create_task(wake(leader, other))
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


@pytest.mark.parametrize("fate", ["kept", "deleted"])
@pytest.mark.parametrize("number", [SIGSTOP, SIGKILL], ids=["stopped", "killed"])
async def test_what_a_leader_had_just_made_where_nobody_gets_any_more_is_found_by_the_next(
    stage: FaultyStage, faultless: Life, pair: list[Operator], number: Signals, fate: str
) -> None:
    await stage.reset()
    leader, other = in_turn(pair)
    calls = faultless["deploy"].writes.calls
    where = max(WORKERS, key=lambda name: calls[name])
    last = Random(f"{SEED} {number} {fate}").randint(1, calls[where])  # noqa: S311 - to be replayed
    told = f"the leader's write number {last} on {where} was its last"
    stops = Signal(leader.pid, number, When.AFTER)
    await stage.proxies[where].add(Rule(Match(mutating_call=last), stops, times=1))
    end = "deploy" if fate == "kept" else "delete"
    try:
        await ACTS["deploy"](stage)
        await until("the leader to be stopped", lambda: leader.is_still, TAKEOVER_SECONDS)
        stage.fleet.cut(where)
        stage.operator = other
        if fate == "deleted":  # before the other leads, which else would expect what it is about to write
            await ACTS["delete"](stage)
        await until("the other to lead", lambda: last_led(other) > last_led(leader), TAKEOVER_SECONDS)
        replica = await until("it to say that it cannot get there", lambda: out_of_reach(stage), TAKEOVER_SECONDS)
        assert bool(replica["metadata"].get("deletionTimestamp")) == (fate == "deleted")
        stage.fleet.heal(where)
        if number == SIGSTOP:
            leader.resume()
        await perform(stage, end, faultless[end].state)
    except AssertionError as error:
        raise AssertionError(f"{told}: {error}") from None
    finally:
        stage.fleet.heal(where)
    assert list(twice(faultless["deploy"].writes, await stage.writes())) == [], told


async def out_of_reach(stage: FaultyStage) -> Manifest | None:
    """The replica, if it says, as it is now, that its cluster does not answer."""
    (replica,) = await stage.hub.list("ModelReplica", SPACE)
    said = condition(replica, "Synced")
    current = said.get("observedGeneration") == replica["metadata"]["generation"]
    return replica if current and said["reason"] == "ReconcileError" else None


def in_turn(pair: list[Operator]) -> tuple[Operator, Operator]:
    """Who leads, and who does not."""
    first, second = sorted(pair, key=last_led, reverse=True)
    return first, second


async def wake(leader: Operator, other: Operator) -> None:
    """Once the leader is stopped, wait until the other leads, and let the first go on."""
    led = last_led(other)
    await until("the leader to be stopped", lambda: leader.is_still, TAKEOVER_SECONDS)
    await until("the other to lead", lambda: last_led(other) > led, TAKEOVER_SECONDS + SECONDS)
    leader.resume()


def last_led(operator: Operator) -> str:
    """When an operator last began to lead; times are text that sorts."""
    text = operator.log.read_text() if operator.log.exists() else ""
    begun = [line for line in text.splitlines() if '"event":"leading"' in line]
    return begun[-1].partition('"time":"')[2][:27] if begun else ""
