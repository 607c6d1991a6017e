"""Several pods share the clusters: that no two ever hold one, whatever happens, and that none is alone for long."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelplane_operator.api import labels
from modelplane_operator.clients.shares import holder_of, preferred
from modelplane_operator.clients.sharing import AT_ONCE
from modelplane_operator.kube.errors import NotLeading
from modelplane_operator.kube.objects import annotations_of, labels_of
from tests.controllers.virtual_time import run
from tests.support.sharing import ACTS, CLUSTERS, TIMES, Hub, Pod, life, world_of

ALONE = 20.0  # seconds that a cluster may be without a pod


@settings(deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(ACTS), max_size=12), st.sampled_from((0.0, 0.2)))
def test_no_two_pods_ever_hold_one_cluster_and_in_quiet_each_has_one(seed: int, acts: list[str], lossy: float) -> None:
    async def lived() -> None:
        world = await life(seed, acts, lossy)
        while world.is_behind:
            await world.pass_by(1.0)
        await world.pass_by(3 * ALONE)  # what was done by hand last: to a pod's Lease, a cluster's, its new one's
        assert world.holders().keys() == world.hub.clusters
        await world.pass_by(2 * ALONE)
        live = [pod.name for pod in world.pods]
        assert world.holders() == {one: preferred(one, live) for one in world.hub.clusters}
        for pod in world.pods:
            assert pod.connected == pod.holds() <= {*pod.gained}
        assert set(annotated(world.hub)) == world.hub.clusters, "Leases that nobody needs are gone"
        await world.end()

    run(lived())


def annotated(hub: Hub) -> Iterator[str]:
    """The clusters of which there are Leases that can be found: one without its label is nobody's."""
    found = (one for one in hub.objects.values() if labels.SHARING in labels_of(one))
    return (named for one in found if (named := annotations_of(one).get(labels.CLUSTER)))


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("seed", range(8))
def test_the_clusters_of_a_pod_that_goes_have_another_within_twenty_seconds(seed: int, *, clean: bool) -> None:
    async def lived() -> None:
        world = world_of(CLUSTERS, seed=seed)
        first, second, third = world.add(), world.add(), world.add()
        await world.pass_by(40.0)
        gone = first if seed % 2 else second
        lost = gone.holds()
        await world.remove(gone, clean=clean)
        began = asyncio.get_running_loop().time()
        while world.holders().keys() != set(CLUSTERS):
            await world.pass_by(0.1)
        took = asyncio.get_running_loop().time() - began
        assert took < (6.0 if clean else ALONE), f"{sorted(lost)} took {took:.1f} s"
        await world.end()
        assert third not in world.hub.objects

    run(lived())


def test_a_pod_that_is_added_gets_its_part_and_no_cluster_is_alone_meanwhile() -> None:
    async def lived() -> None:
        world = world_of(CLUSTERS)
        first = world.add()
        await world.pass_by(40.0)
        assert first.holds() == set(CLUSTERS)
        second, alone = world.add(), Counter[str]()
        for _ in range(400):
            await world.pass_by(0.1)
            alone.update(set(CLUSTERS) - world.holders().keys())
        assert second.holds() == {one for one in CLUSTERS if preferred(one, ("pod-0", "pod-1")) == "pod-1"} != set()
        assert max(alone.values()) * 0.1 < 6.0
        writes = world.hub.version
        await world.pass_by(100.0)
        assert world.hub.version - writes < 2 * 100 / TIMES.retry + 2, "at rest, pods renew their own Leases alone"
        await world.end()
        assert not [one for one in world.hub.objects.values() if holder_of(one)], "all is given back"

    run(lived())


@pytest.mark.parametrize("lives", [1.0, 16.0, 25.0, 35.0, 60.0])
def test_a_pod_that_ends_again_and_again_leaves_no_cluster_alone_for_long(lives: float) -> None:
    async def lived() -> None:
        world = world_of(CLUSTERS)
        world.add()
        await world.pass_by(40.0)
        alone, longest = Counter[str](), 0
        for _ in range(8):
            ends = world.add()
            for _ in range(int(lives / 0.1)):
                await world.pass_by(0.1)
                alone = Counter({one: alone[one] + 1 for one in set(CLUSTERS) - world.holders().keys()})
                longest = max(longest, *alone.values(), 0)
            await world.remove(ends, clean=False)
        assert longest * 0.1 < (ALONE if lives > TIMES.settled else 0.1)
        await world.end()

    run(lived())


def test_a_hub_that_is_slow_or_away_is_not_listed_anew() -> None:
    """All of it is: thousands of objects, for a hub that has too much to do already."""

    async def lived() -> None:
        world = world_of(CLUSTERS)
        pods = [world.add() for _ in range(3)]
        await world.pass_by(40.0)
        world.hub.lossy = 0.4
        await world.pass_by(100.0)
        for pod in pods:
            pod.cut = True
        await world.pass_by(20.0)
        for pod in pods:
            pod.cut = False
        world.hub.lossy = 0.0
        await world.pass_by(40.0)
        assert [pod.wire.era for pod in pods] == [0, 0, 0]
        assert world.holders().keys() == set(CLUSTERS)
        await world.end()

    run(lived())


def test_after_a_restore_of_the_hub_all_clusters_have_a_pod_again() -> None:
    async def lived() -> None:
        world = world_of(CLUSTERS)
        world.add()
        await world.pass_by(40.0)
        world.add()
        await world.pass_by(40.0)
        world.hub.restore()
        await world.pass_by(2 * ALONE)
        assert world.holders() == {one: preferred(one, ("pod-0", "pod-1")) for one in CLUSTERS}
        await world.end()

    run(lived())


