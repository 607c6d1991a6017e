"""A collection converges to the newest state of every object, in whatever order it hears of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from modelplane_operator.api import labels
from modelplane_operator.api.base import Key
from modelplane_operator.clients.collection import (
    REMEMBER_SECONDS,
    SIZE_OF_A_GRAVE,
    Collection,
    Entry,
    _sharing,
    by_label,
)
from modelplane_operator.clients.kube import Event, Listing
from modelplane_operator.clients.resources import CONFIG_MAP

Manifest = dict[str, Any]
KEY = Key("team", "a")


def thing(version: int, *, name: str = "a", uid: str = "u1", **labelled: str) -> Manifest:
    metadata = {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(version), "labels": labelled}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def listing(collection: Collection, items: Sequence[Manifest], version: str) -> Listing[Entry | Key | None]:
    return Listing([*map(collection.reader(), items)], version)


@pytest.fixture
def collection() -> Collection:
    return Collection(CONFIG_MAP, now=lambda: 0.0)


def version_of(collection: Collection, key: Key = KEY) -> int | None:
    entry = collection.entry(key)
    return entry and entry.version


def nested(depth: int, **of: Any) -> Manifest:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return {**thing(**of), "spec": value, "status": {"said": "before"}}


def test_an_object_that_cannot_be_read_is_its_own_trouble(collection: Collection) -> None:
    said: list[Key] = []
    collection.on_trouble(said.append)
    collection.listed(listing(collection, [thing(2, name="b"), thing(3, name="c"), thing(4)], "4"))
    collection.listed(listing(collection, [nested(300, version=5), thing(2, name="b")], "6"))

    assert sorted(manifest["metadata"]["name"] for manifest in collection) == ["a", "b"], "and that c is gone is seen"
    assert version_of(collection) == 4, "what was read of it stands"
    trouble, latest = collection.trouble(KEY), collection.latest(KEY)
    assert trouble is not None
    assert latest is not None
    assert trouble.why == "the object cannot be read: it is nested too deep; make it flatter"
    assert (latest["metadata"]["resourceVersion"], latest["status"]) == ("5", {"said": "before"})
    assert collection.failures == {"read": 1}

    collection.seen(Event("MODIFIED", thing(7)))
    assert (version_of(collection), collection.trouble(KEY)) == (7, None)
    assert said == [KEY, KEY], "told when it begins and when it is over"


@pytest.mark.parametrize("how", ["event", "list"])
def test_an_object_that_could_never_be_read_is_forgotten_when_it_goes(collection: Collection, how: str) -> None:
    collection.listed(listing(collection, [nested(300, version=5)], "5"))
    assert collection.get(KEY) is None
    assert collection.trouble(KEY)

    collection.seen(Event("DELETED", nested(300, version=6))) if how == "event" else collection.listed(
        listing(collection, [], "6")
    )
    assert collection.trouble(KEY) is None


def test_what_an_index_or_a_listener_fails_on_is_that_objects_trouble() -> None:
    told: list[Key] = []

    def failing(key: Key, _: Manifest | None, new: Manifest | None) -> None:
        if new and "bad" in new["metadata"]["labels"]:
            raise KeyError("canary-4711")

    def index(manifest: Manifest) -> list[str]:
        return [manifest["metadata"]["labels"]["good"]]

    collection = Collection(CONFIG_MAP, now=lambda: 0.0, indexes={"good": index})
    collection.subscribe(failing)
    collection.subscribe(lambda key, _, __: told.append(key))
    items = [thing(1, name="x"), thing(2, bad="1", good="a"), thing(3, name="z", good="a")]
    collection.listed(listing(collection, items, "3"))

    assert [one["metadata"]["name"] for one in collection.by("good", "a")] == ["a", "z"]
    assert [key.name for key in told] == ["x", "a", "z"]
    why = {key.name: trouble.why for key in told if (trouble := collection.trouble(key))}
    assert why == {"x": "internal error (index good: KeyError)", "a": "internal error (its change: KeyError)"}
    assert collection.failures == {"index": 1, "listener": 1}
    assert collection.latest(KEY) == collection.get(KEY)

    collection.seen(Event("MODIFIED", thing(4, good="b")))
    assert collection.trouble(KEY) is None
    assert [one["metadata"]["name"] for one in collection.by("good", "a")] == ["z"]


def test_a_late_event_does_not_undo_our_own_write(collection: Collection) -> None:
    collection.written(thing(7))
    collection.seen(Event("MODIFIED", thing(5)))

    assert version_of(collection) == 7


def test_what_we_deleted_stays_away_whatever_comes_late(collection: Collection) -> None:
    collection.seen(Event("ADDED", thing(5)))
    collection.gone(KEY, "u1")
    collection.seen(Event("MODIFIED", thing(6)))
    collection.written(thing(7))

    assert version_of(collection) is None


def test_an_object_made_anew_under_the_name_of_a_deleted_one_appears(collection: Collection) -> None:
    collection.seen(Event("ADDED", thing(5)))
    collection.gone(KEY, "u1")
    collection.written(thing(9, uid="u2"))
    collection.seen(Event("DELETED", thing(8)))

    assert version_of(collection) == 9


def test_an_object_that_left_the_selection_may_return(collection: Collection) -> None:
    collection.seen(Event("ADDED", thing(5)))
    collection.seen(Event("DELETED", thing(6)))
    collection.written(thing(7))

    assert version_of(collection) == 7


def test_a_list_takes_away_what_it_lacks_but_not_what_was_written_since(collection: Collection) -> None:
    collection.listed(listing(collection, [thing(5), thing(4, name="b")], "6"))
    collection.written(thing(9, name="c"))
    collection.listed(listing(collection, [thing(5)], "8"))

    assert sorted(manifest["metadata"]["name"] for manifest in collection) == ["a", "c"]


def test_a_list_with_an_object_that_cannot_be_read_takes_nothing_away(collection: Collection) -> None:
    collection.listed(listing(collection, [thing(5), thing(4, name="b")], "6"))
    collection.listed(listing(collection, [thing(5), {"metadata": {"name": "b"}}], "8"))

    assert sorted(manifest["metadata"]["name"] for manifest in collection) == ["a", "b"]


def test_a_server_that_was_restored_from_a_backup_is_believed(collection: Collection) -> None:
    collection.listed(listing(collection, [thing(50), thing(40, name="b")], "60"))
    collection.listed(listing(collection, [thing(5)], "6"))
    collection.seen(Event("MODIFIED", thing(7)))

    assert collection.keys() == (KEY,)
    assert version_of(collection) == 7


def test_the_first_list_after_distrust_replaces_everything(collection: Collection) -> None:
    collection.listed(listing(collection, [thing(50), thing(40, name="b")], "60"))
    collection.distrust()
    assert not collection.synced
    collection.listed(listing(collection, [thing(5, uid="other")], "700"))

    assert collection.keys() == (KEY,)
    assert version_of(collection) == 5


def test_managed_fields_are_not_kept_but_what_they_say_of_ours_is(collection: Collection) -> None:
    ours = {"manager": labels.FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:data": {"f:a": {}}}}
    theirs = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:data": {"f:b": {}}}}
    given = thing(5)
    given["metadata"]["managedFields"] = [theirs, ours]
    collection.written(given)

    entry = collection.entry(KEY)
    assert entry is not None
    assert "managedFields" not in entry.manifest["metadata"]
    assert entry.owned == '{"f:data":{"f:a":{}}}'
    assert "managedFields" in given["metadata"], "what came in is not changed"


def test_objects_are_found_by_owner_and_by_label() -> None:
    collection = Collection(CONFIG_MAP, now=lambda: 0.0, indexes={"colour": by_label("colour")})
    owner = {labels.OWNER_UID: "o1"}
    collection.written(thing(1, name="b", uid="b", colour="red", **owner))
    collection.written(thing(2, name="a", uid="a", colour="red"))
    collection.written(thing(3, name="b", uid="b", colour="blue", **owner))

    assert [found["metadata"]["name"] for found in collection.by("colour", "red")] == ["a"]
    assert [found["metadata"]["name"] for found in collection.owned_by("o1")] == ["b"]
    collection.gone(Key("team", "b"), "b")
    assert list(collection.owned_by("o1")) == []


def test_what_lacks_the_label_that_is_watched_for_is_not_taken_in() -> None:
    collection = Collection(CONFIG_MAP, now=lambda: 0.0, selecting="ours")
    collection.written(thing(1, ours="yes"))
    collection.written(thing(2))  # our write took the label off; the watch tells of that as a deletion
    collection.seen(Event("DELETED", thing(2)))

    assert collection.count == 0


def test_listeners_hear_of_changes_and_of_nothing_else(collection: Collection) -> None:
    heard: list[tuple[str, int | None, int | None]] = []

    def version(manifest: Manifest | None) -> int | None:
        return manifest and int(manifest["metadata"]["resourceVersion"])

    collection.subscribe(lambda key, old, new: heard.append((key.name, version(old), version(new))))
    collection.written(thing(1))
    collection.seen(Event("ADDED", thing(1)))
    collection.seen(Event("MODIFIED", thing(2)))
    collection.listed(listing(collection, [thing(2)], "3"))
    collection.seen(Event("DELETED", thing(4)))

    assert heard == [("a", None, 1), ("a", 1, 2), ("a", 2, None)]


def test_the_size_is_that_of_what_is_kept(collection: Collection) -> None:
    kept = [thing(1), thing(2, name="b", uid="u2", colour="x" * 100)]
    for one in (*kept, thing(3, name="c", uid="u3")):
        collection.seen(Event("ADDED", one))
    collection.seen(Event("MODIFIED", thing(4, name="b", uid="u2")))
    collection.gone(Key("team", "c"), "u3")

    sizes = [len(orjson.dumps(manifest)) for manifest in collection]
    assert collection.size == sum(sizes) + SIZE_OF_A_GRAVE
    collection.gone(Key("team", "a"), "u1")
    collection.gone(Key("team", "b"), "u2")
    assert collection.size == 3 * SIZE_OF_A_GRAVE


def test_what_is_nested_without_end_is_passed_over(collection: Collection) -> None:
    deep: Any = {}
    for _ in range(1000):
        deep = {"a": deep}
    collection.seen(Event("ADDED", {**thing(1), "spec": deep}))

    assert collection.count == 0


@pytest.mark.parametrize(
    "wrong",
    [{"labels": ["a"]}, {"labels": {"a": {}}}, {"annotations": "a"}, {"name": 1}, {"namespace": ["a"]}, {"uid": {}}],
    ids=str,
)
def test_what_cannot_be_told_apart_is_passed_over(collection: Collection, wrong: Manifest) -> None:
    one = thing(1)
    collection.seen(Event("ADDED", {**one, "metadata": {**one["metadata"], **wrong}}))

    assert collection.count == 0


def test_deleted_objects_are_forgotten_in_the_end() -> None:
    time = 0.0
    collection = Collection(CONFIG_MAP, now=lambda: time)
    for number in range(100):
        collection.gone(Key("team", str(number)), str(number))
    time = REMEMBER_SECONDS + 1
    collection.gone(KEY, "u1")

    assert len(collection._graves) == 1


@dataclass
class Server:
    """What an API server does to objects of one type, and what it tells of it."""

    version: int = 0
    objects: dict[str, Manifest] = field(default_factory=dict[str, Manifest])
    told: list[Event] = field(default_factory=list[Event])

    def write(self, name: str) -> Manifest:
        self.version += 1
        known = self.objects.get(name)
        uid = known["metadata"]["uid"] if known else f"{name}-{self.version}"
        self.objects[name] = thing(self.version, name=name, uid=uid)
        self.told.append(Event("MODIFIED" if known else "ADDED", self.objects[name]))
        return self.objects[name]

    def delete(self, name: str) -> str:
        self.version += 1
        uid = self.objects.pop(name)["metadata"]["uid"]
        self.told.append(Event("DELETED", thing(self.version, name=name, uid=uid)))
        return uid

    def list(self) -> tuple[list[Manifest], str]:
        return list(self.objects.values()), str(self.version)


NAMES = st.sampled_from("abc")


class Converging(RuleBasedStateMachine):
    """Our writes and others', answers that come late, a watch that lags, lists that come late, watches that break."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.collection = Collection(CONFIG_MAP, now=lambda: 0.0)
        self.position = 0
        self.answers: list[Callable[[], None]] = []

    @rule(name=NAMES)
    def somebody_writes(self, name: str) -> None:
        self.server.write(name)

    @rule(name=NAMES)
    def somebody_deletes(self, name: str) -> None:
        if name in self.server.objects:
            self.server.delete(name)

    @rule(name=NAMES)
    def we_write_and_hear_at_once(self, name: str) -> None:
        written = self.server.write(name)
        self.collection.written(written)

        assert version_of(self.collection, Key("team", name)) == self.server.version

    @rule(name=NAMES)
    def we_write_and_hear_later(self, name: str) -> None:
        written = self.server.write(name)
        self.answers.append(lambda: self.collection.written(written))

    @rule(name=NAMES)
    def we_delete_and_hear_at_once(self, name: str) -> None:
        if name in self.server.objects:
            key, uid = Key("team", name), self.server.delete(name)
            known = self.collection.entry(key)
            self.collection.gone(key, uid)
            assert self.collection.get(key) is None or (known is not None and known.uid != uid)

    @rule(name=NAMES)
    def we_delete_and_hear_later(self, name: str) -> None:
        if name in self.server.objects:
            uid = self.server.delete(name)
            self.answers.append(lambda: self.collection.gone(Key("team", name), uid))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_comes(self, data: st.DataObject) -> None:
        self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))()

    @precondition(lambda self: self.position < len(self.server.told))
    @rule(count=st.integers(1, 5))
    def the_watch_tells(self, count: int) -> None:
        for event in self.server.told[self.position : self.position + count]:
            self.collection.seen(event)
        self.position = min(self.position + count, len(self.server.told))

    @rule()
    def the_watch_breaks_and_all_is_listed(self) -> None:
        self.collection.listed(listing(self.collection, *self.server.list()))
        self.position = len(self.server.told)

    @rule(name=NAMES)
    def the_watch_breaks_and_we_write_before_the_list_arrives(self, name: str) -> None:
        told, position = self.server.list(), len(self.server.told)
        written = self.server.write(name)
        self.collection.written(written)
        self.collection.listed(listing(self.collection, *told))
        self.position = position

        assert version_of(self.collection, Key("team", name)) == self.server.version

    @invariant()
    def the_index_agrees(self) -> None:
        assert len(self.collection.keys()) == self.collection.count

    def teardown(self) -> None:
        for answer in self.answers:
            answer()
        for event in self.server.told[self.position :]:
            self.collection.seen(event)

        assert {manifest["metadata"]["name"]: manifest for manifest in self.collection} == self.server.objects


