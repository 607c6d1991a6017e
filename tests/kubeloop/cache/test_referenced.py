"""Users' Secrets are read by name, and no more often than they have to be, on a real API server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from kubeloop.cache import referenced as secrets
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube, connect
from kubeloop.client.wire import Call
from kubeloop.errors import ClientError, Unreachable
from kubeloop.objects import Key, key_of
from kubeloop.types import CONFIG_MAP
from tests.support.api_fixtures import ConfigMap

pytestmark = pytest.mark.fleet


@dataclass
class Clock:
    """Time that passes when a test says so."""

    time: float = 0.0

    def __call__(self) -> float:
        return self.time


@dataclass
class Reader:
    referenced: ReferencedObjects
    clock: Clock
    calls: list[Call] = field(default_factory=list)

    async def value(self, key: Key) -> str | None:
        found = await self.referenced.find(CONFIG_MAP, key)
        return found["data"]["value"] if found else None


@pytest.fixture
async def reader(access: Access):
    calls: list[Call] = []
    clock = Clock()
    async with connect(access, on_call=calls.append) as kube:
        yield Reader(ReferencedObjects(lambda: kube, clock, 60.0), clock, calls)


async def test_a_change_is_noticed_within_the_lifetime_and_not_asked_for_before(
    reader: Reader, kube: Kube, config_map: ConfigMap
) -> None:
    key = key_of(await kube.apply(config_map("original", {"value": "1"})))

    assert await reader.value(key) == "1"
    await kube.apply(config_map("original", {"value": "2"}))
    reader.clock.time = 29.0
    assert await reader.value(key) == "1"
    assert len(reader.calls) == 1

    reader.clock.time += reader.referenced.recheck  # as whoever looks again after that time
    assert reader.clock.time < 60.0
    assert await reader.value(key) == "2"
    assert len(reader.calls) == 2


async def test_what_is_missing_is_remembered_as_long(reader: Reader, kube: Kube, config_map: ConfigMap) -> None:
    key = key_of(config_map("original"))

    assert await reader.value(key) is None
    await kube.apply(config_map("original", {"value": "1"}))
    assert await reader.value(key) is None
    reader.clock.time = 30.0
    assert await reader.value(key) == "1"


async def test_what_is_missing_is_looked_for_every_few_seconds_and_whoever_waits_for_it_is_woken(
    kube: Kube, config_map: ConfigMap, namespace: str
) -> None:
    clock, woken = Clock(), list[Key]()
    referenced = ReferencedObjects(lambda: kube, clock, 60.0, lambda _, key: woken.append(key))
    key, one, other = key_of(config_map("original")), Key(namespace, "one"), Key(namespace, "other")
    both = frozenset({"value", "more"})
    for waiting, needed in ((one, frozenset({"value"})), (other, both)):
        assert await referenced.find(CONFIG_MAP, key, both, waiting=(CONFIG_MAP, waiting), needed=needed) is None

    await kube.apply(config_map("original", {"value": "1"}))
    clock.time = 4.0
    await referenced.refresh_missing()
    assert woken == [], "it was looked for just now"
    clock.time = 5.0
    await referenced.refresh_missing()
    assert woken == [one]
    assert (await referenced.find(CONFIG_MAP, key, both) or {})["data"] == {"value": "1"}

    await kube.apply(config_map("original", {"value": "1", "more": "2"}))
    clock.time = 10.0
    await referenced.refresh_missing()
    assert woken == [one, other]
    clock.time = 15.0
    await referenced.refresh_missing()
    assert not referenced._missing, "nobody waits for anything"


async def test_a_followed_object_that_changes_or_goes_wakes_its_users_at_the_price_of_its_metadata(
    kube: Kube, config_map: ConfigMap, namespace: str
) -> None:
    clock, woken = Clock(), list[Key]()
    referenced = ReferencedObjects(lambda: kube, clock, 60.0, lambda _, key: woken.append(key))
    made, user = await kube.apply(config_map("original", {"value": "1"})), Key(namespace, "user")
    key = key_of(made)

    async def value() -> str | None:
        found = await referenced.find(CONFIG_MAP, key, waiting=(CONFIG_MAP, user), follow=True)
        return found["data"]["value"] if found else None

    assert await value() == "1"
    clock.time = 5.0
    await referenced.refresh_followed()
    assert woken == [], "it is as it was"
    await kube.apply(config_map("original", {"value": "2"}))
    clock.time = 9.0
    await referenced.refresh_followed()
    assert woken == [], "it was looked at just now"
    clock.time = 10.0
    await referenced.refresh_followed()
    assert (woken, await value()) == ([user], "2")
    await kube.delete(CONFIG_MAP, key, uid=made["metadata"]["uid"])
    clock.time = 15.0
    await referenced.refresh_followed()
    assert (woken, await value()) == ([user, user], None)
    clock.time = 20.0
    await referenced.refresh_followed()
    assert woken == [user, user], "and that is known"
    clock.time = 20.0 + secrets.WAITED_FOR
    await referenced.refresh_followed()
    assert not referenced._followed, "nobody asks for it any more"


async def test_whoever_lacks_much_holds_up_no_other_and_is_not_waited_for_longer_than_it_asks(
    kube: Kube, config_map: ConfigMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "IN_A_ROUND", 2)
    clock, calls = Clock(), list[Key]()
    referenced = ReferencedObjects(lambda: kube, clock, 60.0, lambda _, key: calls.append(key))
    theirs = key_of(await kube.apply(config_map("theirs", {"value": "1"})))
    for number in range(10):
        greedy = Key("greedy", str(number))
        assert await referenced.find(CONFIG_MAP, greedy, waiting=(CONFIG_MAP, greedy)) is None
    await referenced.find(CONFIG_MAP, theirs, waiting=(CONFIG_MAP, theirs), needed=frozenset({"value", "more"}))
    await kube.apply(config_map("theirs", {"value": "1", "more": "2"}))

    clock.time = 5.0
    await referenced.refresh_missing()
    assert calls == [theirs]
    clock.time = 5.0 + secrets.WAITED_FOR
    await referenced.refresh_missing()
    assert not referenced._missing


async def test_many_who_ask_at_once_are_one_question(reader: Reader, kube: Kube, config_map: ConfigMap) -> None:
    key = key_of(await kube.apply(config_map("original", {"value": "1"})))

    assert await asyncio.gather(*(reader.value(key) for _ in range(20))) == ["1"] * 20
    assert len(reader.calls) == 1


async def test_no_answer_is_not_taken_for_an_answer(kube: Kube, config_map: ConfigMap) -> None:
    """A Secret that cannot be read just now is not one that is gone."""
    key = key_of(await kube.apply(config_map("original", {"value": "1"})))
    away = True

    def hub() -> Kube:
        if away:
            raise Unreachable("the hub does not answer")
        return kube

    referenced = ReferencedObjects(hub, Clock(), 60.0)
    with pytest.raises(ClientError, match="does not answer"):
        await referenced.find(CONFIG_MAP, key)
    away = False
    assert await referenced.find(CONFIG_MAP, key) is not None


async def test_what_nobody_asks_for_is_not_kept(reader: Reader, kube: Kube, config_map: ConfigMap) -> None:
    for number in range(10):
        reader.clock.time = number * 100.0
        await reader.value(key_of(config_map(f"original-{number}")))

    assert len(reader.referenced._cached) == 1
    assert len(reader.referenced._asking) == 1


async def test_no_more_is_kept_than_was_asked_for_nor_more_than_there_is_room(
    reader: Reader, kube: Kube, config_map: ConfigMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "MOST", 3000)
    maps = [config_map(f"original-{number}", {"value": "x" * 1000, "other": "y" * 10}) for number in range(5)]
    keys = [key_of(await kube.apply(one)) for one in maps]

    found = await reader.referenced.find(CONFIG_MAP, keys[0], frozenset({"other"}))
    assert found is not None
    assert (found["data"], sorted(found["metadata"])) == ({"other": "y" * 10}, ["name", "namespace", "uid"])
    for number, key in enumerate(keys):
        reader.clock.time = number / 10
        assert await reader.value(key) == "x" * 1000
    assert sum(one.size for one in reader.referenced._cached.values()) <= 3000
