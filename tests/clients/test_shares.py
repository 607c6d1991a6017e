"""Which pod should have which cluster, and what a pod makes of the Leases that it sees."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.api import labels
from modelplane_operator.clients.shares import Shares, cluster_lease, is_given_back, member_lease, preferred
from modelplane_operator.kube.objects import Manifest, key_of
from tests.support.sharing import LEASE, TIMES

# Who should have which ------------------------------------------------------------------------------------------------


def test_clusters_are_spread_over_pods_and_few_move_when_one_comes() -> None:
    clusters = [f"cluster-{number}" for number in range(1000)]
    two, three = ({one: preferred(one, pods) for one in clusters} for pods in (("a", "b"), ("a", "b", "c")))

    assert all(400 < count < 600 for count in Counter(two.values()).values())
    assert all(270 < count < 400 for count in Counter(three.values()).values())
    assert {three[one] for one in clusters if two[one] != three[one]} == {"c"}, "nothing moves between the others"


@given(st.sets(st.text(min_size=1), min_size=1, max_size=5), st.text())
def test_all_pods_agree_on_who_should_have_a_cluster(pods: set[str], cluster: str) -> None:
    who = preferred(cluster, sorted(pods))

    assert who in pods
    assert who == preferred(cluster, sorted(pods, reverse=True))
    assert all(preferred(cluster, pods - {other}) == who for other in pods - {str(who)})


def test_nobody_should_have_a_cluster_where_there_are_no_pods() -> None:
    assert preferred("cluster", ()) is None


# What Leases tell -----------------------------------------------------------------------------------------------------


def shares(me: str = "us") -> Shares:
    """What a pod knows that has looked for a while, and seen nothing yet."""
    known = Shares(LEASE, me, TIMES)
    look(known, at=-1.0, since=-21.0)
    return known


def member(who: str, version: str = "1", duration: int = 15) -> Manifest:
    spec = {"holderIdentity": who, "leaseDurationSeconds": duration}
    return {"metadata": {"name": member_lease(LEASE.name, who), "resourceVersion": version}, "spec": spec}


def of_cluster(holder: str, version: str = "1", duration: int = 15, **spec: Any) -> Manifest:
    metadata = {"name": cluster_lease(LEASE.name, "berlin"), "annotations": {labels.CLUSTER: "berlin"}}
    return {
        "metadata": {**metadata, "resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": duration, **spec},
    }


def look(known: Shares, *found: Manifest, at: float, since: float | None = None) -> None:
    """At that moment; `since`: and all the time since then, with nothing else to be seen."""
    for moment in (
        (at,) if since is None else (*itertools.takewhile(lambda one: one < at, itertools.count(since, 5)), at)
    ):
        known.see(found, ("berlin",), asked=moment, now=moment + 0.1, until=moment + TIMES.deadline)


@pytest.mark.parametrize(
    ("lease", "at_once", "later"),
    [
        (of_cluster("", duration=1), True, True),
        (of_cluster(""), False, True),  # somebody has taken the holder out, who may not know it yet
        (of_cluster("them"), False, False),  # they live
        (of_cluster("gone"), False, True),
        (of_cluster("us"), False, True),  # by somebody else's doing: whoever had it may not know it yet
    ],
    ids=["given back", "taken from its holder", "held", "held by nobody that is there", "given to us"],
)
def test_a_cluster_is_taken_when_its_holder_cannot_work_on_it_any_more(
    lease: Manifest,
    at_once: bool,  # noqa: FBT001
    later: bool,  # noqa: FBT001
) -> None:
    known = shares()
    look(known, lease, member("them"), at=0.0)
    assert known.is_free("berlin") is at_once
    look(known, lease, member("them"), at=10.0, since=5.0)
    look(known, lease, member("them", "2"), at=15.0)
    assert not known.is_free("berlin") or at_once, "it was first seen a little after that was asked for"
    look(known, lease, member("them", "3"), at=15.2)
    assert known.is_free("berlin") is later


def test_a_pod_that_could_not_look_takes_nothing_by_what_it_saw_long_ago() -> None:
    known = shares()
    look(known, of_cluster("them"), member("them", "1"), at=0.0)
    look(known, of_cluster("them"), member("them", "2"), at=60.0)
    assert not known.is_free("berlin")
    assert known.live == {"us", "them"}


def test_a_pod_that_could_not_look_for_as_long_as_leases_last_takes_nothing_back_at_once() -> None:
    """Others may have taken what was its own, and a hub that was restored since may say that it still is."""
    known = shares()
    look(known, of_cluster("", duration=1), at=2.0)
    ours = known.taken("berlin", "2026-01-01T00:00:00Z")
    look(known, ours, at=16.0)
    assert known.is_free("berlin"), "until then nobody can have taken it"
    look(known, ours, at=32.0)
    assert not known.is_free("berlin")
    look(known, ours, at=47.0, since=34.0)
    assert not known.is_free("berlin")
    look(known, ours, at=47.2)
    assert known.is_free("berlin")


def test_a_pod_that_has_just_begun_takes_nothing_by_what_a_backup_may_say() -> None:
    known = Shares(LEASE, "us", TIMES)
    look(known, of_cluster("", duration=1), at=15.0, since=0.0)
    assert not known.is_free("berlin")
    look(known, of_cluster("", duration=1), at=15.2)
    assert known.is_free("berlin")


def test_a_pod_whose_member_lease_lasts_longer_is_believed() -> None:
    known = shares()
    look(known, of_cluster("them"), member("them", duration=60), at=59.0, since=0.0)
    assert not known.is_free("berlin")


def test_after_an_outage_of_the_hub_nobody_counts_as_gone_who_may_only_be_late() -> None:
    known = shares()
    for at in (0.0, 2.0, 4.0):
        look(known, of_cluster("them"), member("them", str(at)), at=at)
    look(known, of_cluster("them"), member("them", "4.0"), at=64.0)
    assert known.live == {"us", "them"}
    assert not known.is_free("berlin")
    for at in (66.0, 70.0, 75.0, 80.0):
        look(known, of_cluster("them"), member("them", "4.0"), at=at)
    assert known.live == {"us"}
    assert known.is_free("berlin")


def test_a_lease_that_has_just_been_given_to_somebody_who_is_no_more_is_not_free_yet() -> None:
    """Whoever had it before may not have looked since."""
    known = shares()
    look(known, of_cluster("gone"), at=15.0, since=0.0)
    look(known, of_cluster("them", "2"), member("them"), at=35.0, since=20.0)
    look(known, of_cluster("gone", "3"), member("them", "2"), at=40.0)
    assert not known.is_free("berlin")
    look(known, of_cluster("gone", "3"), member("them", "3"), at=56.0, since=45.0)
    assert known.is_free("berlin")


def test_a_copy_of_somebody_elses_lease_is_nobodys() -> None:
    known = shares()
    copy = {**member("them"), "metadata": {"name": "copy", "resourceVersion": "9"}}
    look(known, member("them"), copy, at=10.0, since=0.0)
    look(known, member("them", "2"), copy, at=20.0, since=15.0)
    assert known.live == {"us", "them"}


def test_keys_of_leases_are_where_the_leaders_is() -> None:
    made = shares().new("team/stack")
    assert key_of(made).namespace == LEASE.namespace
    assert made["metadata"]["labels"] == {labels.SHARING: LEASE.name}
    assert is_given_back(made)
