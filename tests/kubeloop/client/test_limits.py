"""What an API server may say has bounds, and one that goes beyond them is left alone; others are heard meanwhile."""

from __future__ import annotations

import asyncio
import base64
import gzip
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from kubeloop.cache.informer import Informer
from kubeloop.cache.reflector import Reflector
from kubeloop.cache.turns import follow
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube, connect
from kubeloop.client.limits import KIB, MIB, Bucket, ServerLimits, Share
from kubeloop.errors import ApiError, Expired, Misbehaving, ServerFault, Unreachable
from kubeloop.helm.driver import Helm
from kubeloop.helm.records import content, revisions
from kubeloop.objects import Key
from kubeloop.types import CONFIG_MAP, ResourceType
from localfleet import binaries
from localfleet.faultproxy.floods import FLOODS
from modelplane_operator.api.labels import FIELD_MANAGER
from tests.support.api_fixtures import Flooding

SMALL = ServerLimits(answer=MIB, page=MIB, listing=4 * MIB, objects=5000, at_once=100)
TIME = "2026-01-01T00:00:00Z"
ROOM = 100 * MIB
"""What the process may grow by while it is flooded: two small answers, or what a few of JSON's values take."""


Ask = Callable[[Kube], Awaitable[Any]]


async def get(kube: Kube) -> Any:
    return await kube.get(CONFIG_MAP, Key("team", "a"))


async def list_all(kube: Kube) -> Any:
    return await kube.list(CONFIG_MAP)


async def watch(kube: Kube) -> Any:
    async with aclosing(kube.watch(CONFIG_MAP, "1", seconds=60, silence=1.0)) as events:
        return [event async for event in events]


ALLOWED = "than the 1 MiB that are allowed"
CASES: list[tuple[str, Ask, type[ApiError], str]] = [
    *((kind, get, Misbehaving, ALLOWED) for kind in ("inflated", "endless")),
    *((kind, list_all, Misbehaving, ALLOWED) for kind in ("inflated", "endless")),
    *((kind, watch, Misbehaving, ALLOWED) for kind in ("inflated", "endless")),
    *(("headers", ask, Misbehaving, "headers are too long") for ask in (get, list_all, watch)),
    *(("refusal", ask, ServerFault, "xxxxx") for ask in (get, list_all, watch)),
    *(("no object", ask, Misbehaving, "the answer is no object") for ask in (get, list_all, watch)),
    *(("nested", ask, Misbehaving, "nested deeper than the 1024") for ask in (get, list_all, watch)),
    ("drip", watch, Unreachable, "silent for 1 s"),
    ("values", get, Misbehaving, "values, and 131072 are allowed"),
    ("values", list_all, Misbehaving, "values, and 131072 are allowed"),
    ("values", watch, Misbehaving, "values, and 131072 are allowed"),
    ("pages", list_all, Misbehaving, "more than 20 pages for 0 objects"),
    ("circle", list_all, Misbehaving, "the list goes on where it has been before"),
    ("crowd", list_all, Misbehaving, "more than the"),
    ("no items", list_all, Misbehaving, "one of the items is no object"),
    ("no items", watch, Misbehaving, "the object of an event is no object"),
    ("no metadata", list_all, Misbehaving, "the metadata of an item is no object"),
    ("no metadata", watch, Misbehaving, "the metadata is no object"),
    ("no type", watch, Misbehaving, "an event is of no known type"),
    ("error", watch, ServerFault, "watch configmaps: no"),
]


@pytest.mark.parametrize(
    ("kind", "ask", "error", "words"), CASES, ids=[f"{kind}, {ask.__name__}" for kind, ask, _, _ in CASES]
)
async def test_an_answer_beyond_the_limits_is_an_error_and_no_memory(
    flooding: tuple[Access, Flooding], kind: str, ask: Ask, error: type[ApiError], words: str
) -> None:
    access, server = flooding
    server.kind = kind
    async with connect(access, limits=SMALL) as kube:
        with peak() as grown, pytest.raises(error, match=words):
            await ask(kube)
        if error is Misbehaving:
            with pytest.raises(Misbehaving):
                await kube.misbehaves()
    assert grown() < ROOM


