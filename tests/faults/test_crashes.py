"""The crash matrix: the operator is killed before, or after the effect of, every mutating call of a life.

A test kills it at every STRIDE-th call of each API server in each of the six acts, so that STRIDE tests, each with
either side of the effect, are the whole matrix. What fails in one act is seen again, alone, by

    FAULTS_REPLAY=drain/hub/17/after make test-faults
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest

from localfleet.faultproxy.rules import When
from tests.faults.life import ACTS, Life, perform, unlike
from tests.faults.stage import SEED, Crashes, FaultyStage

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800), pytest.mark.usefixtures("empty")]

STRIDE = 12
MORE = 1.5  # than without crashes: so many calls an act may take with them
REPLAY = os.environ.get("FAULTS_REPLAY", "")

Plan = Callable[[str], tuple[Crashes, When]]
"""For an act: at which calls of which cluster, and on which side of their effect."""


@pytest.mark.skipif(bool(REPLAY), reason="FAULTS_REPLAY asks for one crash alone")
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("first", range(1, STRIDE + 1))
async def test_a_life_with_crashes_leads_to_the_same_end(
    stage: FaultyStage, faultless: Life, first: int, when: When
) -> None:
    def plan(act: str) -> tuple[Crashes, When]:
        calls = faultless[act].writes.calls
        return {name: set(range(first, int(MORE * count) + 1, STRIDE)) for name, count in calls.items()}, when

    assert await live(stage, faultless, plan), "no crash at all"


@pytest.mark.fleet
async def test_a_life_with_a_crash_in_every_act_leads_to_the_same_end(stage: FaultyStage, faultless: Life) -> None:
    chance = Random(SEED)  # noqa: S311 - to be replayed

    def plan(act: str) -> tuple[Crashes, When]:
        if REPLAY:
            chosen, cluster, number, side = REPLAY.split("/")
            return {cluster: {int(number)} if act == chosen else set[int]()}, When(side)
        calls, when = faultless[act].writes.calls, chance.choice(tuple(When))
        cluster, number = chance.choice([(name, each + 1) for name, count in calls.items() for each in range(count)])
        return {cluster: {number}}, when

    assert await live(stage, faultless, plan), "no crash at all"


async def live(stage: FaultyStage, faultless: Life, plan: Plan) -> int:
    """A life with crashes; every act must end as it does without. Answers how many crashes there were."""
    crashes = 0
    for act in ACTS:
        await stage.reset()
        planned, when = plan(act)
        await stage.crash(planned, when)
        told = f"killed {when} calls { ({name: sorted(numbers) for name, numbers in planned.items()}) } of {act}"
        try:
            await perform(stage, act, faultless[act].state)
        except AssertionError as error:
            raise AssertionError(f"{told}, {stage.crashes} times: {error}") from None
        problems = list(unlike(faultless[act].writes, await stage.writes(), stage.crashes))
        assert not problems, "\n".join([told, *problems])
        crashes += stage.crashes
    return crashes
