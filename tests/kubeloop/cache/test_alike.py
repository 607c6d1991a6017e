"""What objects have in common is kept once, and is what came in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubeloop.cache.dedup import LARGEST, MOST, Interner
from kubeloop.cache.informer import Informer
from kubeloop.cache.store import Store
from kubeloop.objects import Key
from kubeloop.types import CONFIG_MAP
from modelplane_operator.api import labels

Manifest = dict[str, Any]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0, "", "a", "b", "[1]"]),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from("xyz"), part, max_size=3),
    max_leaves=12,
)


def thing(name: str, version: int = 1, *, value: Any = "long") -> Manifest:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": {labels.OWNER_UID: "o"}}
    return {"metadata": {**metadata, "resourceVersion": str(version)}, "data": {"x": [value, {"of": name}]}}


@given(values=st.lists(st.tuples(JSON, JSON), max_size=6), most=st.sampled_from([0, 700, 10_000]))
@example(values=[({"x": None}, {"y": None})], most=10_000)
@example(values=[(True, None), (1, None), (1.0, None), ([True], [1]), ([1], [1.0])], most=10_000)
def test_no_value_is_another_for_having_parts_of_others(values: list[tuple[Any, Any]], most: int) -> None:
    """1, 1.0 and true are different in JSON, and the order of fields stays too."""
    alike = Interner(most)

    for value, like in values:
        assert orjson.dumps(alike.of(value, like)) == orjson.dumps(value)
        assert alike.of(value, value) is value


def test_objects_of_all_clusters_share_what_they_have_in_common() -> None:
    store = Store(lambda: 0.0)
    informers = [store.open(cluster, CONFIG_MAP) for cluster in ("", "c1")]

    for informer, name in zip(informers, "ab", strict=True):
        informer.on_write(thing(name, value={"much": "of it"}))

    first, second = (one for informer in informers for one in informer)
    assert first["metadata"]["labels"] is second["metadata"]["labels"]
    assert first["data"]["x"][0] is second["data"]["x"][0]
    assert first["data"]["x"][1] != second["data"]["x"][1]


def test_an_object_that_changes_keeps_the_parts_that_do_not_though_nothing_is_remembered() -> None:
    informer = Informer(CONFIG_MAP, now=lambda: 0.0, interner=Interner(0))
    informer.on_write(thing("a", 1, value={"stays": "the same"}))
    before = informer.get(Key("team", "a"))

    informer.on_write({**thing("a", 2, value={"stays": "the same"}), "status": {"new": True}})

    after = informer.get(Key("team", "a"))
    assert before is not None
    assert after is not None
    assert after["metadata"]["resourceVersion"] == "2"
    assert after["data"] is before["data"]


def test_what_is_remembered_has_a_bound() -> None:
    alike = Interner(100_000)
    values = [{"name": f"n{number}", "text": "x" * 100} for number in range(5_000)]

    kept = [alike.of(value) for value in values]
    again = [alike.of(orjson.loads(orjson.dumps(value))) for value in (*values[:10], *values[-10:])]

    assert sum(one is other for one, other in zip(again[10:], kept[-10:], strict=True)) == 10, "the last ones are known"
    assert not any(one is other for one, other in zip(again[:10], kept[:10], strict=True)), "the first are not any more"


def test_long_texts_push_nothing_out() -> None:
    """They are as long as a tenant likes, and one is as much as all that is remembered."""
    alike, value = Interner(), {"much": ["of", "it"]}
    kept = alike.of(value)

    for letter in "abc":
        alike.of(letter * MOST)

    assert alike.of(orjson.loads(orjson.dumps(value))) is kept


def test_large_values_share_their_parts() -> None:
    alike, text = Interner(), "x" * LARGEST

    one, other = (alike.of(orjson.loads(orjson.dumps({"args": [text], "name": name}))) for name in "ab")

    assert one["args"][0] is other["args"][0]


def test_what_is_nested_deep_is_left_as_it_came() -> None:
    """All of a value is looked at once for each of its levels, and a large object may have two hundred."""
    came: list[Any] = ["x" * 2**20]
    for _ in range(200):
        came = [came]

    kept = Interner().of(came)

    levels = 0
    while kept is not came:
        kept, came, levels = kept[0], came[0], levels + 1
    assert 16 <= levels <= 40, "pods are written sixteen deep"


def test_what_it_was_before_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large object that becomes a small one of as many levels would be written for each of them."""
    before: list[Any] = ["x" * 2**20]
    came: list[Any] = ["y"]
    for _ in range(200):
        before, came = [before], [came]
    written = list[int]()

    def dumps(value: Any) -> bytes:
        said = orjson.dumps(value)
        written.append(len(said))
        return said

    monkeypatch.setattr("kubeloop.cache.dedup.orjson", SimpleNamespace(dumps=dumps))

    assert Interner().of(came, before) == came
    assert sum(written) < 48 * 2**20