@contextmanager
def peak() -> Generator[Callable[[], int]]:
    """How many bytes more than before this process has had in memory at any moment since."""

    def now(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = now("VmRSS")
    yield lambda: now("VmHWM") - before


def test_every_flood_is_tried() -> None:
    of_a_rate = {"flipping", "births"}
    assert {kind for kind, *_ in CASES} == FLOODS.keys() - of_a_rate


@pytest.mark.parametrize(("kind", "begins_at"), [("crowd", ""), ("births", "1")], ids=["a list", "a watch"])
async def test_no_more_is_kept_of_a_server_than_may_be(
    flooding: tuple[Access, Flooding], kind: str, begins_at: str
) -> None:
    access, server = flooding
    server.kind = kind
    informer = Informer(CONFIG_MAP, asyncio.get_running_loop().time)
    async with connect(access, limits=replace(ServerLimits(), cached=MIB)) as kube:
        following = Reflector(kube, informer, lambda: 0.5)
        following._version = begins_at
        following.cached_bytes = lambda: max(informer.size, following.reading)
        with pytest.raises(Misbehaving, match="its objects take more than the 1 MiB that are allowed"):
            await follow([following])
    assert informer.size < 2 * MIB


def of_our_fields(request: web.Request) -> web.Response:
    """Pages of objects that hardly say anything but which fields of theirs are ours, each of them others."""
    number = int(request.query.get("continue", "0"))
    fields = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {f"f:{number}{'x' * 60 * KIB}": {}}}
    metadata = {"name": f"m-{number}", "namespace": "team", "uid": f"u-{number}", "resourceVersion": "1"}
    item = {"metadata": {**metadata, "managedFields": [fields]}}
    return web.json_response({"metadata": {"resourceVersion": "1", "continue": str(number + 1)}, "items": [item]})


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "whole"])
async def test_what_a_server_says_of_our_fields_is_kept_within_the_limits(*, bare: bool) -> None:
    informer = Informer(CONFIG_MAP, asyncio.get_running_loop().time, bare=bare)
    async with serving(of_our_fields) as access, connect(access, limits=replace(ServerLimits(), cached=MIB)) as kube:
        following = Reflector(kube, informer, lambda: 0.5)
        following.cached_bytes = lambda: max(informer.size, following.reading)
        with pytest.raises(Misbehaving, match="its objects take more than the 1 MiB that are allowed"):
            await following._list()


async def test_an_error_that_is_kept_keeps_nothing_of_what_was_read(flooding: tuple[Access, Flooding]) -> None:
    access, server = flooding
    server.kind = "error"
    informer = Informer(CONFIG_MAP, asyncio.get_running_loop().time)
    async with connect(access) as kube:
        following = Reflector(kube, informer, lambda: 0.5)
        following._version = "1"
        await following.turn()
        error = following.failing
        assert isinstance(error, ServerFault)
        assert (error.__traceback__, error.__cause__, error.__context__, error.details) == (None,) * 4


