"""The planner of clouds, over random graphs, faults and crashes: one of everything, and in the end nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.errors import Forbidden
from modelplane_operator.clouds.decide import Situation, decide
from modelplane_operator.clouds.resources import DesiredResource, ExistingResource, Kind, Ref, idempotency_token, refs
from tests.support.builders import EPOCH
from tests.support.cloud_life import ACCOUNT, OWNER, Life
from tests.support.fake_cloud import FakeCloud, Fault, Told

pytestmark = pytest.mark.usefixtures("well_worded")

LAYERS = 4
TOLD: Sequence[Told] = ("token", "name", "nothing")
FAULTS: Sequence[Fault] = ("refused", "lost", "failed", "throttled")


def _kinds(told: Sequence[Told]) -> dict[str, Kind]:
    """A kind for each layer; what is below stays until all above is gone."""
    return {
        f"k{layer}": Kind(
            f"k{layer}",
            30.0,
            frozenset(f"k{above}" for above in range(layer + 1, LAYERS)),
            announced=told[layer] == "nothing",
        )
        for layer in range(LAYERS)
    }


@st.composite
def graphs(draw: st.DrawFn) -> tuple[DesiredResource, ...]:
    """Resources in layers, each with references to some below."""
    wanted: list[DesiredResource] = []
    for number in range(draw(st.integers(1, 8))):
        layer = draw(st.integers(0, LAYERS - 1))
        below = [one.key for one in wanted if int(one.kind[1:]) < layer]
        named = draw(st.lists(st.sampled_from(below), unique=True, max_size=3)) if below else []
        parameters: dict[str, Any] = {"size": number, "of": [Ref(key) for key in named]}
        wanted.append(DesiredResource(f"r{number}", f"k{layer}", parameters, updatable=frozenset({"size"})))
    return tuple(draw(st.permutations(wanted)))


@st.composite
def lives(draw: st.DrawFn) -> Life[FakeCloud]:
    told = draw(st.lists(st.sampled_from(TOLD), min_size=LAYERS, max_size=LAYERS))
    kinds = _kinds(told)
    cloud = FakeCloud(
        kinds,
        dict(zip(kinds, told, strict=True)),
        EPOCH,
        takes=timedelta(seconds=draw(st.sampled_from((0, 20, 600)))),
        lag=timedelta(seconds=draw(st.sampled_from((0, 10, 60, 119)))),
        faults=draw(st.dictionaries(st.integers(1, 40), st.sampled_from(FAULTS), max_size=10)),
    )
    kills = draw(st.frozensets(st.integers(1, 120), max_size=12))
    return Life(cloud, draw(graphs()), kills=kills)


def _one_of_each(life: Life[FakeCloud]) -> None:
    present = {one.key: len(life.cloud.present(one.key)) for one in life.wanted}
    assert present == dict.fromkeys(present, 1)


@given(lives())
def test_whatever_happens_there_is_one_of_everything_and_then_nothing(life: Life[FakeCloud]) -> None:
    failed = Counter(life.cloud.faults.values())["failed"]

    life.until_settled()

    _one_of_each(life)
    again = {key: times - 1 for key, times in Counter(life.cloud.made).items() if times > 1}
    assert sum(again.values()) <= failed, "made again without having failed"
    calls = life.cloud.calls
    life.turn()
    assert life.cloud.calls == calls, "at rest nothing is called"

    life.terminating = True
    life.until_settled()

    assert life.cloud.left == []


@given(lives(), st.integers(1, 60))
def test_what_is_deleted_while_it_is_being_made_leaves_nothing(life: Life[FakeCloud], turns: int) -> None:
    for _ in range(turns):
        decision = life.turn()
        life.cloud.now += timedelta(seconds=max(1.0, decision.requeue_after if decision else 1.0))

    life.terminating = True
    life.until_settled()
    life.cloud.now += timedelta(hours=1)

    assert life.cloud.left == []


@given(lives(), st.data())
def test_what_goes_by_other_hands_is_made_again_or_forgotten(life: Life[FakeCloud], data: st.DataObject) -> None:
    life.until_settled()
    life.cloud.faults = {}
    victims = data.draw(st.lists(st.sampled_from([one.key for one in life.wanted]), unique=True))
    for key in victims:
        life.cloud.present(key)[0].gone = life.cloud.now

    if data.draw(st.booleans()):
        life.terminating = True
        life.until_settled()
        assert life.cloud.left == []
    else:
        life.cloud.now += timedelta(minutes=5)
        life.until_settled()
        _one_of_each(life)


@given(lives(), st.data())
def test_only_what_is_no_longer_wanted_is_deleted(life: Life[FakeCloud], data: st.DataObject) -> None:
    life.until_settled()
    life.cloud.faults = {}
    needed = {ref.key for one in life.wanted for ref in refs(one.parameters)}
    spare = [one for one in life.wanted if one.key not in needed]
    removed = data.draw(st.sampled_from(spare))
    kept = {one.key: life.cloud.present(one.key)[0].found.id for one in life.wanted if one != removed}
    life.wanted = tuple(one for one in life.wanted if one != removed)

    for _ in range(200):
        decision = life.turn()
        life.cloud.now += timedelta(seconds=max(1.0, decision.requeue_after if decision else 1.0))

    assert {key: [one.found.id for one in life.cloud.present(key)] for key in kept} == {
        key: [name] for key, name in kept.items()
    }
    assert life.cloud.present(removed.key) == []


def _alone(told: Told = "name", **changes: Any) -> Life[FakeCloud]:
    kinds = _kinds([told] * LAYERS)
    wanted = (
        DesiredResource("net", "k0", {"size": 1}, updatable=frozenset({"size"})),
        DesiredResource("pool", "k1", {"of": Ref("net")}),
    )
    return Life(FakeCloud(kinds, dict.fromkeys(kinds, told), EPOCH, **changes), wanted)


def test_a_strangers_resource_of_the_same_name_is_left_alone() -> None:
    life = _alone()
    life.cloud.add(ExistingResource("net", "k0", "k0-theirs", "Ready", "somebody"))

    for _ in range(50):
        decision = life.turn()
        assert decision is not None and not decision.steps
        life.cloud.now += timedelta(seconds=decision.requeue_after)
    told = {one.key: one.message or "" for one in life.records}
    assert "belongs to somebody" in told["net"]
    assert told["pool"] == "waits for net"

    life.terminating = True
    life.until_settled()
    assert life.cloud.left == ["k0-theirs"]


def test_a_parameter_that_is_kept_is_brought_back() -> None:
    life = _alone()
    life.until_settled()
    life.cloud.present("net")[0].parameters = {"size": 9}

    life.until_settled()

    assert life.cloud.present("net")[0].parameters == {"size": 1}


def test_a_kind_that_cannot_be_listed_is_left_as_it_is() -> None:
    life = _alone()
    life.until_settled()
    before, seen = life.records, life.cloud.seen()
    blind = replace(seen, existing=(), unseen={"k0": Forbidden("no"), "k1": Forbidden("no")})
    for terminating in (False, True):
        wanted = () if terminating else life.wanted
        decision = decide(
            Situation(ACCOUNT, OWNER, wanted, life.cloud.kinds, blind, before, {}, "p", life.cloud.now, terminating)
        )

        assert decision.steps == ()
        assert not decision.is_deleted
        assert {one.key: one.id for one in decision.records} == {one.key: one.id for one in before}


def test_what_was_made_in_the_cluster_goes_with_it() -> None:
    life = _alone()
    life.until_settled()
    life.cloud.add(ExistingResource("elb", "k1", "k1-elb", "Ready", "", swept=True))
    life.turn()
    assert "k1-elb" in life.cloud.left

    life.terminating = True
    life.until_settled()

    assert life.cloud.left == []


def test_a_status_at_rest_is_not_written() -> None:
    life = _alone()
    life.until_settled()
    life.turn()
    writes = life.writes

    for _ in range(20):
        life.cloud.now += timedelta(minutes=5)
        life.turn()

    assert life.writes == writes


@pytest.mark.parametrize("told", TOLD)
def test_what_waits_for_others_is_not_late(told: Told) -> None:
    """Each takes twice its usual time, and the last comes, or goes, after many times its own."""
    kinds = {name: replace(kind, usual=120.0) for name, kind in _kinds([told] * LAYERS).items()}
    cloud = FakeCloud(kinds, dict.fromkeys(kinds, told), EPOCH, takes=timedelta(seconds=240))
    chain = tuple(DesiredResource(f"r{at}", f"k{at}", {"of": Ref(f"r{at - 1}")} if at else {}) for at in range(LAYERS))
    life = Life(cloud, chain)
    late = set[str]()

    for life.terminating in (False, True):
        for _ in range(300):
            decision = life.turn()
            assert decision is not None
            late |= {f"{one.key} is {one.state}: {one.message}" for one in decision.stalled}
            cloud.now += timedelta(seconds=max(1.0, decision.requeue_after))

    assert life.over
    assert late == set()


@pytest.mark.parametrize("told", TOLD)
def test_every_instant_at_which_the_process_can_end(told: Told) -> None:
    """Each alone, and each followed by another: the whole of a life that makes and deletes."""
    clean = _alone(told, lag=timedelta(seconds=60))
    clean.until_settled()
    clean.terminating = True
    clean.until_settled()

    for first in range(1, clean.instants + 1):
        for second in (None, first + 1, first + 3):
            life = _alone(told, lag=timedelta(seconds=60))
            life.kills = frozenset({first, second} - {None})  # type: ignore[arg-type]
            life.until_settled()
            _one_of_each(life)
            assert Counter(life.cloud.made) == {"net": 1, "pool": 1}, (first, second)
            life.terminating = True
            life.until_settled()
            assert life.cloud.left == [], (first, second)


def test_a_token_differs_for_what_was_there_before() -> None:
    wanted = DesiredResource("net", "k0", {"size": 1})

    tokens = {
        idempotency_token(OWNER, wanted, ""),
        idempotency_token(OWNER, wanted, "k0-1"),
        idempotency_token(replace(OWNER, uid="x"), wanted, ""),
    }

    assert len(tokens) == 3
    assert all(len(one) <= 64 for one in tokens)


@pytest.mark.parametrize("worked", [True, False])
def test_what_has_worked_is_never_taken_away_for_having_failed(*, worked: bool) -> None:
    life = _alone()
    if worked:
        life.until_settled()
    else:
        life.turn()
        life.cloud.now += timedelta(minutes=1)
    life.cloud.present("net")[0].fails = True
    before = life.cloud.present("net")[0].found.id
    told: set[str] = set()

    for _ in range(60):
        decision = life.turn()
        assert decision is not None
        told |= {one.state for one in life.records if one.key == "net"}
        life.cloud.now += timedelta(seconds=decision.requeue_after)

    assert "Failed" in told
    assert (life.cloud.present("net")[0].found.id == before) is worked


def test_a_kind_that_cannot_be_listed_holds_up_what_waits_for_it_and_says_why() -> None:
    life = _alone()
    life.until_settled()
    refused = Forbidden("you may not list what k2 is")
    seen = replace(life.cloud.seen(), unseen={"k2": refused})

    decision = decide(
        Situation(ACCOUNT, OWNER, (), life.cloud.kinds, seen, life.records, {}, "p", life.cloud.now, terminating=True)
    )

    assert decision.steps == ()
    assert [(record.key, error) for record, error in decision.errors] == [("k2", refused)]
    assert {one.key: one.message for one in decision.records} == {
        "k2": "cannot be listed: you may not list what k2 is",
        "net": "waits until gone: k1, k2",
        "pool": "waits until gone: k2",
    }


@pytest.mark.parametrize("terminating", [True, False])
def test_a_second_one_of_a_key_goes_and_is_told_apart(*, terminating: bool) -> None:
    life = _alone()
    life.until_settled()
    kept = life.cloud.present("net")[0].found
    life.cloud.add(replace(kept, id="k0-second", state="Ready"))
    life.cloud.add(replace(kept, id="k0-third", state="Ready"))
    life.terminating = terminating

    life.turn()
    keys = [one.key for one in life.records]
    life.until_settled()

    assert len(set(keys)) == len(keys), "a status has no two of one key"
    assert life.cloud.left == ([] if terminating else [kept.id, life.cloud.present("pool")[0].found.id])
