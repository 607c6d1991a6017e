"""Several pods share the clusters: who should have which, and that no two ever hold one, whatever happens.

The pods are the real ones, in virtual time; of the hub there is as much as Leases need, and it answers when it likes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelplane_operator.api import labels
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.lease import Times
from modelplane_operator.clients.shares import (
    Shares,
    cluster_lease,
    holder_of,
    is_given_back,
    member_lease,
    preferred,
)
from modelplane_operator.clients.sharing import AT_ONCE, Around, Sharing
from modelplane_operator.kube.errors import AlreadyExists, Conflict, NotFound, NotLeading, Unreachable
from modelplane_operator.kube.objects import Key, Manifest, annotations_of, key_of, labels_of
from tests.controllers.virtual_time import run

LEASE = Key("modelplane-system", "modelplane-operator")
TIMES = Times()
ALONE = 20.0  # seconds that a cluster may be without a pod
CLUSTERS = tuple(f"cluster-{number}" for number in range(6))


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
    return Shares(LEASE, me, TIMES)


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


# In the course of time ------------------------------------------------------------------------------------------------


@dataclass
class Hub:
    """Leases, as an API server keeps them; each request takes a while before and after its effect, or is lost."""

    chance: Random
    slow: float = 0.5
    lossy: float = 0.0
    objects: dict[str, Manifest] = field(default_factory=dict[str, Manifest])
    clusters: set[str] = field(default_factory=set[str])
    needs: set[str] = field(default_factory=set[str])
    version: int = 0
    past: deque[tuple[int, dict[str, Manifest]]] = field(
        default_factory=lambda: deque([(0, dict[str, Manifest]())], maxlen=200)
    )
    """What there was at each version: a watch may be as far behind as it likes."""

    def put(self, manifest: Manifest) -> Manifest:
        self.version += 1
        uid = manifest["metadata"].get("uid") or str(self.version)
        metadata = {**manifest["metadata"], "resourceVersion": str(self.version), "uid": uid}
        self.objects[metadata["name"]] = stored = {**deepcopy(manifest), "metadata": metadata}
        self.past.append((self.version, dict(self.objects)))
        return deepcopy(stored)

    def drop(self, name: str) -> None:
        self.version += 1
        del self.objects[name]
        self.past.append((self.version, dict(self.objects)))

    def of(self, cluster: str) -> Manifest | None:
        return self.objects.get(cluster_lease(LEASE.name, cluster))


@dataclass
class Wire:
    """What one pod has of the hub."""

    hub: Hub
    pod: Pod
    seen: int = 0
    """How far its watch has come."""

    async def travel(self) -> None:
        await asyncio.sleep(self.hub.chance.random() * self.hub.slow)
        while self.pod.stopped:  # noqa: ASYNC110 - time alone goes by
            await asyncio.sleep(0.1)
        if self.pod.cut or self.hub.chance.random() < self.hub.lossy:
            await asyncio.sleep(self.hub.chance.random() * 4)
            raise Unreachable("lost")

    async def leases(self, version: int) -> Iterable[Manifest]:
        """As they were at some moment since that version, and none before what this pod has seen already."""
        await self.travel()
        since = max(version, self.seen)
        self.seen, objects = self.hub.chance.choice([one for one in self.hub.past if one[0] >= since])
        await self.travel()
        return [deepcopy(one) for one in objects.values() if labels.SHARING in (one["metadata"].get("labels") or {})]

    async def find(self, _: Any, key: Key) -> Manifest | None:
        await self.travel()
        found = deepcopy(self.hub.objects.get(key.name))
        await self.travel()
        return found

    async def create(self, manifest: Manifest) -> Manifest:
        await self.travel()
        if manifest["metadata"]["name"] in self.hub.objects:
            raise AlreadyExists("it is there")
        stored = self.hub.put(manifest)
        await self.travel()
        return stored

    async def replace(self, manifest: Manifest) -> Manifest:
        await self.travel()
        live = self.hub.objects.get(manifest["metadata"]["name"])
        if live is None:
            raise NotFound("it is gone")
        if live["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise Conflict("it is another one")
        stored = self.hub.put(manifest)
        await self.travel()
        return stored

    async def delete(self, _: Any, key: Key, *, uid: str, version: str | None = None) -> None:
        await self.travel()
        live = self.hub.objects.get(key.name)
        if live is None:
            raise NotFound("it is gone")
        if live["metadata"]["uid"] != uid or version not in {None, live["metadata"]["resourceVersion"]}:
            raise Conflict("it is another one")
        self.hub.drop(key.name)
        await self.travel()


@dataclass(eq=False)
class Pod:
    """One pod, whose clock is its own; what it reconciles takes a while."""

    hub: Hub
    name: str
    offset: float
    leads: bool = False
    stopped: bool = False
    cut: bool = False
    connected: set[str] = field(default_factory=set[str])
    gained: list[str] = field(default_factory=list[str])
    busy: set[str] = field(default_factory=set[str])
    sharing: Sharing = field(init=False)
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        def connects(cluster: str) -> None:
            self.connected.symmetric_difference_update({cluster})

        wire, chance = Wire(self.hub, self), self.hub.chance.random
        around = Around(
            wire.leases,
            lambda: set(self.hub.clusters),
            lambda: self.leads,
            lambda: self.hub.needs,
            lambda cluster: cluster in self.busy,
            connects,
            lambda found: self.gained.extend(sorted(found)),
        )
        self.sharing = Sharing(
            lambda: cast("Kube", wire), LEASE, self.name, self.clock, chance, TIMES, around, grace=3.0
        )

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.offset

    def start(self) -> None:
        self.task = asyncio.create_task(self.sharing.run())

    async def end(self, *, clean: bool) -> None:
        assert self.task is not None
        if not clean:
            self.cut = True
            self.sharing.member.lose()
        self.task.cancel()
        await asyncio.wait({self.task})

    def holds(self) -> set[str]:
        return {one for one in CLUSTERS if self.sharing.holds(one)}


@dataclass
class World:
    """A hub and the pods that share its clusters; the first leads, and another one after it."""

    hub: Hub
    pods: list[Pod] = field(default_factory=list[Pod])
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self) -> Pod:
        number = next(self.numbers)
        pod = Pod(self.hub, f"pod-{number}", self.hub.chance.random() * 1000, leads=not self.pods)
        self.pods.append(pod)
        pod.start()
        return pod

    async def remove(self, pod: Pod, *, clean: bool) -> None:
        self.pods.remove(pod)
        await pod.end(clean=clean)
        if pod.leads and self.pods:
            self.pods[0].leads = True

    def check(self) -> None:
        """No two pods hold one cluster, and all that hold one are connected to it, or about to be."""
        held = Counter(cluster for pod in self.pods for cluster in pod.holds())
        doubly = {one: [pod.name for pod in self.pods if one in pod.holds()] for one in held if held[one] > 1}
        assert not doubly, f"at {asyncio.get_running_loop().time():.2f} s"

    async def pass_by(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.1)):
            await asyncio.sleep(0.1)
            self.check()

    async def end(self) -> None:
        """Have all pods stop."""
        for pod in self.pods:
            await pod.end(clean=True)

    def holders(self) -> dict[str, str]:
        return {cluster: pod.name for pod in self.pods for cluster in pod.holds()}


def world_of(clusters: Iterable[str], *, seed: int = 3, slow: float = 0.1) -> World:
    """A hub that loses nothing, with these clusters and no pods yet."""
    world = World(Hub(Random(seed), slow=slow))  # noqa: S311 - to be replayed
    world.hub.clusters.update(clusters)
    return world


def deletes(hub: Hub, chance: Random) -> None:
    if hub.objects:
        hub.drop(chance.choice(sorted(hub.objects)))


def takes_out(hub: Hub, chance: Random) -> None:
    edit(hub, chance, "")


def edit(hub: Hub, chance: Random, holder: str) -> None:
    """As kubectl edit would: one field, of whichever Lease that somebody has."""
    found = sorted(name for name, one in hub.objects.items() if not is_given_back(one))
    if found:
        one = hub.objects[chance.choice(found)]
        hub.put({**one, "spec": {**one["spec"], "holderIdentity": holder}})


def strips(hub: Hub, chance: Random) -> None:
    """Take off what a cluster's Lease is found by."""
    found = sorted(name for name, one in hub.objects.items() if labels.CLUSTER in annotations_of(one))
    if found:
        one = hub.objects[chance.choice(found)]
        gone = chance.choice(("labels", "annotations"))
        hub.put({**one, "metadata": {part: value for part, value in one["metadata"].items() if part != gone}})


