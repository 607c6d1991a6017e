"""An informer stays current through all that can happen to a watch, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from tempfile import NamedTemporaryFile

import pytest

from kubeloop.backoff import Backoff
from kubeloop.cache.informer import Informer
from kubeloop.cache.reflector import Reflector, WatchPace
from kubeloop.cache.turns import follow
from kubeloop.client.access import Access, read_kubeconfig
from kubeloop.client.kube import Event, Kube, connect
from kubeloop.client.limits import OF_HUB
from kubeloop.errors import Defect, Expired, Forbidden, Unauthorized
from kubeloop.objects import Key, key_of
from kubeloop.types import CONFIG_MAP, ResourceType
from localfleet.apiserver import api_server
from localfleet.faultproxy.client import FaultProxy
from localfleet.faultproxy.rules import Answer, CloseWatch, HoldEvents, InjectGone, Match, OmitEvents, Rule
from tests.support.api import Api
from tests.support.api_fixtures import ConfigMap
from tests.support.waiting import SECONDS, until

pytestmark = [pytest.mark.fleet, pytest.mark.server]

QUICK = WatchPace(silence=20.0, unserved=Backoff(first=0.05, longest=0.05), backoff=Backoff(first=0.02, longest=0.2))
WATCHES = Match(verbs=("watch",), resource="configmaps")
THING = ResourceType("example.com/v1", "Thing", "things")
THINGS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"kind": "Thing", "plural": "things"},
        "scope": "Namespaced",
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


@asynccontextmanager
async def following(
    kube: Kube,
    namespace: str,
    pace: WatchPace = QUICK,
    kind: ResourceType = CONFIG_MAP,
    *,
    bare: bool = False,
    ours: bool = False,
    on_news: Callable[[], None] = lambda: None,
) -> AsyncIterator[tuple[Reflector, Informer]]:
    loop = asyncio.get_running_loop()
    informer = Informer(kind, now=loop.time, bare=bare)
    watch = Reflector(
        kube, informer, jitter=lambda: 0.5, namespace=namespace, pace=pace, only_ours=ours, on_type_change=on_news
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(follow([watch]))
        await until(lambda: informer.synced, "the first list")
        yield watch, informer
        running.cancel()


def content(informer: Informer) -> dict[str, dict[str, str]]:
    return {manifest["metadata"]["name"]: manifest.get("data", {}) for manifest in informer}


async def test_a_collection_follows_what_happens(kube: Kube, config_map: ConfigMap, namespace: str) -> None:
    await kube.apply(config_map("early", {"a": "1"}))
    async with following(kube, namespace) as (_, informer):
        assert content(informer) == {"early": {"a": "1"}}
        made = await kube.apply(config_map("late", {"a": "1"}))
        await kube.apply(config_map("early", {"a": "2"}))
        await kube.delete(CONFIG_MAP, key_of(made), uid=made["metadata"]["uid"])

        await until(lambda: content(informer) == {"early": {"a": "2"}}, "the changes")


async def test_a_bare_collection_keeps_and_asks_for_no_content(
    kube: Kube, config_map: ConfigMap, namespace: str
) -> None:
    await kube.apply(config_map("early", {"a": "1"}))
    bare = await kube.list(CONFIG_MAP, namespace=namespace, bare=True)
    async with following(kube, namespace, bare=True) as (_, informer):
        informer.on_write(await kube.apply(config_map("ours", {"a": "1"})))
        await kube.apply(config_map("late", {"a": "1"}))
        await until(lambda: informer.count == 3, "the last one")

        assert ["data" in item for item in bare.items] == [False]
        assert content(informer) == {"early": {}, "late": {}, "ours": {}}
        assert {(one["apiVersion"], one["kind"]) for one in informer} == {("v1", "ConfigMap")}
        entry = informer.entry(Key(namespace, "late"))
        assert entry and entry.owned, "which fields are ours is metadata"


async def test_a_thousand_objects_arrive_and_change(kube: Kube, config_map: ConfigMap, namespace: str) -> None:
    for start in range(0, 1000, 50):
        await asyncio.gather(*(kube.create(config_map(f"many-{start + n:04}")) for n in range(50)))
    async with following(kube, namespace) as (_, informer):
        assert informer.count == 1000
        for start in range(0, 200, 50):
            await asyncio.gather(*(kube.apply(config_map(f"many-{start + n:04}", {"a": "1"})) for n in range(50)))

        await until(lambda: sum(bool(data) for data in content(informer).values()) == 200, "the changes")


async def test_a_watch_that_is_closed_is_resumed_without_a_list(
    kube: Kube, through: Kube, proxy: FaultProxy, config_map: ConfigMap, namespace: str
) -> None:
    async with following(through, namespace) as (watch, informer):
        rule = await proxy.add(Rule(WATCHES, CloseWatch(), times=3))
        await proxy.wait_for("three closed watches", lambda call: call.call.verb == "watch", seconds=SECONDS)
        await kube.apply(config_map("made-meanwhile"))

        await until(lambda: "made-meanwhile" in content(informer), "an object made between two watches")
        assert watch.lists == 1
        assert await proxy.fired(rule) >= 1


async def test_a_version_that_is_too_old_is_listed_anew_and_deletions_are_seen(
    kube: Kube, through: Kube, proxy: FaultProxy, config_map: ConfigMap, namespace: str
) -> None:
    made = await kube.apply(config_map("lost-from-sight"))
    async with following(through, namespace) as (watch, informer):
        await proxy.add(Rule(WATCHES, OmitEvents()))
        await kube.delete(CONFIG_MAP, key_of(made), uid=made["metadata"]["uid"])
        await kube.apply(config_map("unseen"))
        await proxy.add(Rule(WATCHES, InjectGone(), times=1))

        await until(lambda: sorted(content(informer)) == ["unseen"], "the list that tells what was missed")
        assert watch.lists == 2


async def test_a_server_that_falls_silent_is_left_and_asked_again(
    kube: Kube, through: Kube, proxy: FaultProxy, config_map: ConfigMap, namespace: str
) -> None:
    pace = WatchPace(silence=0.3, backoff=QUICK.backoff)
    async with following(through, namespace, pace) as (watch, informer):
        hold = await proxy.add(Rule(WATCHES, HoldEvents(), times=1))
        await kube.apply(config_map("held-back"))

        await until(lambda: "held-back" in content(informer), "a watch that tells what the silent one held back")
        assert await proxy.fired(hold) == 1
        assert watch.lists == 1, "how far it is tells a list of one object"


async def test_a_server_that_was_restored_from_a_backup_is_listed_anew(
    kube: Kube, through: Kube, proxy: FaultProxy, config_map: ConfigMap, namespace: str
) -> None:
    """It takes a watch from a version that it has yet to come to, and says nothing."""
    await kube.apply(config_map("there"))
    pace = WatchPace(silence=0.5, backoff=QUICK.backoff)
    async with following(through, namespace, pace) as (watch, informer):
        later = str(informer._progress + 1_000_000)
        lost = config_map("lost", uid="of-a-past-that-never-was", resourceVersion=later)
        informer.on_event(Event("ADDED", lost))
        watch._version = later
        await proxy.add(Rule(WATCHES, CloseWatch(), times=1))

        await until(lambda: sorted(content(informer)) == ["there"], "the list that tells what was lost")
        await kube.apply(config_map("made-since"))
        await until(lambda: "made-since" in content(informer), "what the watch tells")
        assert watch.lists == 2


async def test_refusals_and_faults_are_survived(
    kube: Kube, through: Kube, proxy: FaultProxy, config_map: ConfigMap, namespace: str
) -> None:
    async with following(through, namespace) as (_, informer):
        for slots, status in enumerate((500, 503, 429, 403, 410), start=1):
            await proxy.add(Rule(replace(WATCHES, nth=slots), Answer(status)))
        await proxy.add(Rule(WATCHES, CloseWatch(), times=1))
        await proxy.wait_for("the last refusal", lambda call: call.status == 410, seconds=SECONDS)
        await kube.apply(config_map("after-all-that"))

        await until(lambda: "after-all-that" in content(informer), "an object made after five refusals")


async def test_the_age_of_the_last_event_is_known(kube: Kube, config_map: ConfigMap, namespace: str) -> None:
    async with following(kube, namespace) as (_, informer):
        first = informer.last_event_at
        await kube.apply(config_map("news"))
        await until(lambda: informer.last_event_at != first, "news")

        assert first is not None
        assert informer.last_event_at is not None
        assert informer.last_event_at > first


async def test_a_type_that_the_server_lacks_is_said_to_be_so_until_it_has_it(kube: Kube, namespace: str) -> None:
    told: list[str] = []
    following_things = following(kube, namespace, kind=THING, on_news=lambda: told.append("another answer"))
    async with following_things as (_, informer):
        assert not informer.served
        assert len(told) == 1
        await kube.apply(THINGS)

        await until(lambda: informer.served, "the type to be served")
        assert len(told) == 2


async def test_what_we_may_no_longer_see_is_said_when_it_begins_and_when_it_is_over(
    through: Kube, proxy: FaultProxy, namespace: str
) -> None:
    told: list[str] = []
    async with following(through, namespace, on_news=lambda: told.append("another answer")) as (watch, _):
        refused = await proxy.add(Rule(Match(resource="configmaps"), Answer(403)))
        broken = await proxy.add(Rule(WATCHES, CloseWatch()))
        await until(lambda: isinstance(watch.failing, Forbidden), "the refusal")
        assert len(told) == 1
        for rule in (refused, broken):
            await proxy.remove(rule)

        await until(lambda: watch.failing is None, "the watch to go on")
        assert len(told) == 2


async def test_credentials_that_end_end_the_watch(through: Kube, proxy: FaultProxy, namespace: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with following(through, namespace):
            await proxy.add(Rule(WATCHES, Answer(401)))
            await proxy.add(Rule(WATCHES, CloseWatch(), times=1))
            async with asyncio.timeout(SECONDS):
                await asyncio.Event().wait()

    assert caught.group_contains(Unauthorized)


async def test_a_watch_outlives_the_compaction_of_its_version(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The real 410: etcd has forgotten where the watch was while it was away."""
    with api_server("--etcd-compaction-interval=1s", "--watch-cache=false") as server:
        async with connect(read_kubeconfig(server.kubeconfig.read_text())) as kube:
            metadata = {"name": "x", "namespace": "default"}
            await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "room"}})
            listing = await kube.list(CONFIG_MAP, namespace="room")
            made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**metadata, "namespace": "room"}}
            informer = Informer(CONFIG_MAP, now=asyncio.get_running_loop().time)
            watch = Reflector(kube, informer, jitter=lambda: 0.0, namespace="room", pace=QUICK)
            informer.on_list(listing)
            watch._version = "1"  # long compacted
            await kube.apply(made)
            async with asyncio.timeout(SECONDS):
                while not await compacted(kube, "1"):  # noqa: ASYNC110 - only asking tells
                    await asyncio.sleep(0.1)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(follow([watch]))
                await until(lambda: informer.get(Key("room", "x")) is not None, "the list after the real 410")
                running.cancel()
            assert watch.lists == 1


