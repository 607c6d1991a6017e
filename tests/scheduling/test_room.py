"""Pods are packed onto the nodes of a shared pool, and never onto a node that has not enough left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.placement import Claim
from modelplane_operator.scheduling import cluster as clusters
from modelplane_operator.scheduling import placement as placements
from modelplane_operator.scheduling import prose
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.reasons import Fragmented, TooSmall, TooSmallNode
from modelplane_operator.scheduling.requirement import placement_request
from modelplane_operator.scheduling.room import PodShape, PodsOn, Room
from modelplane_operator.scheduling.schedule import schedule
from tests.support import builders as b

GPUS = 8
NOW = b.EPOCH


def node_of(pool: b.Manifest) -> clusters.SharedNode:
    """The node of a pool, as the scheduler reads it."""
    node = clusters.read(b.cluster("a", pool)).pools.shared[0]
    assert node is not None
    return node


def pod(devices: int, *, amounts: clusters.Amount = clusters.NOTHING_SAID) -> PodShape:
    """A pod that claims so many devices of the builders' class."""
    return PodShape((Claim("gpu", "gpu.nvidia.com", devices, ()),), amounts)


NODE = node_of(b.pool("x", b.gpu(count=GPUS), shared=True))


def room(nodes: int, *pods: tuple[int, str]) -> Room:
    """So many nodes of eight devices, with pods by their devices and nodes."""
    return Room.of(NODE, nodes, [(PodsOn("x", pod(devices), name), 1) for devices, name in pods])


# An independent model ------------------------------------------------------------------------------------------------


def can_pack(sizes: Sequence[int], left: Sequence[int]) -> bool:
    """True if pods of these sizes fit, whichever way: the largest first, on each node that differs."""
    if not sizes:
        return True
    first, *others = sorted(sizes, reverse=True)
    return any(
        can_pack(others, [*left[:index], left[index] - first, *left[index + 1 :]])
        for index in {left.index(size) for size in left if size >= first}
    )


@dataclass(frozen=True)
class Life:
    """Pods that arrive one after another, of which some are observed on nodes of the cluster's own choice."""

    nodes: int
    sizes: Sequence[int]
    choices: Sequence[int]


lives = st.builds(
    Life,
    st.integers(1, 4),
    st.lists(st.sampled_from((1, 1, 2, 2, 3, 4, 5, 8)), min_size=1, max_size=14),
    st.lists(st.integers(0, 5), min_size=14, max_size=14),
)


def play(life: Life) -> tuple[int, int]:
    """Return the devices that were placed, and those that the independent model would have placed."""
    left = [GPUS] * life.nodes  # what the cluster's nodes have left by observed pods
    observed: list[tuple[int, str]] = []
    planned: list[int] = []
    placed = possible = 0
    for size, choice in zip(life.sizes, life.choices, strict=False):
        now = room(life.nodes, *observed, *((other, "") for other in planned))
        fits, could = now.fits(((pod(size), 1),)), can_pack([*planned, size], left)
        # Where the cluster has taken a node that the plan needs, the pods that wait for it say nothing of this one.
        assert could or not fits or not can_pack(planned, left), "placed although no way of packing it exists"
        possible += size * could
        if not fits:
            continue
        placed += size
        planned.append(size)
        if choice < life.nodes and left[choice] >= size:  # the cluster's scheduler may choose any node with room
            planned.remove(size)
            left[choice] -= size
            observed.append((size, f"node-{choice}"))
    return placed, possible


@settings(deadline=None)
@given(lives)
def test_nothing_is_placed_that_cannot_run(life: Life) -> None:
    play(life)


def test_the_plan_uses_nearly_all_that_can_be_used() -> None:
    """Within five percent on average over lives without observed pods, in which nothing but the plan decides."""
    random = Random(22)  # noqa: S311  (no secret)
    results = [
        play(Life(random.randint(1, 4), [random.choice((1, 1, 2, 2, 3, 4, 5, 8)) for _ in range(14)], [9] * 14))
        for _ in range(300)
    ]

    assert sum(placed for placed, _ in results) >= 0.95 * sum(possible for _, possible in results)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.sampled_from(("", "", "n1", "n2"))), max_size=8))
def test_the_order_of_pods_does_not_matter(pods: list[tuple[int, str]]) -> None:
    assert room(3, *pods) == room(3, *sorted(pods)) == room(3, *reversed(pods))