@asynccontextmanager
async def serving(answer: Callable[[web.Request], web.Response]) -> AsyncIterator[Access]:
    """A server that has one list."""

    async def answered(request: web.Request) -> web.Response:
        return answer(request)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answered)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Access(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


LARGE = 20


def of_large_objects(request: web.Request) -> web.Response:
    """Far more than a list may keep, an object to a page."""
    number = int(request.query.get("continue", "0"))
    metadata = {"name": f"m-{number}", "namespace": "team", "uid": f"u-{number}", "resourceVersion": "1"}
    more = {"continue": str(number + 1)} if number + 1 < LARGE else {}
    item = {"metadata": metadata, "data": {"arguments": "x" * (900 * KIB)}}
    return web.json_response({"metadata": {"resourceVersion": "1", **more}, "items": [item]})


async def test_what_is_kept_of_a_list_counts_and_not_what_is_cut_off() -> None:
    def cut(manifest: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": manifest["metadata"]}

    limits = replace(SMALL, listing=2 * MIB)
    async with serving(of_large_objects) as access, connect(access, limits=limits) as kube:
        informer = Informer(CONFIG_MAP, asyncio.get_running_loop().time, keeping=cut)
        await Reflector(kube, informer, lambda: 0.5)._list()
        assert informer.count == LARGE
        with pytest.raises(Misbehaving, match="the list has more than the 2 MiB that are allowed"):
            await kube.list(CONFIG_MAP)
    tight = replace(SMALL, listing=MIB)
    async with serving(of_large_objects) as access, connect(access, limits=tight) as kube:
        informer = Informer(CONFIG_MAP, asyncio.get_running_loop().time, keeping=cut)
        with pytest.raises(Misbehaving, match="the list has more than the 16 MiB that are allowed"):
            await Reflector(kube, informer, lambda: 0.5)._list()


async def test_an_event_whose_metadata_are_a_text_misbehaves_in_a_namespace_too() -> None:
    def answer(_: web.Request) -> web.Response:
        return web.Response(text='{"type": "ADDED", "object": {"metadata": "text"}}\n')

    async with serving(answer) as access, connect(access, limits=SMALL) as kube:
        with pytest.raises(Misbehaving, match="the metadata is no object"):
            async with aclosing(kube.watch(CONFIG_MAP, "1", seconds=60, namespace="team")) as events:
                await anext(events)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_no_server_leads_a_request_elsewhere(status: int) -> None:
    asked: list[str] = []

    def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"kind": "ConfigMap"})

    async with serving(elsewhere) as other:
        moved = {"Location": f"{other.server}/latest/meta-data"}
        async with serving(lambda _: web.Response(status=status, headers=moved)) as access, connect(access) as kube:
            with pytest.raises(ApiError):
                await get(kube)

    assert asked == []


async def test_who_cannot_answer_without_pages_is_not_blamed_for_it() -> None:
    """All at once is what is asked for when pages have passed twice."""

    def answer(request: web.Request) -> web.Response:
        if "limit" in request.query:
            return web.json_response({"kind": "Status", "code": 410, "message": "too old"}, status=410)
        return web.Response(body=b"[" + b" " * 2 * MIB, content_type="application/json")

    async with serving(answer) as access, connect(access, limits=SMALL) as kube:
        with pytest.raises(Expired, match="without pages it is too long"):
            await kube.list(CONFIG_MAP)
        assert not kube._wire.offence.done()


# Helm -----------------------------------------------------------------------------------------------------------------


def record(*inflated: tuple[bytes, int]) -> dict[str, Any]:
    """A Secret that says to be one of Helm's, of texts that are repeated so often: made piece by piece."""
    packed = BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as file:
        for piece, times in inflated:
            for _ in range(times):
                file.write(piece)
    payload = base64.b64encode(base64.b64encode(packed.getvalue())).decode()
    return {"metadata": {"namespace": "team", "name": "bomb"}, "data": {"release": payload}}


@pytest.mark.parametrize(
    ("inflated", "error", "words"),
    [
        (
            [(b'"', 1), (b" " * MIB, 800)],
            Misbehaving,
            "Secret team/bomb inflates to more than the 16 MiB that are allowed",
        ),
        ([(b'{"config": [{}', 1), (b",{}" * 1024, 5 * 1024), (b"]}", 1)], Misbehaving, "values, and 2097152 are"),
        ([(b"[" * MIB, 1)], ServerFault, "is not a record of Helm's"),
        ([(b"[]", 1)], ServerFault, "is not a record of Helm's"),
        ([], ServerFault, "is not a record of Helm's"),
    ],
    ids=["inflated", "values", "nested", "no object", "empty"],
)
def test_a_record_of_helms_that_is_a_bomb_does_not_go_off(
    inflated: list[tuple[bytes, int]], error: type[ApiError], words: str
) -> None:
    secret = record(*inflated)
    with peak() as grown, pytest.raises(error, match=words):
        content(secret)
    assert grown() < ROOM