async def compacted(kube: Kube, version: str) -> bool:
    """Whether etcd has forgotten a version; there must be something to hear of since."""
    try:
        async for _ in kube.watch(CONFIG_MAP, version, seconds=5, namespace="room"):
            return False
    except Expired:
        return True
    return False


async def test_what_only_we_make_is_watched_from_the_first_write_on(
    kube: Kube, config_map: ConfigMap, namespace: str
) -> None:
    async with following(kube, namespace, ours=True) as (watch, informer):
        await until(lambda: watch.idle, "nothing to be watched")
        informer.expect()
        made = await kube.apply(config_map("ours"))  # and the answer is lost

        await until(lambda: "ours" in content(informer), "an object of which only the watch tells")
        await kube.delete(CONFIG_MAP, key_of(made), uid=made["metadata"]["uid"])
        await until(lambda: not content(informer), "its end")
        assert not watch.idle, "another may follow soon"


async def test_what_another_leader_has_made_is_looked_for(kube: Kube, config_map: ConfigMap, namespace: str) -> None:
    async with following(kube, namespace, ours=True) as (watch, informer):
        await until(lambda: watch.idle, "nothing to be watched")
        await kube.apply(config_map("theirs"))
        watch.invalidate()
        assert not informer.synced, "until then nobody knows"
        watch.list_unwatched()

        await until(lambda: informer.synced, "the list")
        assert "theirs" in content(informer)
        await kube.apply(config_map("more"))
        await until(lambda: "more" in content(informer), "what is there to be watched")