def test_a_cluster_changes_hands_after_the_reconciles_that_run() -> None:
    async def lived() -> None:
        world = world_of(CLUSTERS)
        first = world.add()
        await world.pass_by(40.0)
        moving = next(one for one in CLUSTERS if preferred(one, ("pod-0", "pod-1")) == "pod-1")
        with first.sharing.working(moving) as begins:
            assert begins
            second = world.add()
            while not (over := refused(first, moving)):
                await world.pass_by(0.1)
            first.sharing.check(moving)  # what has begun may go on
            await world.pass_by(1.0)
            assert moving not in second.holds()
            assert over
            await world.pass_by(20.0)  # but not for ever
            with pytest.raises(NotLeading):
                first.sharing.check(moving)
            assert moving in second.holds()
        await world.end()

    run(lived())


def test_a_cluster_changes_hands_after_what_a_reconcile_that_ran_on_has_begun() -> None:
    async def lived() -> None:
        world = world_of(CLUSTERS)
        first = world.add()
        await world.pass_by(40.0)
        moving = next(one for one in CLUSTERS if preferred(one, ("pod-0", "pod-1")) == "pod-1")
        with first.sharing.working(moving):
            second = world.add()
            while not refused(first, moving):
                await world.pass_by(0.1)
            first.busy.add(moving)  # a run of Helm
        await world.pass_by(60.0)
        assert (moving in first.holds(), moving in second.holds()) == (True, False)
        first.busy.clear()
        await world.pass_by(6.0)
        assert moving in second.holds()
        await world.end()

    run(lived())


@pytest.mark.parametrize(("field", "number"), [("leaseDurationSeconds", 86_400), ("leaseTransitions", 2**31 - 1)])
def test_a_number_that_somebody_writes_keeps_no_cluster_alone_for_long(field: str, number: int) -> None:
    async def lived() -> None:
        world = world_of(["cluster-0"])
        world.add()
        world.add()
        await world.pass_by(40.0)
        holder = next(pod for pod in world.pods if pod.holds())
        lease = world.hub.of("cluster-0")
        assert lease
        world.hub.put({**lease, "spec": {**lease["spec"], field: number}})
        await world.remove(holder, clean=False)
        await world.pass_by(4 * TIMES.duration + ALONE)
        assert world.holders().keys() == {"cluster-0"}
        lease = world.hub.of("cluster-0")
        assert lease
        assert lease["spec"]["leaseTransitions"] < 2**31
        await world.end()

    run(lived())


def test_who_stops_while_the_hub_is_slow_is_at_once_nobody_who_should_have_clusters() -> None:
    async def lived() -> None:
        world = world_of((f"cluster-{number}" for number in range(200)), slow=0.2)
        first, second = world.add(), world.add()
        await world.pass_by(90.0)
        assert first.sharing.count
        assert second.sharing.count
        before = second.sharing.count
        await world.remove(first, clean=True)
        await world.pass_by(8.0)
        assert second.sharing.count > before, "what was given back in time is taken"
        await second.end(clean=True)

    run(lived())


def refused(pod: Pod, cluster: str) -> bool:
    with pod.sharing.working(cluster) as begins:
        return not begins


def test_of_many_clusters_few_change_hands_at_once() -> None:
    async def lived() -> None:
        world = world_of((f"cluster-{number}" for number in range(200)), slow=0.01)
        first = world.add()
        await world.pass_by(40.0)
        assert first.sharing.count == 200
        second, counts = world.add(), [0]
        while second.sharing.count < 80:
            await world.pass_by(0.1)
            counts.append(second.sharing.count)
        assert max(after - before for before, after in itertools.pairwise(counts)) <= AT_ONCE
        await world.end()

    run(lived())


def test_a_pod_tells_of_clusters_of_which_it_has_not_begun_a_reconcile() -> None:
    """One that slept through its Lease has let go of what was due; others may not have noticed at all."""

    async def lived() -> None:
        world = world_of(CLUSTERS)
        pod = world.add()
        await world.pass_by(40.0)
        pod.cut = True
        await world.pass_by(14.0)
        assert refused(pod, CLUSTERS[0])
        pod.gained.clear()
        pod.cut = False
        await world.pass_by(ALONE + TIMES.duration)
        assert {*pod.gained} == set(CLUSTERS) == pod.holds()
        await pod.end(clean=True)

    run(lived())


def test_an_object_of_a_new_cluster_does_not_wait_for_a_lease_to_end() -> None:
    async def lived() -> None:
        world = world_of(())
        pod = world.add()
        await world.pass_by(20.0)
        world.hub.clusters.add("cluster-0")
        await world.pass_by(6.0)
        assert pod.holds() == {"cluster-0"}
        world.hub.clusters.clear()
        await world.pass_by(10.0)
        assert not [*annotated(world.hub)], "it is deleted with the last object"
        world.hub.clusters.add("cluster-0")
        await world.pass_by(6.0)
        assert pod.holds() == {"cluster-0"}
        await pod.end(clean=True)

    run(lived())


def test_the_leader_is_connected_to_what_it_needs_whoever_holds_that() -> None:
    async def lived() -> None:
        world = world_of(CLUSTERS)
        leader, other = world.add(), world.add()
        await world.pass_by(40.0)
        assert leader.holds()
        world.hub.needs.update({*leader.holds(), CLUSTERS[0]})
        await world.pass_by(5.0)
        assert leader.connected == leader.holds() | world.hub.needs
        assert other.connected == other.holds()

        leader.leads, other.leads = False, True
        other.sharing.tell()
        assert other.connected == other.holds() | world.hub.needs, "whoever begins to lead waits for no look"
        await world.pass_by(5.0)
        assert leader.connected == leader.holds()
        await world.end()

    run(lived())