HANDS: dict[str, Callable[[Hub, Random], None]] = {
    "deletes": deletes,
    "takes out": takes_out,
    "strips": strips,
    "gives to": lambda hub, chance: edit(hub, chance, f"pod-{chance.randint(0, 3)}"),
    "touches": lambda hub, chance: [hub.put(hub.objects[name]) for name in sorted(hub.objects)[:2]] and None,
}
ACTS = ("kill", "stop", "add", "pause", "cut", "cluster", "wait", *HANDS)


async def life(seed: int, acts: Collection[str], lossy: float) -> World:
    chance = Random(seed)  # noqa: S311 - to be replayed
    world = World(Hub(chance, lossy=lossy))
    world.hub.clusters.update(CLUSTERS[:4])
    world.add()
    world.add()
    await world.pass_by(30.0)
    for act in acts:
        pod = chance.choice(world.pods)
        match act:
            case "kill" | "stop" if len(world.pods) > 1:
                await world.remove(pod, clean=act == "stop")
            case "add" if len(world.pods) < 4:
                world.add()
            case "pause":
                pod.stopped = True
            case "cut":
                pod.cut = True
            case "cluster":
                world.hub.clusters ^= {chance.choice(CLUSTERS)}
            case hand if hand in HANDS:
                HANDS[hand](world.hub, chance)
            case _:
                pass
        await world.pass_by(chance.choice((0.3, 2.0, 9.0, 16.0)))
        if chance.random() < 0.7:
            for one in world.pods:
                one.stopped = one.cut = False
    for one in world.pods:
        one.stopped = one.cut = False
    world.hub.lossy = 0.0
    return world


@settings(deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(ACTS), max_size=12), st.sampled_from((0.0, 0.2)))
def test_no_two_pods_ever_hold_one_cluster_and_in_quiet_each_has_one(seed: int, acts: list[str], lossy: float) -> None:
    async def lived() -> None:
        world = await life(seed, acts, lossy)
        await world.pass_by(3 * ALONE)  # what was done by hand last: to a pod's Lease, a cluster's, its new one's
        holders = world.holders()
        assert holders.keys() == world.hub.clusters
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
        await world.pass_by(15.0)
        assert {*pod.gained} == set(CLUSTERS) == pod.holds()
        await pod.end(clean=True)

    run(lived())


def test_an_object_of_a_new_cluster_does_not_wait_for_a_lease_to_end() -> None:
    async def lived() -> None:
        world = world_of(())
        pod = world.add()
        await world.pass_by(5.0)
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


def test_keys_of_leases_are_where_the_leaders_is() -> None:
    made = shares().new("team/stack")
    assert key_of(made).namespace == LEASE.namespace
    assert made["metadata"]["labels"] == {labels.SHARING: LEASE.name}
    assert is_given_back(made)