async def test_where_there_is_nothing_to_watch_a_list_comes_now_and_then(
    kube: Kube, config_map: ConfigMap, namespace: str
) -> None:
    pace = WatchPace(vacant=0.2, backoff=QUICK.backoff)
    async with following(kube, namespace, pace, ours=True) as (watch, informer):
        await until(lambda: watch.idle, "nothing to be watched")
        await kube.apply(config_map("by-hand"))

        await until(lambda: "by-hand" in content(informer), "the next list")
        assert watch.lists >= 2


async def test_one_object_nested_beyond_any_parser_hides_no_other(
    api: Api, access: Access, kube: Kube, namespace: str
) -> None:
    await kube.apply(DEEPS)
    await api.kubectl("wait", "--for=condition=Established", "crd", "deeps.example.com", "--timeout=60s")
    await _create(api, namespace, "before", "1")
    for depth in (300, 9900):
        await _create(api, namespace, f"deep-{depth}", '{"a":' * depth + "1" + "}" * depth)
    await _create(api, namespace, "after", "1")

    async with connect(access, limits=OF_HUB) as hub, following(hub, namespace, kind=DEEP) as (watch, informer):
        assert sorted(one["metadata"]["name"] for one in informer) == ["after", "before"]
        await _create(api, namespace, "deeper", "[" * 9900 + "]" * 9900)
        await _create(api, namespace, "last", "1")
        await until(lambda: informer.get(Key(namespace, "last")) is not None, "what came after the deepest")

        for name in ("deep-300", "deep-9900", "deeper"):
            trouble = informer.error_of(Key(namespace, name))
            assert trouble is not None
            assert "nested too deep" in trouble.reason
        assert (watch.lists, watch.failing) == (1, None)


