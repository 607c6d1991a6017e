"""A plan's steps for each cluster are carried out to their own first failure, between finalizers on and off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

import pytest
from structlog.testing import capture_logs

from kubeloop.errors import ClientError, Conflict, Forbidden, TooMany, Unauthorized, Unreachable
from kubeloop.objects import Key
from kubeloop.plan import (
    KEEP,
    LET_GO,
    Apply,
    Delete,
    Failure,
    HelmStep,
    KubeStep,
    RenewToken,
    SetFinalizer,
    Step,
    Uninstall,
)
from kubeloop.queue import Failed
from kubeloop.resource import of
from kubeloop.step_log import BURST, RATE, StepLog
from kubeloop.strands import SLOW, Actor, StepContext, outcome, summarize
from kubeloop.types import CONFIG_MAP, HUB
from modelplane_operator.api import ModelCache
from tests.support.waiting import SECONDS


class Unwatched:
    """A cluster of which nothing is watched."""

    def find(self, _: object) -> None:
        return None


@dataclass
class Noting:
    """Carries out everything by noting it, but for what hangs or is refused."""

    hanging: Step | None = None
    errors: Mapping[str, Exception] = field(default_factory=dict[str, Exception])
    awaited: int = 0
    done: list[Step] = field(default_factory=list[Step], init=False)
    enough: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def begin(self, step: Step, _: StepContext) -> None:
        if step == self.hanging:
            await asyncio.Event().wait()
        if (error := self.errors.get(str(step))) is not None:
            raise error
        self.done.append(step)
        if len(self.done) == self.awaited:
            self.enough.set()

    def actor(self, end: float | None = None) -> Actor:
        turn = StepContext(of(ModelCache), Key("team", "a"), lambda _: cast(Any, Unwatched()), lambda: None)
        return Actor(turn, dict.fromkeys((*get_args(KubeStep), *get_args(HelmStep)), self), end)


def applied(name: str, cluster: str = HUB) -> Apply:
    return Apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "team"}}, cluster)


def deleted(cluster: str) -> Delete:
    return Delete(CONFIG_MAP, Key("team", "a"), "uid", "us", cluster)


async def test_a_cluster_that_hangs_holds_up_nothing_on_the_hub_or_another_cluster() -> None:
    east, west, near = deleted("east"), applied("a", "west"), applied("a")
    noting = Noting(hanging=east, awaited=3)

    acting = asyncio.create_task(noting.actor().act((east, applied("after", "east"), near, west, LET_GO)))
    async with asyncio.timeout(SECONDS):
        await noting.enough.wait()

    assert noting.done == [KEEP, near, west]
    assert not acting.done()
    acting.cancel()
    await asyncio.wait({acting})


async def test_a_strand_that_is_not_over_in_time_ends_as_if_its_cluster_were_away() -> None:
    hanging = deleted("east")

    (failure,) = await Noting(hanging).actor(asyncio.get_running_loop().time()).act((hanging,))

    assert (failure.step, type(failure.error), str(failure.error)) == (hanging, Unreachable, SLOW)


async def test_each_strand_goes_to_its_own_first_failure_and_all_failures_are_answered() -> None:
    steps = (deleted("east"), applied("a", "east"), applied("a"), deleted("west"), applied("b", "west"))
    refused = {str(deleted("east")): Forbidden("no"), str(deleted("west")): Unreachable("silence")}
    noting = Noting(errors=refused)

    failed = await noting.actor().act(steps)

    assert [(one.step, type(one.error)) for one in failed] == [(steps[0], Forbidden), (steps[3], Unreachable)]
    assert noting.done == [KEEP, applied("a")]


async def test_what_is_only_begun_holds_up_nothing_when_that_fails() -> None:
    token, chart = (
        RenewToken("east", Key("", "us"), 600, Key("", "kubeconfig"), "kubeconfig"),
        Uninstall(Key("", "x"), "east"),
    )
    noting = Noting(errors={str(token): Forbidden("no"), str(chart): Forbidden("no")})

    failed = await noting.actor().act((token, chart, deleted("east"), LET_GO))

    assert [one.step for one in failed] == [token, chart]
    assert noting.done == [deleted("east")], "and the object is not let go"


async def test_a_defect_ends_its_own_strand_and_keeps_its_words_to_itself() -> None:
    noting = Noting(errors={str(deleted("east")): ValueError("a secret")})

    (failure,) = await noting.actor().act((deleted("east"), deleted("west"), LET_GO))

    assert noting.done == [deleted("west")]
    assert "a secret" not in str(failure)
    assert isinstance(failure.error.__cause__, ValueError), "for the log"


async def test_nothing_else_is_done_when_a_finalizer_cannot_be_added() -> None:
    finalizer = SetFinalizer(CONFIG_MAP, Key("team", "a"))
    noting = Noting(errors={str(finalizer): Forbidden("no")})

    (failure,) = await noting.actor().act((applied("a"), finalizer, applied("a", "east")))

    assert failure.step == finalizer
    assert noting.done == [KEEP]


@pytest.mark.parametrize("refusing", [HUB, "east", "west"])
async def test_our_finalizer_comes_off_only_when_every_strand_has_succeeded(refusing: str) -> None:
    steps = (deleted(HUB), deleted("east"), deleted("west"), LET_GO)
    willing, unwilling = Noting(), Noting(errors={str(deleted(refusing)): Unreachable("silence")})

    assert await willing.actor().act(steps) == ()
    assert willing.done == list(steps)
    assert len(await unwilling.actor().act(steps)) == 1
    assert LET_GO not in unwilling.done
    assert len(unwilling.done) == 2


def asked_to_wait(seconds: float) -> TooMany:
    error = TooMany("later")
    error.retry_after = seconds
    return error


@pytest.mark.parametrize(
    ("errors", "said", "after"),
    [
        ((Forbidden("no"),), "no", Failed(terminal=True)),
        ((Unreachable("silence"), Forbidden("no")), "no; silence", Failed()),
        ((Conflict("stale"), asked_to_wait(5), asked_to_wait(9)), "later; later; stale", Failed(at_least=9)),
        ((Unreachable("silence"), Unauthorized("who?")), "who?; silence", Failed()),
        ((Forbidden("a"), Forbidden("b")), "a; b", Failed(terminal=True)),
    ],
)
def test_of_several_failures_the_most_telling_is_told_first_and_one_that_may_pass_is_tried_again_soon(
    errors: tuple[ClientError, ...], said: str, after: Failed
) -> None:
    failures = [Failure(None, error) for error in errors]

    assert summarize(failures) == said
    assert outcome(failures) == after


class Writing:
    """Carries out steps, of which some find that nothing has to change."""

    def __init__(self, *unchanged: Step) -> None:
        self.unchanged = unchanged

    async def begin(self, step: Step, context: StepContext) -> None:
        if step not in self.unchanged:
            context.may_write()


async def test_each_write_is_a_line_of_the_log_and_what_needs_none_is_no_line() -> None:
    chart, same, new = Uninstall(Key("", "x"), "east"), applied("same", "west"), applied("new", "west")
    context = StepContext(of(ModelCache), Key("team", "a"), lambda _: cast(Any, Unwatched()), lambda: None)
    actor = Actor(context, dict.fromkeys((*get_args(KubeStep), *get_args(HelmStep)), Writing(same, KEEP)))

    with capture_logs() as lines:
        assert await actor.act((chart, same, new)) == ()

    written = [(line["event"], line["step"], line["kind"], line["key"], line["log_level"]) for line in lines]
    assert written == [
        ("step started", str(chart), "ModelCache", "team/a", "info"),
        ("step done", str(new), "ModelCache", "team/a", "info"),
    ]


async def test_a_cluster_that_undoes_what_is_written_does_not_fill_the_log() -> None:
    clock = [0.0]
    steps = StepLog(lambda: clock[0])
    context = StepContext(of(ModelCache), Key("team", "a"), lambda _: cast(Any, Unwatched()), lambda: None)
    executors = dict.fromkeys((*get_args(KubeStep), *get_args(HelmStep)), Writing(KEEP))
    again = [applied(str(number), "east") for number in range(1000)]

    with capture_logs() as lines:
        for _ in range(10):
            assert await Actor(context, executors, log=steps).act(again) == ()
        flood = len(lines)
        assert await Actor(context, executors, log=steps).act((applied("other", "west"),)) == ()
        clock[0] += 1.0
        assert await Actor(context, executors, log=steps).act(again) == ()

    assert flood == BURST
    assert [line["step"] for line in lines[flood : flood + 1]] == [str(applied("other", "west"))]
    assert [line.get("omitted") for line in lines[flood + 1 :]] == [10_000 - BURST, *[None] * (int(RATE) - 1)]
