"""One operator leads, and a dead one is replaced: in virtual time as arithmetic, then on a real API server."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.kube import Kube
from kubeloop.errors import NotLeading
from kubeloop.lease import Lease, Sighting, Times, observe_lease
from kubeloop.objects import Key
from kubeloop.types import LEASE
from localfleet.faultproxy.client import FaultProxy
from localfleet.faultproxy.rules import Drop, Match, Rule
from tests.support.waiting import until

Manifest = dict[str, Any]

QUICK = Times(duration=5.0, deadline=4.0, retry=0.1)  # as short as a busy machine can still keep


def lease(version: str, holder: str, duration: int = 15) -> Manifest:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration}
    return {"metadata": {"name": "l", "resourceVersion": version}, "spec": spec}


@pytest.mark.parametrize(
    ("holder", "at", "free"),
    [("", 0.0, True), ("us", 0.0, True), ("them", 0.0, False), ("them", 14.9, False), ("them", 15.0, True)],
)
def test_a_lease_is_free_when_nobody_renews_it(holder: str, at: float, free: bool) -> None:  # noqa: FBT001
    assert observe_lease(lease("1", holder), 0.0).is_free(at, "us") is free


def test_a_renewal_counts_from_when_we_saw_it_and_not_from_what_it_says() -> None:
    seen = observe_lease(lease("1", "them"), 0.0)

    assert seen.after(lease("1", "them"), 10.0) == seen
    assert seen.after(lease("2", "them"), 10.0) == Sighting("2", "them", 15.0, 10.0)


@given(
    renewed=st.floats(0, 100),
    travel=st.floats(0, 4.9),
    looked=st.floats(0, 2.4),
    paused=st.floats(0, 60),
)
def test_the_holder_has_stopped_before_another_begins(
    renewed: float, travel: float, looked: float, paused: float
) -> None:
    """A renewal is sent, takes effect later, and is seen by another later still; then the holder is no more."""
    times = Times()
    holder_until = renewed + times.deadline
    seen = observe_lease(lease("7", "them", math.ceil(times.duration)), renewed + travel + looked)
    first_chance = seen.since + seen.duration

    assert first_chance > holder_until
    assert seen.is_free(first_chance + paused, "us")
    assert first_chance + 2 * times.retry * 1.2 - renewed <= times.duration + travel + looked + 5.0


def test_times_that_would_let_two_lead_are_refused() -> None:
    with pytest.raises(ValueError, match="lease"):
        Times(duration=10.0, deadline=10.0)


@dataclass
class Operator:
    """Somebody who wants to lead, and when they did."""

    lease: Lease
    led: list[str] = field(default_factory=list[str])
    task: asyncio.Task[None] | None = None

    async def work(self) -> None:
        self.led.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            self.led.append("ended")


Electing = Callable[..., Any]


@pytest.fixture
def election(namespace: str) -> Electing:
    @asynccontextmanager
    async def elect(*kubes: Kube, times: Times = QUICK) -> AsyncIterator[list[Operator]]:
        clock = asyncio.get_running_loop().time
        operators = [
            Operator(Lease(lambda kube=kube: kube, Key(namespace, "l"), f"op-{n}", clock, lambda: 0.5, times))
            for n, kube in enumerate(kubes)
        ]
        async with asyncio.TaskGroup() as group:
            for operator in operators:
                operator.task = group.create_task(operator.lease.run())
                group.create_task(operator.lease.lead(operator.work), name=operator.lease.identity)
                await until(lambda: any(one.lease.is_held for one in operators), "a leader")
            yield operators
            for task in asyncio.all_tasks():
                if task in group._tasks:  # pyright: ignore[reportAttributeAccessIssue]
                    task.cancel()

    return elect


@pytest.mark.fleet
@pytest.mark.server
async def test_one_leads_and_keeps_leading(kube: Kube, election: Electing) -> None:
    async with election(kube, kube) as (first, second):
        before = await kube.get(LEASE, first.lease.key)
        await until(lambda: first.led == ["began"], "the first to begin")
        for _ in range(3):
            await asyncio.sleep(QUICK.deadline / 2)  # it must outlive its own deadline
            first.lease.check()
        after = await kube.get(LEASE, first.lease.key)

        with pytest.raises(NotLeading):
            second.lease.check()
        assert second.led == []
        assert after["spec"]["holderIdentity"] == "op-0"
        assert after["spec"]["renewTime"] > before["spec"]["renewTime"]
        assert after["spec"]["leaseTransitions"] == 0


@pytest.mark.fleet
@pytest.mark.server
async def test_a_leader_that_stops_gives_the_lease_back(kube: Kube, election: Electing) -> None:
    clock = asyncio.get_running_loop().time
    async with election(kube, kube, times=Times(duration=60.0, deadline=30.0, retry=0.1)) as (first, second):
        began = clock()
        first.task.cancel()
        await until(lambda: second.lease.is_held, "the second to lead")

        assert clock() - began < 30.0, "without waiting for the lease to end"
        assert not first.lease.is_held


@pytest.mark.fleet
@pytest.mark.server
async def test_a_leader_that_is_cut_off_stops_and_is_replaced(
    kube: Kube, through: Kube, proxy: FaultProxy, election: Electing
) -> None:
    async with election(through, kube) as (first, second):
        await until(lambda: first.led == ["began"], "the first to begin")
        await proxy.add(Rule(Match(resource="leases"), Drop()))
        both = False
        while not second.lease.is_held:
            both = both or (first.lease.is_held and second.lease.is_held)
            await asyncio.sleep(0.01)

        assert not both
        assert not first.lease.is_held
        await until(lambda: first.led == ["began", "ended"], "the first to end")
        await until(lambda: second.led == ["began"], "the second to begin")
        assert (await kube.get(LEASE, second.lease.key))["spec"]["leaseTransitions"] == 1
