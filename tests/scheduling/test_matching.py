"""Puzzles that first-fit gets wrong, and hostile ones that must not take for ever."""

from __future__ import annotations

import pytest

from modelplane_operator.scheduling import cluster as clusters
from modelplane_operator.scheduling.assignment import assign
from modelplane_operator.scheduling.matching import Hosts, Match, hosts, match
from modelplane_operator.scheduling.requirement import placement_request
from tests.support import builders as b


@pytest.mark.parametrize(
    ("costs", "room", "bins"),
    [
        ([], [], ()),
        ([], [3], ()),
        ([[1]], [], None),
        ([[1, 1]], [0, 1], (1,)),
        ([[1, 1], [1, None]], [1, 1], (1, 0)),
        ([[1, 1], [1, None]], [2, 1], (0, 0)),
        ([[1, 1], [None, 1], [1, None]], [1, 1], None),
        ([[2, 2], [2, 2], [3, 3], [3, 3]], [5, 5], (0, 1, 0, 1)),
        ([[4, 4], [3, 3], [3, 3], [2, 2]], [6, 6], (0, 1, 1, 0)),
        ([[3, 3], [3, 3], [3, 3]], [5, 5], None),
    ],
)
def test_every_item_gets_a_bin(costs: list[list[int | None]], room: list[int], bins: tuple[int, ...] | None) -> None:
    assert assign(costs, room) == bins


def test_an_item_gets_the_earliest_bin_that_leaves_the_others_theirs() -> None:
    assert assign([[1, 1, 1], [1, 1, None], [1, None, None]], [1, 1, 5]) == (2, 1, 0)


def test_the_largest_puzzle_is_decided() -> None:
    """Sixteen requests of different sizes for sixteen devices that have one too few in all: no first-fit finds out."""
    costs = [[count] * 16 for count in range(20, 36)]
    room = [count for count in range(20, 36) if count != 27] + [26]

    assert assign(costs, room) is None


def test_a_pod_claims_a_device_when_it_can() -> None:
    requirement = placement_request(b.deployment()).requirement
    pools = clusters.read(b.cluster("a", b.pool("p", b.synthetic("141Gi"), b.gpu("141Gi")))).pools
    found = match(requirement.engines[0].members[0], pools.profile.offers[0])

    assert isinstance(found, Match)
    assert [(claim.name, claim.device_class, claim.count, claim.selectors) for claim in found.claims] == [
        ("gpu", b.GPU, 1, (b.M141,))
    ]


def test_equal_contents_are_worked_out_once() -> None:
    match.cache_clear()
    hosts.cache_clear()
    for name in "abc":
        read = clusters.read(b.cluster(name, b.pool("x"), b.pool("y", b.gpu("80Gi"))))
        requirement = placement_request(
            b.deployment(b.engine(b.request(b.memory("77Gi"))), name=f"model-{name}")
        ).requirement
        assert isinstance(hosts(requirement.engines, read.pools.profile), Hosts)

    assert (hosts.cache_info().misses, match.cache_info().misses) == (1, 2)