@settings(deadline=None)
@given(st.lists(st.integers(1, 8), max_size=6), st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_what_is_charged_can_be_released(before: list[int], more: list[int]) -> None:
    had = room(4, *((size, "") for size in before))
    added = [(PodsOn("x", pod(size)), 1) for size in more]

    assert had.charge(added).charge((key, -number) for key, number in added) == had


# Nodes ---------------------------------------------------------------------------------------------------------------


def test_small_pods_fill_broken_nodes_first() -> None:
    assert room(3, (3, ""), (1, ""), (2, "")).free_devices == ((8, 2), (2, 1))


def test_a_pod_does_not_fit_although_the_sum_would() -> None:
    scattered = room(4, (5, "a"), (5, "b"), (5, "c"), (5, "d"))

    assert scattered.free_devices == ((3, 4),)
    assert not scattered.fits(((pod(4), 1),))
    assert scattered.fits(((pod(3), 4),))
    assert not scattered.fits(((pod(3), 5),))


def test_a_node_that_no_longer_counts_leaves_nothing_for_others() -> None:
    """Two nodes have pods and one is counted: the fuller of them is."""
    assert room(1, (2, "a"), (6, "b")).free_devices == ((2, 1),)
    assert not room(0, (1, "a")).fits(((pod(1), 1),))


def test_pods_of_a_pool_that_has_shrunk_find_no_room() -> None:
    shrunk = room(1, (8, ""), (4, ""))

    assert shrunk.short == 1
    assert not shrunk.fits(((pod(1), 1),))


def test_memory_limits_as_devices_do() -> None:
    node = node_of(b.pool("x", b.gpu(count=GPUS), shared=True, allocatable={"cpu": "64", "memory": "512Gi"}))
    hungry = pod(1, amounts=clusters.Amount(memory=200 << 30))
    empty = Room.of(node, 1, ())

    assert empty.fits(((hungry, 2),))
    assert not empty.fits(((hungry, 3),))
    assert empty.fits(((hungry, 2), (pod(3), 1)))  # by default it requests half of its share: 96Gi


def test_a_claim_that_several_entries_meet_is_charged_to_each() -> None:
    """The cluster may take either, so a pod that only one of them suits must not count on it."""
    node = node_of(b.pool("x", b.gpu("141Gi", 4), b.gpu("80Gi", 4, name="less"), shared=True))
    both = PodShape((Claim("gpu", "gpu.nvidia.com", 3, (b.memory("80Gi"),)),))
    large = PodShape((Claim("gpu", "gpu.nvidia.com", 2, (b.memory("141Gi"),)),))

    assert not Room.of(node, 1, [(PodsOn("x", both), 1)]).fits(((large, 1),))


def test_a_claim_that_nothing_meets_takes_a_node() -> None:
    gone = PodShape((Claim("gpu", "another.example", 1, ()),))

    assert not Room.of(NODE, 1, [(PodsOn("x", gone), 1)]).fits(((pod(1), 1),))


# Decisions -----------------------------------------------------------------------------------------------------------


def shared_fleet(nodes: int, *replicas: ModelReplica) -> FleetModel:
    """One cluster with a shared pool of nodes with eight devices."""
    fleet = FleetModel()
    fleet.observe_cluster(b.cluster("a", b.pool("x", b.gpu(count=GPUS), nodes=nodes, shared=True)))
    for replica in replicas:
        fleet.observe_replica(replica)
    return fleet


def place_models(fleet: FleetModel, devices: Iterable[int]) -> int:
    """Place one model for each number of devices; return how many were placed."""
    placed = 0
    for number, count in enumerate(devices):
        deployment = b.deployment(b.engine(b.request(count=count)), name=f"model-{number}")
        decision = schedule(placement_request(deployment), fleet, now=NOW)
        for placement in decision.new:
            fleet.observe_replica(b.written(deployment, placement))
        placed += len(decision.new)
    return placed


def test_sixty_four_models_of_one_device_run_on_eight_nodes() -> None:
    fleet = shared_fleet(8)

    assert place_models(fleet, [1] * 65) == 64


def test_a_whole_node_stays_free_for_a_gang() -> None:
    fleet = shared_fleet(8)

    assert place_models(fleet, [1] * 56) == 56
    gang = b.deployment(b.gang([], [b.request(count=8)], nodes=1), name="gang")
    assert len(schedule(placement_request(gang), fleet, now=NOW).new) == 1


def test_models_fill_a_broken_node_before_they_break_one_of_another_cluster() -> None:
    fleet = shared_fleet(2)
    fleet.observe_cluster(b.cluster("b", b.pool("x", b.gpu(count=GPUS), nodes=8, shared=True)))
    place_models(fleet, [1, 1, 1])

    frees = [info.free for name in "ab" if (info := fleet.info(name)) is not None]
    assert frees == [(1,), (8,)]


def test_a_pool_that_becomes_shared_moves_nobody_and_frees_devices() -> None:
    deployment = b.deployment(b.engine(b.request()), replicas=2)
    fleet = FleetModel()
    fleet.observe_cluster(b.cluster("a", b.pool("x", b.gpu(count=GPUS), nodes=2)))
    for placement in schedule(placement_request(deployment), fleet, now=NOW).new:
        fleet.observe_replica(b.written(deployment, placement))
    fleet.observe_cluster(b.cluster("a", b.pool("x", b.gpu(count=GPUS), nodes=2, shared=True)))

    again = schedule(placement_request(deployment), fleet, now=NOW)
    assert (again.new, again.removed, again.retained, again.blocked) == ((), (), (), ())
    assert place_models(fleet, [1] * 20) == 14


def test_observed_nodes_count_and_not_the_plan() -> None:
    """Two pods that the plan would put on one node run on two: no whole node is left."""
    apart = [b.replica("a", of=f"m{n}", pool="x") for n in range(2)]
    fleet = shared_fleet(2, *(on_node(replica, f"node-{n}") for n, replica in enumerate(apart)))

    assert place_models(fleet, [8]) == 0
    assert place_models(shared_fleet(2, *apart), [8]) == 1


def on_node(replica: ModelReplica, node: str) -> ModelReplica:
    """The replica, whose pods are observed on a node."""
    place = {"engine": "main", "role": "Standalone", "node": node, "pods": 1}
    return ModelReplica.parse({**replica.to_manifest(), "status": {"podNodes": [place]}})


def test_a_pod_of_an_earlier_shape_takes_the_rest_of_its_node() -> None:
    held = b.replica("a", pool="x", held='{"x": 2}')
    other = b.replica("a", of="other", pool="x")
    fleet = shared_fleet(3, on_node(held, "node-1"), on_node(other, "node-2"))

    info = fleet.info("a")
    assert info is not None
    assert info.rooms[0] is not None
    assert (info.rooms[0].free_devices, info.rooms[0].short) == (((8, 1), (7, 1)), 0)
    unknown = Room.of(NODE, 1, [*placements.read(held).load.pods.items()])
    assert (unknown.free_devices, unknown.short) == ((), 0)


@pytest.mark.parametrize(
    ("pool", "engine", "reason", "sentence"),
    [
        (
            b.pool("x", b.gpu(count=GPUS), nodes=4, shared=True),
            b.engine(b.request(count=4)),
            Fragmented("main", "x", ((4, 1),), ((3, 4),), 4, 1),
            "engine main needs 4 free devices on one node of pool x; free are 3 on 4 nodes",
        ),
        (
            b.pool("x", b.gpu(count=GPUS), nodes=1, shared=True),
            b.gang([], [b.request(count=8)], nodes=2),
            TooSmall("main", "x", 2, 1),
            "engine main needs 2 nodes of one pool, x has 1 in all",
        ),
        (
            b.pool("x", b.gpu(count=GPUS), nodes=1, shared=True, allocatable={"cpu": "1", "memory": "8Gi"}),
            b.with_resources(b.engine(b.request()), {"requests": {"memory": "9Gi"}}),
            TooSmallNode("main", "x", "memory"),
            "engine main requests more memory than a node of pool x has",
        ),
    ],
)
def test_a_refusal_says_what_is_missing(pool: b.Manifest, engine: b.Manifest, reason: object, sentence: str) -> None:
    fleet = FleetModel()
    fleet.observe_cluster(b.cluster("a", pool))
    for number in range(4) if isinstance(reason, Fragmented) else ():
        fives = b.deployment(b.engine(b.request(count=5)), name=f"five-{number}")
        [placement] = schedule(placement_request(fives), fleet, now=NOW).new
        fleet.observe_replica(b.written(fives, placement))

    [refusal] = schedule(placement_request(b.deployment(engine)), fleet, now=NOW).refusals
    assert refusal.reason == reason
    assert prose.reason(refusal.reason) == sentence
    assert replace(refusal, clusters=1) == refusal