def test_a_record_of_helms_says_nothing_where_it_has_no_text() -> None:
    deep = b"[" * 1000 + b"]" * 1000
    said = b'{"chart":{"metadata":{"name":%s,"version":%s}},"info":{"description":%s}}' % (deep, deep, deep)
    found = content(record((said, 1)))
    assert (found.chart, found.version, found.description) == ("", "", "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"labels": {"version": "²"}},
        {"labels": {"version": "1" * 60}},
        {"creationTimestamp": "now"},
        {"creationTimestamp": None},
    ],
    ids=str,
)
def test_what_helm_does_not_write_is_no_revision(wrong: dict[str, Any]) -> None:
    metadata = {"namespace": "team", "name": "a", "uid": "u", "resourceVersion": "1", "creationTimestamp": TIME}
    known = {"owner": "helm", "name": "a", "version": "1", "modifiedAt": "9" * 60}
    secret = {"metadata": {**metadata, **wrong, "labels": {**known, **wrong.get("labels", {})}}}

    assert revisions([secret]) == {}
    assert len(revisions([{"metadata": {**metadata, "labels": known}}])) == 1


class Hostile(NamedTuple):
    """A cluster, as Helm needs it."""

    name: str
    kube: Kube

    def find(self, _: ResourceType) -> None: ...


@pytest.mark.fleet
async def test_a_helm_that_is_flooded_ends_alone(flooding: tuple[Access, Flooding], tmp_path: Path) -> None:
    access, server = flooding
    server.kind = "inflated"
    environment = {"PATH": os.environ["PATH"]}
    executable = str(binaries.ensure("helm")["helm"])
    helm = Helm(
        lambda: datetime.now(UTC), executable, timeout=60.0, memory=192 * MIB, environment=environment, folder=tmp_path
    )
    async with connect(access) as kube:
        with peak() as grown:
            helm.uninstall(Hostile("hostile", kube), Key("team", "a"))
            await helm.close(120.0)
    (run,) = helm.runs("hostile").values()
    assert "helm took more than the 192 MiB of memory that it may" in run.error
    assert grown() < ROOM


# A share of the loop --------------------------------------------------------------------------------------------------


@dataclass
class Clock:
    """Time that passes while somebody sleeps."""

    time: float = 0.0

    def __call__(self) -> float:
        return self.time


async def test_a_burst_is_looked_at_at_once_and_what_follows_at_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    share = Share(clock, Bucket(rate=100, burst=1000))

    async def sleep(seconds: float) -> None:
        clock.time += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(1000):
        await share.take(0)
    assert clock.time == 0.0
    for _ in range(500):
        await share.take(0)
    assert clock.time == pytest.approx(5.0)
    clock.time += 10.0
    for _ in range(1000):
        await share.take(0)
    assert clock.time == pytest.approx(15.0), "a burst is allowed again after a rest"
    await share.take(100 * 32 * 1024)
    assert clock.time == pytest.approx(16.01), "large events count as several"


async def test_an_endless_watch_goes_on_no_faster_than_its_share(flooding: tuple[Access, Flooding]) -> None:
    access, server = flooding
    server.kind = "flipping"
    loop, turns, seen = asyncio.get_running_loop(), 0, 0
    share = Share(loop.time, Bucket(rate=1000, burst=1000))

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with connect(access, share=share) as kube, asyncio.TaskGroup() as group:
        began, waiting = loop.time(), group.create_task(others())
        async with aclosing(kube.watch(CONFIG_MAP, "1", seconds=60)) as events:
            async for _ in events:
                seen += 1
                if seen == 2000:
                    break
        assert loop.time() - began > 0.9, "beyond the burst it waits"
        assert turns > 2000 / 16, "others have their turns in a burst, too"
        waiting.cancel()
