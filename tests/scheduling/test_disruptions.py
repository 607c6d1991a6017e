"""The budget of disruptions: whatever the fleet is, no limit is exceeded, and the oldest replicas come first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.objects import Key
from modelplane_operator.scheduling.disruptions import FLEET, Disruption, DisruptionBudget, DisruptionScope


def disruption(number: int, cluster: str = "a", *pools: str, created: str = "") -> Disruption:
    return Disruption(
        created or f"2026-01-01T00:00:{number:02}Z", Key("ml-team", f"m-{number}"), cluster, pools or ("p",)
    )


def allowed(budget: DisruptionBudget, *candidates: Disruption) -> set[Key]:
    """Return the replicas that may begin."""
    return {key for key, full in budget.find_full(candidates).items() if full is None}


def counted(*replicas: Disruption) -> Counter[DisruptionScope]:
    return Counter(scope for replica in replicas for scope in replica.scopes)


@pytest.mark.parametrize(
    ("amount", "replicas", "limit"),
    [
        ("5%", 0, 1),
        ("5%", 39, 1),
        ("5%", 40, 2),
        ("10%", 40, 4),
        ("2", 40, 2),
        ("0", 40, 0),
        ("100%", 7, 7),
        ("x", 9, 1),
    ],
)
def test_a_limit_is_a_number_or_a_percentage_that_is_rounded_down(amount: str, replicas: int, limit: int) -> None:
    assert DisruptionBudget(fleet=amount, replicas={FLEET: replicas}).limit(FLEET) == limit


def test_the_oldest_replica_begins_and_the_others_say_which_limit_is_reached() -> None:
    replicas = [disruption(number) for number in range(3)]

    full = DisruptionBudget(replicas=counted(*replicas)).find_full(reversed(replicas))

    assert full == {replicas[0].key: None, replicas[1].key: FLEET, replicas[2].key: FLEET}


def test_an_older_replica_of_another_deployment_comes_first() -> None:
    older, younger = disruption(1), disruption(2)
    budget = DisruptionBudget(replicas=counted(older, younger), waiting=(older,))

    assert allowed(budget, younger) == set()
    assert allowed(budget, older) == {older.key}
    assert allowed(replace(budget, active=(older,)), younger) == set()
    assert allowed(replace(budget, waiting=()), younger) == {younger.key}


def test_a_full_cluster_does_not_hold_up_another() -> None:
    on_a, on_b = [disruption(number, "a") for number in range(2)], disruption(9, "b")
    budget = DisruptionBudget("2", {"a": "1"}, counted(*on_a, on_b), waiting=tuple(on_a))

    assert budget.find_full([*on_a, on_b]) == {on_a[0].key: None, on_a[1].key: DisruptionScope("a"), on_b.key: None}


def test_each_pool_has_the_limit_of_its_cluster() -> None:
    small = [disruption(number, "a", "small") for number in range(2)]
    large = [disruption(number, "a", "large") for number in range(10, 38)]
    budget = DisruptionBudget("100%", {"a": "10%"}, counted(*small, *large))

    full = budget.find_full([*small, *large])

    assert [full[one.key] for one in small] == [None, DisruptionScope("a", "small")]
    assert sum(scope is None for scope in full.values()) == 3, "10% of thirty"


def test_scopes_are_named_as_people_would() -> None:
    assert [str(scope) for scope in (FLEET, DisruptionScope("berlin"), DisruptionScope("berlin", "h100"))] == [
        "in the fleet",
        "on berlin",
        "on pool h100 of berlin",
    ]


AMOUNTS = st.sampled_from(["0", "1", "2", "3", "5%", "10%", "50%", "100%"])
FLEETS = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from("pq"), min_size=1, max_size=2, unique=True)),
    min_size=1,
    max_size=12,
)


@given(FLEETS, AMOUNTS, st.dictionaries(st.sampled_from("abc"), AMOUNTS), st.randoms(use_true_random=False))
def test_two_operators_choose_the_same_replicas_and_exceed_no_limit(
    fleet: list[tuple[str, list[str]]], limit: str, clusters: dict[str, str], random: Random
) -> None:
    """Each replica is of another deployment. Operators plan them in any order, each with a view that may be old."""
    replicas = [disruption(number, cluster, *sorted(pools)) for number, (cluster, pools) in enumerate(fleet)]
    budget = DisruptionBudget(limit, clusters, counted(*replicas), waiting=tuple(sorted(replicas)))
    rolled, begun = set[Disruption](), list[Disruption]()
    views = [budget]
    for _ in range(4 * len(replicas)):
        for replica in random.sample(replicas, len(replicas)):
            view = random.choice(views[-2:])
            if replica in rolled or replica in begun or replica in view.active:
                continue  # it is written already, so that a stale write conflicts
            if view.find_full([replica])[replica.key] is None:
                begun.append(replica)
                views.append(replace(budget, active=tuple(begun), waiting=left_of(replicas, rolled, begun)))
        used = counted(*begun)
        assert all(count <= budget.limit(scope) for scope, count in used.items())
        rolled.update(begun)
        begun = []
        views = [replace(budget, waiting=left_of(replicas, rolled, begun))]
    for replica in set(replicas) - rolled:
        assert any(budget.limit(scope) == 0 for scope in replica.scopes), "all roll in the end"


def left_of(replicas: list[Disruption], rolled: set[Disruption], begun: list[Disruption]) -> tuple[Disruption, ...]:
    """Return those that wait still, the oldest first."""
    return tuple(replica for replica in sorted(replicas) if replica not in rolled and replica not in begun)
