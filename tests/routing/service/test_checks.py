"""How often what is checked is asked, and whom what hangs holds up, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from kubeloop.objects import Key
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import ModelService
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.service.checks import CHECK_INTERVAL, OF_A_NAMESPACE, SHORTEST, STEADY, Checks
from modelplane_operator.routing.service.probe import ANSWER_SECONDS
from tests.support import virtual_time

KEY = Key("team", "chat")

Ask = Callable[[str], Awaitable[str]]
Scene = Callable[["Stage"], Coroutine[Any, Any, None]]


class Stage:
    """Checks of services, each by a word; `wrong` is the answer that fails."""

    def __init__(self, ask: Ask) -> None:
        self.asked, self.woken, self.ask = Counter[str](), list[Key](), ask
        self.unreachable, self.costs, self.counted = False, False, Counter[str]()
        self.checks = Checks[str, str](
            of(ModelService),
            self._asked,
            failed=lambda _, answer: answer in {"wrong", "bad"},
            wake=self._woken,
            is_steady=lambda _, __: self.unreachable,
            costs=lambda _: self.costs,
            group=lambda way: way.partition(" ")[0],
            is_shared=lambda way, _: way.startswith("gateway"),
            on_checked=lambda kind, outcome: self.counted.update([f"{kind} {outcome}"]),
            jitter=lambda: 0.0,
        )

    async def _asked(self, way: str) -> str:
        self.asked[way] += 1
        return await self.ask(way)

    def _woken(self, _: ResourceType, key: Key) -> None:
        self.woken.append(key)


def played(scene: Scene, ask: Ask) -> Stage:
    async def play() -> Stage:
        stage = Stage(ask)
        async with asyncio.TaskGroup() as group:
            checking = group.create_task(stage.checks.run())
            await asyncio.sleep(0)
            await scene(stage)
            checking.cancel()
        return stage

    return virtual_time.run(play())


async def well(_: str) -> str:
    return "well"


async def wrong(_: str) -> str:
    return "wrong"


@pytest.mark.parametrize(("count", "costs", "seconds"), [(1, False, SHORTEST), (1, True, 60.0), (1000, False, 60.0)])
def test_at_rest_few_services_are_asked_often_and_many_or_costly_ones_once_a_minute(
    count: int,
    costs: bool,  # noqa: FBT001
    seconds: float,
) -> None:
    async def scene(stage: Stage) -> None:
        stage.costs = costs
        for number in range(count - 1):
            stage.checks.find(Key(f"team-{number}", "other"), "other")
        assert stage.checks.find(KEY, "way") == Checked()
        await asyncio.sleep(0.1)
        assert stage.checks.find(KEY, "way") == Checked("well")
        await asyncio.sleep(10 * CHECK_INTERVAL)

    stage = played(scene, well)
    assert 600 / seconds - 2 <= stage.asked["way"] <= 600 / seconds + 1
    assert stage.woken.count(KEY) == 1


def test_another_way_or_revision_is_asked_at_once_and_knows_nothing_of_the_one_before() -> None:
    async def scene(stage: Stage) -> None:
        stage.checks.find(KEY, "way", 1)
        await asyncio.sleep(0.1)
        assert stage.checks.find(KEY, "way", 2) == Checked()
        await asyncio.sleep(0.1)
        assert stage.checks.find(KEY, "other", 2) == Checked()
        await asyncio.sleep(0.1)
        assert stage.checks.find(KEY, "other", 2) == Checked("well")

    assert played(scene, well).asked == {"way": 2, "other": 1}


def test_an_answer_from_before_a_change_counts_for_nothing() -> None:
    async def slowly(way: str) -> str:
        await asyncio.sleep(1)
        return way

    async def scene(stage: Stage) -> None:
        stage.checks.find(KEY, "old")
        await asyncio.sleep(0.5)
        stage.checks.find(KEY, "new")
        await asyncio.sleep(1)
        assert stage.checks.find(KEY, "new") == Checked()
        await asyncio.sleep(1)
        assert stage.checks.find(KEY, "new") == Checked("new")

    assert len(played(scene, slowly).woken) == 1


def test_one_failure_is_no_outage_and_several_are() -> None:
    async def scene(stage: Stage) -> None:
        stage.checks.find(KEY, "way")
        await asyncio.sleep(0.1)
        assert stage.checks.find(KEY, "way") == Checked("wrong", failing=False)
        await asyncio.sleep(STEADY - 0.2)
        assert stage.checks.find(KEY, "way") == Checked("wrong", failing=False)
        await asyncio.sleep(2.1)
        assert stage.checks.find(KEY, "way") == Checked("wrong", failing=True)
        await asyncio.sleep(CHECK_INTERVAL)

    stage = played(scene, wrong)
    assert stage.asked["way"] <= 8 + CHECK_INTERVAL / 2, "it is asked every two seconds, so that its end is noticed"
    assert stage.counted == {"ModelService failed": stage.asked["way"]}
    assert len(stage.woken) == 2


def test_an_outage_by_hanging_counts_before_a_quarter_of_a_minute_is_over() -> None:
    hangs = False

    async def ask(_: str) -> str:
        if not hangs:
            return "well"
        await asyncio.sleep(ANSWER_SECONDS)
        return "wrong"

    async def scene(stage: Stage) -> None:
        nonlocal hangs
        stage.checks.find(KEY, "way")
        await asyncio.sleep(0.1)
        hangs = True
        await asyncio.sleep(15)
        assert stage.checks.find(KEY, "way") == Checked("wrong", failing=True)
        hangs = False
        await asyncio.sleep(10)
        assert stage.checks.find(KEY, "way") == Checked("well")

    played(scene, ask)


def test_failures_that_alternate_are_reported_once() -> None:
    answers = itertools.cycle(["wrong", "bad"])

    async def ask(_: str) -> str:
        return next(answers)

    async def scene(stage: Stage) -> None:
        stage.checks.find(KEY, "way")
        await asyncio.sleep(30)
        woken = len(stage.woken)
        await asyncio.sleep(5 * CHECK_INTERVAL)
        assert len(stage.woken) == woken

    played(scene, ask)


def test_a_failure_of_a_gateway_has_its_others_asked_at_once_and_not_again_each_time() -> None:
    down = False

    async def ask(_: str) -> str:
        return "wrong" if down else "well"

    async def scene(stage: Stage) -> None:
        nonlocal down
        stage.costs = True
        for number in range(3):
            stage.checks.find(Key("team", str(number)), f"gateway {number}")
            await asyncio.sleep(5)
        stage.checks.find(KEY, "another")
        await asyncio.sleep(0.1)
        down = True
        await asyncio.sleep(45.5)  # a minute after the first
        assert stage.asked["gateway 0"] > 1, "its turn has come"
        assert stage.asked["gateway 1"] > 1, "and so the others'"
        assert stage.asked["gateway 2"] > 1
        assert stage.asked["another"] == 1

    played(scene, ask)


def test_what_others_have_met_with_for_long_needs_no_second_failure() -> None:
    async def scene(stage: Stage) -> None:
        stage.unreachable = True
        stage.checks.find(KEY, "way")
        await asyncio.sleep(0.1)
        assert stage.checks.find(KEY, "way") == Checked("wrong", failing=True)

    played(scene, wrong)


def test_a_thousand_that_hang_hold_up_few_of_their_namespace_and_nobody_elses() -> None:
    async def hanging(way: str) -> str:
        await asyncio.sleep(5 if way == "hangs" else 0.01)
        return "well"

    async def scene(stage: Stage) -> None:
        for number in range(1000):
            stage.checks.find(Key("theirs", str(number)), "hangs")
        await asyncio.sleep(1)
        assert stage.asked["hangs"] == OF_A_NAMESPACE
        for number in range(100):
            stage.checks.find(Key("ours", str(number)), "way")
        await asyncio.sleep(1)
        assert stage.asked["way"] == 100

    played(scene, hanging)


def test_what_is_gone_is_asked_no_more_and_a_defect_ends_nothing() -> None:
    async def broken(way: str) -> str:
        if way == "broken":
            raise RuntimeError("a defect")
        return "well"

    async def scene(stage: Stage) -> None:
        stage.checks.find(Key("team", "broken"), "broken")
        stage.checks.find(KEY, "way")
        await asyncio.sleep(0.1)
        stage.checks.forget(KEY)
        await asyncio.sleep(2.5 * CHECK_INTERVAL)

    stage = played(scene, broken)
    assert stage.asked == {"broken": 3, "way": 1}
    assert stage.counted == {"ModelService defect": 3, "ModelService answered": 1}
