"""How often what is checked is asked, and whom what hangs holds up, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from kubeloop.objects import Key
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import ModelService
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.service.checks import CHECK_INTERVAL, OF_A_NAMESPACE, STEADY, Checks
from tests.support import virtual_time

KEY = Key("team", "chat")

Ask = Callable[[str], Awaitable[str]]
Scene = Callable[["Stage"], Coroutine[Any, Any, None]]


class Stage:
    """Checks of services, each by a word; `wrong` is the answer that fails."""

    def __init__(self, ask: Ask) -> None:
        self.asked, self.woken, self.ask = Counter[str](), list[Key](), ask
        self.unreachable, self.counted = False, Counter[str]()
        self.checks = Checks[str, str](
            of(ModelService),
            self._asked,
            failed=lambda _, answer: answer == "wrong",
            wake=self._woken,
            is_steady=lambda _, __: self.unreachable,
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


def test_at_rest_a_service_is_asked_once_a_minute_and_nobody_is_woken() -> None:
    async def scene(stage: Stage) -> None:
        assert stage.checks.find(KEY, "way") == Checked()
        await asyncio.sleep(0.1)
        assert stage.checks.find(KEY, "way") == Checked("well")
        await asyncio.sleep(60 * CHECK_INTERVAL)

    stage = played(scene, well)
    assert 58 <= stage.asked["way"] <= 61
    assert stage.woken == [KEY]


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
        await asyncio.sleep(10)
        assert stage.checks.find(KEY, "way") == Checked("wrong", failing=True)
        await asyncio.sleep(60 * CHECK_INTERVAL)

    stage = played(scene, wrong)
    assert stage.asked["way"] <= 60 + STEADY + 3, "it is asked ever later"
    assert stage.counted == {"ModelService failed": stage.asked["way"]}
    assert len(stage.woken) == 2


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
