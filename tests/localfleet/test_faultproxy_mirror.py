"""The fleet's own list-and-watch, held to its promise by breaking its connection in every way the proxy knows."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from localfleet.apiserver import ApiServer
from localfleet.faultproxy.client import FaultProxy, start
from localfleet.faultproxy.rules import Action, Answer, CloseWatch, Drop, InjectGone, Match, Reset, Rule, Truncate
from localfleet.kubeclient import Key, KubeClient, Mirror, connect
from tests.localfleet.engine_support import eventually
from tests.support.api import Api

pytestmark = pytest.mark.fleet

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def server(api: Api) -> ApiServer:
    return api.server


@asynccontextmanager
async def mirrored(server: ApiServer, folder: Path) -> AsyncGenerator[tuple[FaultProxy, KubeClient, Mirror, list[Key]]]:
    """A mirror behind a proxy, a client beside it, and what the mirror has told of."""
    told: list[Key] = []
    async with (
        start(server.kubeconfig, folder) as proxy,
        connect(proxy.kubeconfig) as through,
        connect(server.kubeconfig) as beside,
    ):
        mirror = Mirror(through, MAPS, changed=told.append)
        running = asyncio.ensure_future(mirror.run())
        try:
            await mirror.synced.wait()
            yield proxy, beside, mirror, told
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await beside.request("DELETE", MAPS)


async def make(client: KubeClient, name: str) -> None:
    await client.request("POST", MAPS, {"metadata": {"name": name}})


async def until(mirror: Mirror, *names: str) -> None:
    async def same() -> bool:
        return {name for _, name in mirror.objects} == set(names)

    await eventually(f"the mirror to hold {names}", same)


WATCHES, LISTS = Match(verbs=("watch",)), Match(verbs=("list",))


@pytest.mark.parametrize(
    ("match", "action"),
    [
        (WATCHES, CloseWatch()),
        (WATCHES, InjectGone()),
        (LISTS, Drop()),
        (LISTS, Truncate(30)),
        (WATCHES, Reset()),
        (WATCHES, Answer(429, retry_after=1)),
        (WATCHES, Answer(410)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, Match) else value.verbs[0],
)
async def test_a_mirror_ends_up_right_whatever_breaks(
    server: ApiServer, tmp_path: Path, match: Match, action: Action
) -> None:
    async with mirrored(server, tmp_path) as (proxy, beside, mirror, told):
        await make(beside, "kept")
        await make(beside, "lost")
        await until(mirror, "kept", "lost")
        rule = await proxy.add(Rule(match, action, times=3))
        await proxy.add(Rule(WATCHES, InjectGone(), times=1))  # so that it lists and watches anew, into the rule

        async def over() -> bool:
            return await proxy.fired(rule) == 3

        await beside.request("DELETE", f"{MAPS}/lost")
        await make(beside, "new")
        await until(mirror, "kept", "new")
        await eventually("the faults to be over", over)

        await make(beside, "last")
        await until(mirror, "kept", "new", "last")
        assert {name for _, name in told} == {"kept", "lost", "new", "last"}


async def test_what_a_write_got_back_is_not_put_over_what_the_watch_knows(server: ApiServer, tmp_path: Path) -> None:
    async with mirrored(server, tmp_path) as (_, beside, mirror, _):
        old = await beside.request("POST", MAPS, {"metadata": {"name": "a"}})
        await beside.request("DELETE", f"{MAPS}/a")
        await make(beside, "b")
        await until(mirror, "b")

        mirror.note(old)

        assert {name for _, name in mirror.objects} == {"b"}
