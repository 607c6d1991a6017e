"""An informer converges to the newest state of every object, in whatever order it hears of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubeloop.cache.entries import SIZE_OF_A_TOMBSTONE, Entry
from kubeloop.cache.indexes import by_label
from kubeloop.cache.informer import REMEMBER_SECONDS, Informer
from kubeloop.client.kube import Event
from kubeloop.client.lists import Listing
from kubeloop.objects import Key
from kubeloop.ownership import ALL_FIELDS, LARGEST, add_content_hash, compute_owned_fields, is_current
from kubeloop.types import CONFIG_MAP
from modelplane_operator.api import labels
from modelplane_operator.api.labels import FIELD_MANAGER

Manifest = dict[str, Any]
KEY = Key("team", "a")


def thing(version: int, *, name: str = "a", uid: str = "u1", **labelled: str) -> Manifest:
    metadata = {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(version), "labels": labelled}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def listing(informer: Informer, items: Sequence[Manifest], version: str) -> Listing[Entry | Key | None]:
    return Listing([*map(informer.reader(), items)], version)


@pytest.fixture
def informer() -> Informer:
    return Informer(CONFIG_MAP, now=lambda: 0.0)


def version_of(informer: Informer, key: Key = KEY) -> int | None:
    entry = informer.entry(key)
    return entry and entry.version


def nested(depth: int, **of: Any) -> Manifest:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return {**thing(**of), "spec": value, "status": {"said": "before"}}


def test_an_object_that_cannot_be_read_is_its_own_trouble(informer: Informer) -> None:
    said: list[Key] = []
    informer.on_error(said.append)
    informer.on_list(listing(informer, [thing(2, name="b"), thing(3, name="c"), thing(4)], "4"))
    informer.on_list(listing(informer, [nested(300, version=5), thing(2, name="b")], "6"))

    assert sorted(manifest["metadata"]["name"] for manifest in informer) == ["a", "b"], "and that c is gone is seen"
    assert version_of(informer) == 4, "what was read of it stands"
    trouble, latest = informer.error_of(KEY), informer.latest(KEY)
    assert trouble is not None
    assert latest is not None
    assert trouble.reason == "the object cannot be read: it is nested too deep; make it flatter"
    assert (latest["metadata"]["resourceVersion"], latest["status"]) == ("5", {"said": "before"})
    assert informer.failures == {"read": 1}

    informer.on_event(Event("MODIFIED", thing(7)))
    assert (version_of(informer), informer.error_of(KEY)) == (7, None)
    assert said == [KEY, KEY], "told when it begins and when it is over"


@pytest.mark.parametrize("how", ["event", "list"])
def test_an_object_that_could_never_be_read_is_forgotten_when_it_goes(informer: Informer, how: str) -> None:
    informer.on_list(listing(informer, [nested(300, version=5)], "5"))
    assert informer.get(KEY) is None
    assert informer.error_of(KEY)

    informer.on_event(Event("DELETED", nested(300, version=6))) if how == "event" else informer.on_list(
        listing(informer, [], "6")
    )
    assert informer.error_of(KEY) is None


def test_what_an_index_or_a_listener_fails_on_is_that_objects_trouble() -> None:
    told: list[Key] = []

    def failing(key: Key, _: Manifest | None, new: Manifest | None) -> None:
        if new and "bad" in new["metadata"]["labels"]:
            raise KeyError("canary-4711")

    def index(manifest: Manifest) -> list[str]:
        return [manifest["metadata"]["labels"]["good"]]

    informer = Informer(CONFIG_MAP, now=lambda: 0.0, indexes={"good": index})
    informer.subscribe(failing)
    informer.subscribe(lambda key, _, __: told.append(key))
    items = [thing(1, name="x"), thing(2, bad="1", good="a"), thing(3, name="z", good="a")]
    informer.on_list(listing(informer, items, "3"))

    assert [one["metadata"]["name"] for one in informer.by("good", "a")] == ["a", "z"]
    assert [key.name for key in told] == ["x", "a", "z"]
    why = {key.name: trouble.reason for key in told if (trouble := informer.error_of(key))}
    assert why == {"x": "internal error (index good: KeyError)", "a": "internal error (its change: KeyError)"}
    assert informer.failures == {"index": 1, "listener": 1}
    assert informer.latest(KEY) == informer.get(KEY)

    informer.on_event(Event("MODIFIED", thing(4, good="b")))
    assert informer.error_of(KEY) is None
    assert [one["metadata"]["name"] for one in informer.by("good", "a")] == ["z"]


def test_a_late_event_does_not_undo_our_own_write(informer: Informer) -> None:
    informer.on_write(thing(7))
    informer.on_event(Event("MODIFIED", thing(5)))

    assert version_of(informer) == 7


def test_what_we_deleted_stays_away_whatever_comes_late(informer: Informer) -> None:
    informer.on_event(Event("ADDED", thing(5)))
    informer.on_delete(KEY, "u1")
    informer.on_event(Event("MODIFIED", thing(6)))
    informer.on_write(thing(7))

    assert version_of(informer) is None


def test_an_object_made_anew_under_the_name_of_a_deleted_one_appears(informer: Informer) -> None:
    informer.on_event(Event("ADDED", thing(5)))
    informer.on_delete(KEY, "u1")
    informer.on_write(thing(9, uid="u2"))
    informer.on_event(Event("DELETED", thing(8)))

    assert version_of(informer) == 9


def test_an_object_that_left_the_selection_may_return(informer: Informer) -> None:
    informer.on_event(Event("ADDED", thing(5)))
    informer.on_event(Event("DELETED", thing(6)))
    informer.on_write(thing(7))

    assert version_of(informer) == 7


def test_a_list_takes_away_what_it_lacks_but_not_what_was_written_since(informer: Informer) -> None:
    informer.on_list(listing(informer, [thing(5), thing(4, name="b")], "6"))
    informer.on_write(thing(9, name="c"))
    informer.on_list(listing(informer, [thing(5)], "8"))

    assert sorted(manifest["metadata"]["name"] for manifest in informer) == ["a", "c"]


def test_a_list_with_an_object_that_cannot_be_read_takes_nothing_away(informer: Informer) -> None:
    informer.on_list(listing(informer, [thing(5), thing(4, name="b")], "6"))
    informer.on_list(listing(informer, [thing(5), {"metadata": {"name": "b"}}], "8"))

    assert sorted(manifest["metadata"]["name"] for manifest in informer) == ["a", "b"]


def test_a_write_of_a_type_that_the_cluster_did_not_have_has_it_listed(informer: Informer) -> None:
    informer.on_missing_type()
    assert not informer.woken
    informer.on_write(thing(5))

    assert informer.woken


def test_what_goes_while_somebody_looks_through_all_is_passed_over(informer: Informer) -> None:
    informer.on_list(listing(informer, [thing(1, name="a"), thing(2, name="b"), thing(3, name="c")], "3"))
    looking = iter(informer)
    assert next(looking)["metadata"]["name"] == "a"
    informer.on_event(Event("DELETED", thing(4, name="b", uid="u1")))

    assert [one["metadata"]["name"] for one in looking] == ["c"]


def test_a_restored_server_may_give_a_version_that_was_seen_to_something_else(informer: Informer) -> None:
    informer.on_list(listing(informer, [thing(5, told="before")], "9"))
    informer.on_list(listing(informer, [thing(5, told="after")], "6"))

    assert [one["metadata"]["labels"] for one in informer] == [{"told": "after"}]


def test_a_server_that_was_restored_from_a_backup_is_believed(informer: Informer) -> None:
    informer.on_list(listing(informer, [thing(50), thing(40, name="b")], "60"))
    informer.on_list(listing(informer, [thing(5)], "6"))
    informer.on_event(Event("MODIFIED", thing(7)))

    assert informer.keys() == (KEY,)
    assert version_of(informer) == 7


def test_the_first_list_after_distrust_replaces_everything(informer: Informer) -> None:
    informer.on_list(listing(informer, [thing(50), thing(40, name="b")], "60"))
    informer.distrust()
    assert not informer.synced
    informer.on_list(listing(informer, [thing(5, uid="other")], "700"))

    assert informer.keys() == (KEY,)
    assert version_of(informer) == 5


def test_managed_fields_are_not_kept_but_what_they_say_of_ours_is(informer: Informer) -> None:
    ours = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:data": {"f:a": {}}}}
    theirs = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:data": {"f:b": {}}}}
    given = thing(5)
    given["metadata"]["managedFields"] = [theirs, ours]
    informer.on_write(given)

    entry = informer.entry(KEY)
    assert entry is not None
    assert "managedFields" not in entry.manifest["metadata"]
    assert entry.owned == '{"f:data":{"f:a":{}}}'
    assert "managedFields" in given["metadata"], "what came in is not changed"


def owning(version: int, fields: Any, **named: str) -> Manifest:
    """An object of which managedFields say that these fields are ours."""
    found = thing(version, **named)
    ours = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    return {**found, "metadata": {**found["metadata"], "managedFields": [ours]}}


def test_what_a_server_says_of_our_fields_counts_once_where_it_is_the_same(informer: Informer) -> None:
    fields, others = {"f:data": {"f:a": {}}}, {"f:data": {"f:b" * 1000: {}}}
    told = [owning(1, fields), owning(2, fields, name="b", uid="b"), owning(3, others, name="c", uid="c")]
    for one in told:
        informer.on_event(Event("ADDED", one))

    def sizes() -> int:
        return sum(len(orjson.dumps(manifest)) for manifest in informer)

    assert informer.size == sizes() + len(orjson.dumps(fields)) + len(orjson.dumps(others))
    informer.on_delete(KEY, "u1")
    informer.on_event(Event("MODIFIED", owning(4, fields, name="c", uid="c")))
    assert informer.size == sizes() + len(orjson.dumps(fields)) + SIZE_OF_A_TOMBSTONE
    for name in ("b", "c"):
        informer.on_delete(Key("team", name), name)
    assert informer.size == 3 * SIZE_OF_A_TOMBSTONE


def test_of_an_object_with_fields_of_ours_beyond_any_honest_one_the_hash_alone_tells(informer: Informer) -> None:
    manifest = thing(5)
    applied = add_content_hash(manifest)
    large = owning(5, {"f:data": {f"f:{'x' * LARGEST}": {}}})
    large["metadata"]["annotations"] = applied["metadata"]["annotations"]
    informer.on_event(Event("ADDED", large))

    entry = informer.entry(KEY)
    assert entry is not None
    assert entry.owned == ALL_FIELDS
    assert is_current(entry.manifest, entry.owned, applied)
    assert not is_current(entry.manifest, entry.owned, add_content_hash({**manifest, "data": {"a": "b"}}))


@pytest.mark.parametrize("fields", ["text", 1, {"f:data": 1}, {"f:data": {"f:list": {"k:": {}}}}], ids=str)
def test_fields_that_no_api_server_writes_are_not_ours(informer: Informer, fields: Any) -> None:
    applied = add_content_hash({**thing(5), "data": {"list": [{"name": "a"}]}})
    live = owning(5, fields)
    live["metadata"]["annotations"] = applied["metadata"]["annotations"]

    assert not is_current(live, compute_owned_fields(live), applied)


@pytest.mark.parametrize("of", ["name", "namespace", "uid"])
def test_a_deletion_of_what_has_a_name_beyond_any_honest_one_is_not_remembered(informer: Informer, of: str) -> None:
    deleted = thing(5)
    deleted["metadata"][of] = "x" * 100_000
    informer.on_event(Event("DELETED", deleted))

    assert informer.size == 0
    assert not informer.find_lost(Key(deleted["metadata"]["namespace"], deleted["metadata"]["name"]))


def test_objects_are_found_by_owner_and_by_label() -> None:
    informer = Informer(CONFIG_MAP, now=lambda: 0.0, indexes={"colour": by_label("colour")})
    owner = {labels.OWNER_UID: "o1"}
    informer.on_write(thing(1, name="b", uid="b", colour="red", **owner))
    informer.on_write(thing(2, name="a", uid="a", colour="red"))
    informer.on_write(thing(3, name="b", uid="b", colour="blue", **owner))

    assert [found["metadata"]["name"] for found in informer.by("colour", "red")] == ["a"]
    assert [found["metadata"]["name"] for found in informer.children_of("o1")] == ["b"]
    informer.on_delete(Key("team", "b"), "b")
    assert list(informer.children_of("o1")) == []


def test_what_lacks_the_label_that_is_watched_for_is_not_taken_in() -> None:
    informer = Informer(CONFIG_MAP, now=lambda: 0.0, selecting="ours")
    informer.on_write(thing(1, ours="yes"))
    informer.on_write(thing(2))  # our write took the label off; the watch tells of that as a deletion
    informer.on_event(Event("DELETED", thing(2)))

    assert informer.count == 0


def test_listeners_hear_of_changes_and_of_nothing_else(informer: Informer) -> None:
    heard: list[tuple[str, int | None, int | None]] = []

    def version(manifest: Manifest | None) -> int | None:
        return manifest and int(manifest["metadata"]["resourceVersion"])

    informer.subscribe(lambda key, old, new: heard.append((key.name, version(old), version(new))))
    informer.on_write(thing(1))
    informer.on_event(Event("ADDED", thing(1)))
    informer.on_event(Event("MODIFIED", thing(2)))
    informer.on_list(listing(informer, [thing(2)], "3"))
    informer.on_event(Event("DELETED", thing(4)))

    assert heard == [("a", None, 1), ("a", 1, 2), ("a", 2, None)]


def test_the_size_is_that_of_what_is_kept(informer: Informer) -> None:
    kept = [thing(1), thing(2, name="b", uid="u2", colour="x" * 100)]
    for one in (*kept, thing(3, name="c", uid="u3")):
        informer.on_event(Event("ADDED", one))
    informer.on_event(Event("MODIFIED", thing(4, name="b", uid="u2")))
    informer.on_delete(Key("team", "c"), "u3")

    sizes = [len(orjson.dumps(manifest)) for manifest in informer]
    assert informer.size == sum(sizes) + SIZE_OF_A_TOMBSTONE
    informer.on_delete(Key("team", "a"), "u1")
    informer.on_delete(Key("team", "b"), "u2")
    assert informer.size == 3 * SIZE_OF_A_TOMBSTONE


def test_what_is_nested_without_end_is_passed_over(informer: Informer) -> None:
    deep: Any = {}
    for _ in range(1000):
        deep = {"a": deep}
    informer.on_event(Event("ADDED", {**thing(1), "spec": deep}))

    assert informer.count == 0


@pytest.mark.parametrize(
    "wrong",
    [{"labels": ["a"]}, {"labels": {"a": {}}}, {"annotations": "a"}, {"name": 1}, {"namespace": ["a"]}, {"uid": {}}],
    ids=str,
)
def test_what_cannot_be_told_apart_is_passed_over(informer: Informer, wrong: Manifest) -> None:
    one = thing(1)
    informer.on_event(Event("ADDED", {**one, "metadata": {**one["metadata"], **wrong}}))

    assert informer.count == 0


def test_deleted_objects_are_forgotten_in_the_end() -> None:
    time = 0.0
    informer = Informer(CONFIG_MAP, now=lambda: time)
    for number in range(100):
        informer.on_delete(Key("team", str(number)), str(number))
    time = REMEMBER_SECONDS + 1
    informer.on_delete(KEY, "u1")

    assert len(informer._tombstones) == 1


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
        self.informer = Informer(CONFIG_MAP, now=lambda: 0.0)
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
        self.informer.on_write(written)

        assert version_of(self.informer, Key("team", name)) == self.server.version

    @rule(name=NAMES)
    def we_write_and_hear_later(self, name: str) -> None:
        written = self.server.write(name)
        self.answers.append(lambda: self.informer.on_write(written))

    @rule(name=NAMES)
    def we_delete_and_hear_at_once(self, name: str) -> None:
        if name in self.server.objects:
            key, uid = Key("team", name), self.server.delete(name)
            known = self.informer.entry(key)
            self.informer.on_delete(key, uid)
            assert self.informer.get(key) is None or (known is not None and known.uid != uid)

    @rule(name=NAMES)
    def we_delete_and_hear_later(self, name: str) -> None:
        if name in self.server.objects:
            uid = self.server.delete(name)
            self.answers.append(lambda: self.informer.on_delete(Key("team", name), uid))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_comes(self, data: st.DataObject) -> None:
        self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))()

    @precondition(lambda self: self.position < len(self.server.told))
    @rule(count=st.integers(1, 5))
    def the_watch_tells(self, count: int) -> None:
        for event in self.server.told[self.position : self.position + count]:
            self.informer.on_event(event)
        self.position = min(self.position + count, len(self.server.told))

    @rule()
    def the_watch_breaks_and_all_is_listed(self) -> None:
        self.informer.on_list(listing(self.informer, *self.server.list()))
        self.position = len(self.server.told)

    @rule(name=NAMES)
    def the_watch_breaks_and_we_write_before_the_list_arrives(self, name: str) -> None:
        told, position = self.server.list(), len(self.server.told)
        written = self.server.write(name)
        self.informer.on_write(written)
        self.informer.on_list(listing(self.informer, *told))
        self.position = position

        assert version_of(self.informer, Key("team", name)) == self.server.version

    @invariant()
    def the_index_agrees(self) -> None:
        assert len(self.informer.keys()) == self.informer.count

    def teardown(self) -> None:
        for answer in self.answers:
            answer()
        for event in self.server.told[self.position :]:
            self.informer.on_event(event)

        assert {manifest["metadata"]["name"]: manifest for manifest in self.informer} == self.server.objects


TestConverging = Converging.TestCase


def test_of_a_large_object_only_what_is_needed_is_kept() -> None:
    informer = Informer(CONFIG_MAP, now=lambda: 0.0, keeping=lambda manifest: {"metadata": manifest["metadata"]})
    told: list[Manifest | None] = []
    informer.subscribe(lambda _, __, new: told.append(new))

    informer.on_event(Event("ADDED", {**thing(5), "data": {"large": "x" * 1000}}))

    assert told == [thing(5)]
    assert list(informer) == [thing(5)]


def test_what_cannot_be_cut_down_is_passed_over() -> None:
    informer = Informer(CONFIG_MAP, now=lambda: 0.0, keeping=lambda manifest: manifest["nothing of that name"])

    informer.on_event(Event("ADDED", thing(5)))

    assert informer.count == 0


def test_an_index_that_is_not_there_is_no_empty_one(informer: Informer) -> None:
    with pytest.raises(LookupError, match="configmaps has no index 'colour'"):
        list(informer.by("colour", "red"))
