"""Reflectors take their turns, and no task while there is nothing to watch: in virtual time, on a server of our own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast

import pytest

from kubeloop.cache.informer import Informer
from kubeloop.cache.reflector import Reflector
from kubeloop.cache.turns import follow
from kubeloop.client.kube import Kube
from kubeloop.client.lists import Listing
from kubeloop.errors import Misbehaving, NotFound, Unreachable
from kubeloop.types import CONFIG_MAP, SECRET, SERVICE, ResourceType
from tests.support.virtual_time import run


class Server:
    """Has nothing of what it serves, and counts who asks."""

    def __init__(self, *served: ResourceType) -> None:
        self.served, self.lists, self.watching = set(served), Counter[ResourceType](), Counter[ResourceType]()
        self.said = dict[ResourceType, Exception]()

    async def read_list(self, kind: ResourceType, *_: Any, **__: Any) -> Any:
        self.lists[kind] += 1
        await asyncio.sleep(0.01)
        if kind in self.said:
            raise self.said[kind]
        if kind not in self.served:
            raise NotFound("there is no such type")
        return Listing((), "7")

    async def watch(self, kind: ResourceType, *_: Any, **__: Any) -> AsyncGenerator[Any]:
        self.watching[kind] += 1
        try:
            await asyncio.sleep(300.0)
        finally:
            self.watching[kind] -= 1
        for nothing in ():
            yield nothing

    def check_kept(self, *_: Any) -> None: ...


def reflectors(server: Server, *, ours: bool = True) -> list[Reflector]:
    kinds = (CONFIG_MAP, SECRET, SERVICE)
    clock = asyncio.get_running_loop().time
    kube = cast("Kube", server)
    return [Reflector(kube, Informer(kind, clock, cluster="berlin"), lambda: 0.5, only_ours=ours) for kind in kinds]


def lived(server: Server, script: Callable[[list[Reflector]], Awaitable[None]], *, ours: bool = True) -> None:
    async def life() -> None:
        known = reflectors(server, ours=ours)
        following = asyncio.create_task(follow(known))
        await asyncio.sleep(1.0)
        await script(known)
        following.cancel()
        await asyncio.wait({following})
        assert len(asyncio.all_tasks()) == 1, "what it began has ended with it"
        assert not +server.watching

    run(life())


def tasks() -> int:
    return len(asyncio.all_tasks())


def test_what_has_nothing_to_watch_takes_no_task_until_something_is_about_to_be_made() -> None:
    server = Server(CONFIG_MAP, SECRET, SERVICE)

    async def script(known: list[Reflector]) -> None:
        assert tasks() == 2, "this one, and the one that follows"
        assert all(one.idle and one.informer.synced for one in known)
        known[1].informer.expect()
        await asyncio.sleep(0.1)
        assert server.watching == {SECRET: 1}
        assert (tasks(), known[1].idle) == (3, False)
        assert server.lists == {CONFIG_MAP: 1, SECRET: 2, SERVICE: 1}, "since the last one there may be another"
        await asyncio.sleep(700.0)
        assert tasks() == 2, "nothing came of it"
        assert server.lists == {CONFIG_MAP: 1, SECRET: 3, SERVICE: 1}

    lived(server, script)


def test_what_is_expected_while_it_is_listed_is_not_missed() -> None:
    server = Server(CONFIG_MAP)

    async def script(known: list[Reflector]) -> None:
        known[0].informer.wake()
        await asyncio.sleep(0.005)  # in the middle of the list, which may have been answered already
        known[0].informer.wake()
        await asyncio.sleep(0.1)
        assert server.lists[CONFIG_MAP] == 3
        await asyncio.sleep(100.0)
        assert server.lists[CONFIG_MAP] == 3, "and then it rests"

    lived(server, script)


def test_a_type_that_is_not_served_is_asked_for_less_and_less_often_unless_somebody_would_use_it() -> None:
    server = Server(CONFIG_MAP, SECRET)

    async def script(known: list[Reflector]) -> None:
        await asyncio.sleep(3600.0)
        asked = server.lists[SERVICE]
        assert 12 <= asked <= 20, "some minutes lie between two"
        assert tasks() == 2
        for _ in range(60):
            known[2].informer.check_type()
            await asyncio.sleep(1.0)
        assert server.lists[SERVICE] - asked in {2, 3}, "every half a minute, however often somebody asks"
        server.served.add(SERVICE)
        await asyncio.sleep(31.0)
        known[2].informer.check_type()
        await asyncio.sleep(0.1)
        assert known[2].informer.served

    lived(server, script)


def test_what_is_expected_of_a_type_that_is_not_served_is_no_reason_to_ask_without_end() -> None:
    server = Server(CONFIG_MAP, SECRET)

    async def script(known: list[Reflector]) -> None:
        for _ in range(600):
            known[2].informer.expect()
            await asyncio.sleep(0.1)
        assert server.lists[SERVICE] <= 4

    lived(server, script)


def test_that_a_server_was_away_does_not_count_as_that_it_lacks_a_type() -> None:
    server = Server(CONFIG_MAP, SECRET, SERVICE)

    async def script(known: list[Reflector]) -> None:
        server.said[SERVICE] = Unreachable("it restarts")
        known[2].informer.wake()
        await asyncio.sleep(300.0)
        server.said[SERVICE] = NotFound("not yet")
        while known[2].informer.served:  # noqa: ASYNC110 - time alone goes by
            await asyncio.sleep(1.0)
        server.said.clear()
        await asyncio.sleep(41.0)
        assert known[2].informer.served

    lived(server, script)


@pytest.mark.parametrize("kind", [CONFIG_MAP, SERVICE], ids=["vacant", "not served"])
def test_what_another_may_have_made_is_looked_for_also_while_a_list_is_under_way(kind: ResourceType) -> None:
    server = Server(CONFIG_MAP, SECRET)

    async def script(known: list[Reflector]) -> None:
        one = next(one for one in known if one.informer.type == kind)
        one.list_unwatched()
        await asyncio.sleep(0.005)
        one.invalidate()
        one.list_unwatched()
        assert not one.informer.synced
        lists = server.lists[kind]
        await asyncio.sleep(0.1)
        assert server.lists[kind] == lists + 1
        assert one.informer.synced

    lived(server, script)


def test_a_wake_does_not_shorten_the_wait_after_a_failure() -> None:
    server = Server(CONFIG_MAP, SECRET, SERVICE)

    async def script(known: list[Reflector]) -> None:
        server.said[CONFIG_MAP] = ValueError("a defect")
        for _ in range(600):
            known[0].informer.wake()
            await asyncio.sleep(0.1)
        assert server.lists[CONFIG_MAP] < 15

    lived(server, script)


def test_the_error_of_one_that_another_connection_has_to_mend_ends_all() -> None:
    server = Server(CONFIG_MAP, SECRET, SERVICE)
    server.said[SECRET] = Misbehaving("it lies")

    async def life() -> None:
        with pytest.raises(Misbehaving, match="it lies"):
            await follow(reflectors(server, ours=False))
        assert tasks() == 1
        assert not +server.watching

    run(life())


def test_another_client_begins_at_once() -> None:
    server, other = Server(CONFIG_MAP), Server(CONFIG_MAP, SERVICE)

    async def life() -> None:
        known = reflectors(server)
        for kube in (server, other):
            for one in known:
                one.go_on(cast("Kube", kube))
            following = asyncio.create_task(follow(known))
            await asyncio.sleep(1.0)
            following.cancel()
            await asyncio.wait({following})
        assert other.lists == {CONFIG_MAP: 1, SECRET: 1, SERVICE: 1}
        assert known[2].informer.served

    run(life())