async def test_a_watch_that_falls_by_what_it_is_told_is_known_to_fail(
    kube: Kube, config_map: ConfigMap, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(kube, namespace) as (watch, informer):
        assert watch.seconds_failing(informer.now()) == 0.0

        def fails(_: Event) -> None:
            raise KeyError("whatever")

        monkeypatch.setattr(type(informer), "on_event", lambda _, event: fails(event))
        for number in range(3):
            lists = watch.lists
            await kube.apply(config_map(f"news-{number}"))
            await until(lambda: isinstance(watch.failing, Defect), "the watch to fail")
            await until(lambda: watch.lists > lists and watch.failing is None, "it to begin again")  # noqa: B023
        assert watch.seconds_failing(informer.now()) > 0.0, "it only falls again and again"

        monkeypatch.undo()
        later = informer.now() + 3600.0
        await kube.apply(config_map("more"))
        await until(lambda: watch.failing is None and watch.seconds_failing(later) == 0.0, "it to work again")


DEEP = ResourceType("example.com/v1", "Deep", "deeps")
DEEPS = {
    **THINGS,
    "metadata": {"name": "deeps.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"kind": "Deep", "plural": "deeps"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


async def _create(api: Api, namespace: str, name: str, value: str) -> None:
    """Store an object that no JSON library here could write."""
    metadata = f'{{"name": "{name}", "namespace": "{namespace}"}}'
    text = f'{{"apiVersion": "example.com/v1", "kind": "Deep", "metadata": {metadata}, "spec": {value}}}'
    with NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        path = f"/apis/example.com/v1/namespaces/{namespace}/deeps"
        await api.kubectl("create", "--raw", path, "-f", file.name)
