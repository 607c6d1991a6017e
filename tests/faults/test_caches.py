"""A cache's life (`cache_life.py`), with the operator killed before and after every write, and with lost replies.

Each act ends in the state that it has without faults; nothing is made twice, and the token is nowhere but in Secrets.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from localfleet.faultproxy.rules import LoseReply, Match, Rule, When
from tests.faults.cache_life import ACTS, perform
from tests.faults.life import Life, twice, unlike
from tests.faults.stage import SEED, Crashes, FaultyStage
from tests.integration.watcher import Watcher

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

STRIDE = 8
MORE = 1.5  # than without crashes: so many calls an act may take with them


@pytest.mark.usefixtures("without_cache")
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("first", range(1, STRIDE + 1))
async def test_a_cache_is_staged_changed_and_deleted_with_crashes(
    stage: FaultyStage, watcher: Watcher, faultless_cache: Life, first: int, when: When
) -> None:
    def planned(act: str) -> Crashes:
        calls = faultless_cache[act].writes.calls
        return {name: set(range(first, int(MORE * count) + 1, STRIDE)) for name, count in calls.items()}

    await live(stage, watcher, faultless_cache, planned, when)


@pytest.mark.fleet
@pytest.mark.usefixtures("without_cache")
async def test_a_cache_is_staged_changed_and_deleted_with_a_crash_in_every_act(
    stage: FaultyStage, watcher: Watcher, faultless_cache: Life
) -> None:
    chance = Random(SEED)  # noqa: S311 - to be replayed

    def planned(act: str) -> Crashes:
        calls = faultless_cache[act].writes.calls
        name, number = chance.choice([(name, each + 1) for name, count in calls.items() for each in range(count)])
        return {name: {number}}

    await live(stage, watcher, faultless_cache, planned, chance.choice(tuple(When)))


async def live(stage: FaultyStage, watcher: Watcher, life: Life, planned: Callable[[str], Crashes], when: When) -> None:
    """A life with crashes; every act must end as it does without."""
    crashes = 0
    for act in ACTS:
        await stage.reset()
        at = planned(act)
        await stage.crash(at, when)
        try:
            await perform(stage, act, life[act].state)
        except AssertionError as error:
            raise AssertionError(f"killed {when} calls {at} of {act}, {stage.crashes} times: {error}") from None
        assert list(unlike(life[act].writes, await stage.writes(), stage.crashes)) == []
        crashes += stage.crashes
    assert crashes, "no crash at all"
    await stage.reset()
    assert await watcher.check() == []


@pytest.mark.usefixtures("without_cache")
async def test_a_cache_is_staged_changed_and_deleted_while_replies_get_lost(
    stage: FaultyStage, watcher: Watcher, faultless_cache: Life
) -> None:
    struck = 0
    for act in ACTS:
        await stage.reset()
        for proxy in stage.proxies.values():
            # Not every second one: a lease is renewed after a look at it, and would lose each of its replies.
            await proxy.add(Rule(Match(mutating=True, every=3), LoseReply()))
        await perform(stage, act, faultless_cache[act].state)
        struck += await stage.struck()
        assert list(twice(faultless_cache[act].writes, await stage.writes())) == []
    assert struck
    await stage.reset()
    await stage.quiet("in fair weather", seconds=5.0)
    assert await watcher.check() == []