TestConverging = Converging.TestCase


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0, "a", "b"]),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from("xyz"), part, max_size=3),
    max_leaves=12,
)


@given(value=JSON, like=JSON)
@example(value={"x": None}, like={"y": None})
def test_sharing_parts_with_another_object_changes_nothing_of_the_value(value: Any, like: Any) -> None:
    assert orjson.dumps(_sharing(value, like)) == orjson.dumps(value), "1, 1.0 and true are different in JSON"
    assert _sharing(value, value) is value


def test_children_of_one_owner_share_what_they_have_in_common() -> None:
    collection = Collection(CONFIG_MAP, now=lambda: 0.0)
    for name in ("a", "b"):
        manifest = thing(1, name=name, uid=name, **{labels.OWNER_UID: "o"})
        collection.written(manifest | {"data": {"x": "long"}})

    first, second = collection
    assert first["data"] is second["data"]


def test_of_a_large_object_only_what_is_needed_is_kept() -> None:
    collection = Collection(CONFIG_MAP, now=lambda: 0.0, keeping=lambda manifest: {"metadata": manifest["metadata"]})
    told: list[Manifest | None] = []
    collection.subscribe(lambda _, __, new: told.append(new))

    collection.seen(Event("ADDED", {**thing(5), "data": {"large": "x" * 1000}}))

    assert told == [thing(5)]
    assert list(collection) == [thing(5)]


def test_what_cannot_be_cut_down_is_passed_over() -> None:
    collection = Collection(CONFIG_MAP, now=lambda: 0.0, keeping=lambda manifest: manifest["nothing of that name"])

    collection.seen(Event("ADDED", thing(5)))

    assert collection.count == 0


def test_an_index_that_is_not_there_is_no_empty_one(collection: Collection) -> None:
    with pytest.raises(LookupError, match="configmaps has no index 'colour'"):
        list(collection.by("colour", "red"))
