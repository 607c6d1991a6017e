"""The log says once that something begins and once that it is over, however often and by whom it is tried meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import pytest
from structlog.testing import capture_logs

from kubeloop.backoff import Backoff
from kubeloop.cache.connection import Connection
from kubeloop.cache.informer import Informer
from kubeloop.cache.prober import ConnectionPace, Health
from kubeloop.cache.reflector import Reflector, WatchPace
from kubeloop.cache.store import Store
from kubeloop.cache.turns import follow
from kubeloop.cache.watches import Watched
from kubeloop.client.access import read_kubeconfig
from kubeloop.client.kube import Kube, connect
from kubeloop.errors import Unreachable
from kubeloop.lease import Lease, Times
from kubeloop.objects import Key
from kubeloop.repeats import MOST, Repeats
from kubeloop.types import CONFIG_MAP, DEPLOYMENT, POD, SERVICE
from tests.support.waiting import until

NOWHERE = """
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: a, user: {token: a}}]
"""
AT_ONCE = Backoff(first=0.0, longest=0.0)
ATTEMPTS = 40


@contextmanager
def info_lines() -> Iterator[Callable[[], Sequence[str]]]:
    """What an operator logs that is not told to log more."""
    with capture_logs() as lines:
        yield lambda: [line["event"] for line in lines if line["log_level"] != "debug"]


async def test_an_outage_of_a_cluster_is_one_line_however_many_watches_try() -> None:
    store, news = Store(asyncio.get_running_loop().time), list[Health]()
    pace = ConnectionPace(retry=0.0, backoff=AT_ONCE, rebuild=AT_ONCE, watch=WatchPace(backoff=AT_ONCE))
    one = Connection(
        "one",
        read_kubeconfig(NOWHERE),
        [Watched(kind) for kind in (CONFIG_MAP, DEPLOYMENT, POD, SERVICE)],
        store,
        jitter=lambda: 0.5,
        pace=pace,
        on_health=lambda _, health: news.append(health),
    )
    with info_lines() as said:
        running = asyncio.create_task(one.run())
        await until(lambda: one.health.misses > ATTEMPTS, "many attempts")
        running.cancel()
        await asyncio.wait([running])

    assert said() == ["cluster health"]
    assert news[0].error is not None


@pytest.mark.parametrize(("answers", "lines"), [(False, []), (True, ["watch fails"])])
async def test_a_watch_that_fails_is_told_of_once_and_only_while_its_server_answers(
    answers: bool,  # noqa: FBT001
    lines: Sequence[str],
) -> None:
    """The clock moves by a second whenever somebody looks."""
    clock, broken = count(), list[None]()
    informer = Informer(CONFIG_MAP, now=lambda: float(next(clock)))
    async with connect(read_kubeconfig(NOWHERE)) as kube:
        watch = Reflector(
            kube,
            informer,
            jitter=lambda: 0.5,
            pace=WatchPace(backoff=AT_ONCE, steady=1e9),
            on_broken=lambda: broken.append(None),
            answers=lambda: answers,
        )
        with info_lines() as said:
            running = asyncio.create_task(follow([watch]))
            await until(lambda: len(broken) > ATTEMPTS, "many attempts")
            running.cancel()

    assert said() == lines


async def test_a_lease_that_cannot_be_renewed_is_one_line() -> None:
    asked: list[None] = []

    def away() -> Kube:
        asked.append(None)
        raise Unreachable("the hub is away")

    lease = Lease(away, Key("ns", "lease"), "me", lambda: 0.0, lambda: 0.0, Times(0.03, 0.02, 0.001))
    with info_lines() as said:
        running = asyncio.create_task(lease.run())
        await until(lambda: len(asked) > ATTEMPTS, "many attempts")
        running.cancel()

    assert said() == ["lease not renewed"]


def test_what_repeats_is_told_of_ever_more_seldom_and_each_thing_for_itself() -> None:
    repeats = Repeats()

    assert [found for _ in range(9) if (found := repeats.worth("a"))] == [1, 2, 4, 8]
    assert repeats.worth("b") == 1


def test_of_more_things_than_are_told_apart_the_counts_begin_anew() -> None:
    repeats = Repeats()
    for number in range(MOST + 1):
        assert repeats.worth(number) == 1

    assert repeats.worth(0) == 1
