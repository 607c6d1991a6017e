"""What no watch tells is asked for once by all who want it, holds for a while, and keeps nobody waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.client.kube import Kube
from kubeloop.errors import Unreachable
from kubeloop.reading import Cluster
from kubeloop.reads import A_MOMENT, LEAST, Reads
from kubeloop.resource import of
from kubeloop.types import NODE, RESOURCE_SLICE
from modelplane_operator.api import InferenceCluster, labels
from modelplane_operator.clusters.stack.controller import _devices
from tests.support.builders import EPOCH
from tests.support.informers import holding, stored


def cluster(name: str = "one", server: str = "https://one", **more: Any) -> Cluster:
    return cast("Cluster", SimpleNamespace(**{"name": name, "server": server, "kube": None, **more}))


class Asked:
    """Answers with how often it was asked."""

    def __init__(self, *answers: object) -> None:
        self.times, self.answers = 0, answers

    async def __call__(self, _: Kube) -> object:
        self.times += 1
        await asyncio.sleep(0)
        answer = self.answers[self.times - 1] if self.answers else self.times
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_those_who_ask_at_once_and_a_moment_later_get_one_answer() -> None:
    reads, asked = Reads(), Asked()
    one = cluster()

    assert await asyncio.gather(*(reads.of(one, ("nodes",), asked, EPOCH) for _ in range(5))) == [1] * 5
    assert await reads.of(one, ("nodes",), asked, EPOCH + A_MOMENT / 2) == 1
    assert await reads.of(one, ("nodes",), asked, EPOCH + A_MOMENT) == 2


async def test_another_question_another_cluster_and_another_server_are_asked_anew() -> None:
    reads, asked = Reads(), Asked()
    for number, (where, question) in enumerate(
        (
            (cluster(), ("nodes",)),
            (cluster(), ("nodes", "after a change")),
            (cluster("two"), ("nodes",)),
            (cluster(server="https://moved"), ("nodes",)),
        ),
        start=1,
    ):
        assert await reads.of(where, question, asked, EPOCH) == number


async def test_what_fails_is_asked_for_again_at_once() -> None:
    reads, asked = Reads(), Asked(Unreachable("no"), "yes")

    with pytest.raises(Unreachable):
        await reads.of(cluster(), ("nodes",), asked, EPOCH)
    assert await reads.of(cluster(), ("nodes",), asked, EPOCH) == "yes"


async def test_an_empty_answer_may_hold_for_another_time() -> None:
    reads, asked = Reads(), Asked("", "is known", "not asked for")

    def told(after: timedelta) -> Awaitable[object]:
        hour, minute = timedelta(hours=1), timedelta(minutes=1)
        return reads.of(cluster(), ("identity",), asked, EPOCH + after, lasts=hour, nothing_lasts=minute)

    assert [await told(timedelta(minutes=minutes)) for minutes in (0, 0.5, 1, 60.5)] == ["", "", "is known", "is known"]


async def test_a_cluster_that_does_not_answer_keeps_nobody_waiting() -> None:
    async def hangs(_: Kube) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Unreachable, match="Cluster one did not answer"):
        await Reads(deadline=0.01).of(cluster(), ("nodes",), hangs, EPOCH)


async def test_those_who_wait_for_a_question_that_hangs_wait_for_one_deadline() -> None:
    reads, times = Reads(deadline=0.05), 0

    async def hangs(_: Kube) -> None:
        nonlocal times
        times += 1
        await asyncio.Event().wait()

    asked = [reads.of(cluster(), ("nodes",), hangs, EPOCH) for _ in range(20)]
    assert {type(one) for one in await asyncio.gather(*asked, return_exceptions=True)} == {Unreachable}
    assert (times, reads._asking) == (1, {})


async def test_what_nobody_may_use_any_more_is_forgotten() -> None:
    reads = Reads()
    for number in range(1000):
        await reads.of(cluster(), ("revision", number), Asked(), EPOCH + A_MOMENT * number)
        assert len(reads._cached) <= LEAST + 3
    assert not reads._asking


def test_devices_of_a_stack_are_told_by_what_is_watched() -> None:
    """The cluster here has no client: to ask it for anything would fail."""
    nodes = [stored(NODE, f"node-{pool}", labels={labels.POOL: pool}) for pool in ("a", "b")]
    slices = [{**stored(RESOURCE_SLICE, "s"), "spec": {"driver": "gpu.example.com", "nodeName": "node-a"}}]
    remote = cluster(find={NODE: holding(NODE, nodes), RESOURCE_SLICE: holding(RESOURCE_SLICE, slices)}.get)
    declared = [{"driver": "gpu.example.com", "claim": "DRA"}]
    pools = [{"name": name, "devices": declared} for name in ("a", "b", "without-nodes")]
    known = {**stored(of(InferenceCluster), "one"), "status": {"gpuPools": pools}}
    find: Callable[[Any], Any] = {of(InferenceCluster): holding(of(InferenceCluster), [known])}.get

    assert _devices(remote, cluster("", find=find)) == (("b",), ("a",))
