"""What holds of every decision, whatever the fleet and the deployment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from random import Random

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kubeloop.condition_types import Ready, is_true
from modelplane_operator.api.inference_cluster import GpuPool, InferenceCluster, PublishedDevice
from modelplane_operator.api.model_deployment import DeployedEngine, DeviceRequest, Member, ModelDeployment
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.scheduling import cluster as clusters
from modelplane_operator.scheduling import placement as placements
from modelplane_operator.scheduling import prose
from modelplane_operator.scheduling import schedule as schedules
from modelplane_operator.scheduling.assignment import assign
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.reasons import (
    ClusterTerminating,
    Displaced,
    Lost,
    Outdated,
    ScaledDown,
    Spare,
    Tainted,
)
from modelplane_operator.scheduling.requirement import placement_request
from modelplane_operator.scheduling.schedule import schedule
from modelplane_operator.scheduling.survey import Fit, answer
from tests.support import builders as b
from tests.support import strategies as some
from tests.support.plain_fleet import PlainFleet

NOW = b.EPOCH + timedelta(hours=1)
MOVING = ClusterTerminating | Tainted | Outdated | Lost | Displaced
EXAMPLES = settings(deadline=None, max_examples=50)


@dataclass(frozen=True)
class World:
    """A fleet and all that runs on it."""

    clusters: Sequence[InferenceCluster]
    replicas: Sequence[ModelReplica] = ()

    @property
    def fleet(self) -> PlainFleet:
        return PlainFleet.of(
            (clusters.read(cluster) for cluster in self.clusters),
            (placements.read(replica) for replica in self.replicas),
        )

    def decide(
        self, deployment: ModelDeployment, staged: frozenset[str] = frozenset(), coming: frozenset[str] = frozenset()
    ) -> Decision:
        return schedule(replace(placement_request(deployment), staged=staged, coming=coming), self.fleet, now=NOW)

    def after(self, deployment: ModelDeployment, decision: Decision) -> World:
        """The world once the decision is carried out, and before anything that goes is gone."""
        fleet = self.fleet
        kept = {replica.key: replica for replica in self.replicas}
        for placement in decision.placements:
            replica = b.written(deployment, placement)
            was = kept.get(replica.key)
            ready = is_true(was.conditions, Ready) if was else None
            before = placements.read(was) if was else None
            info = fleet.info(placement.cluster)
            made = b.written(deployment, placement, before=before, ready=ready, shared=info.shared if info else ())
            waits = was is not None and was.status is not None and was.status.unschedulable_since is not None
            kept[replica.key] = b.unschedulable(made) if waits else made
        for removal in decision.removed:
            kept[removal.replica.key] = b.terminating(kept[removal.replica.key])
        return replace(self, replicas=tuple(kept.values()))

    def but(self, states: Sequence[Callable[[ModelReplica], ModelReplica]]) -> World:
        """The world where the replicas have these states."""
        return replace(self, replicas=tuple(state(one) for state, one in zip(states, self.replicas, strict=False)))


STATES = st.sampled_from([lambda replica: replica, b.answering, b.unschedulable])


@st.composite
def histories(draw: st.DrawFn) -> tuple[World, ModelDeployment]:
    """A fleet with two deployments on it, of which one and the fleet may have changed since."""
    world = World(draw(some.fleets))
    neighbour = draw(some.deployments("neighbour"))
    world = world.after(neighbour, world.decide(neighbour))
    deployment = draw(some.deployments())
    world = world.after(deployment, world.decide(deployment))
    world = world.but(draw(st.lists(STATES, min_size=len(world.replicas), max_size=len(world.replicas))))
    if draw(st.booleans()):
        world = replace(world, clusters=draw(some.fleets))
    if draw(st.booleans()):
        deployment = draw(some.deployments())
    return world, deployment


def usage(replicas: Iterable[ModelReplica]) -> Counter[tuple[str, str]]:
    """Nodes taken, by cluster and pool."""
    used = Counter[tuple[str, str]]()
    for replica in map(placements.read, replicas):
        used.update({(replica.cluster, pool): nodes for pool, nodes in replica.charges.items()})
    return used


def identities(decision: Decision) -> set[tuple[str, int]]:
    held = {(held.replica.cluster, held.replica.index) for held in decision.retained}
    return {(placement.cluster, placement.index) for placement in decision.placements} | held


@EXAMPLES
@given(histories(), st.randoms(use_true_random=False))
def test_the_order_of_things_does_not_matter(history: tuple[World, ModelDeployment], random: Random) -> None:
    world, deployment = history
    shuffled = World(
        random.sample(world.clusters, len(world.clusters)), random.sample(world.replicas, len(world.replicas))
    )

    assert shuffled.decide(deployment) == world.decide(deployment)


@EXAMPLES
@given(histories())
def test_deciding_again_changes_nothing(history: tuple[World, ModelDeployment]) -> None:
    world, deployment = history
    first = world.decide(deployment)
    again = world.after(deployment, first).decide(deployment)

    assert (again.placements, again.retained, again.new, again.removed) == (first.placements, first.retained, (), ())


@EXAMPLES
@given(histories(), st.randoms(use_true_random=False))
def test_weights_that_are_there_change_where_replicas_go_and_never_how_many(
    history: tuple[World, ModelDeployment], random: Random
) -> None:
    world, deployment = history
    names = sorted(one.metadata.name for one in world.clusters)
    staged, coming = (frozenset(random.sample(names, random.randint(0, len(names)))) for _ in range(2))
    plain, decision = world.decide(deployment), world.decide(deployment, staged, coming - staged)
    after = world.after(deployment, decision)

    assert len(decision.new) == len(plain.new)
    for nearer, where in ((staged, "are"), (staged | coming, "are to come")):
        farther = [placement for placement in decision.new if placement.cluster not in nearer]
        spare = {found.cluster.name for name in nearer if (found := after.fleet.info(name)) and fits(deployment, found)}
        assert not (farther and spare), f"there was room where the weights {where}"
    assert after.decide(deployment, staged, coming - staged).new == ()
    for everywhere in ((frozenset(names), frozenset[str]()), (frozenset[str](), frozenset(names))):
        assert world.decide(deployment, *everywhere).new == plain.new


def fits(deployment: ModelDeployment, info: ClusterInfo) -> bool:
    return isinstance(answer(placement_request(deployment).requirement, info), Fit)


@EXAMPLES
@given(histories())
def test_no_pool_is_asked_for_more_nodes_than_it_has(history: tuple[World, ModelDeployment]) -> None:
    world, deployment = history
    before = usage(world.replicas)
    after = usage(world.after(deployment, world.decide(deployment)).replicas)
    nodes = {
        (cluster.metadata.name, pool.name): pool.nodes or 0
        for cluster in world.clusters
        for pool in (cluster.status.gpu_pools if cluster.status else ())
        if pool.sharing != "Device"
    }

    assert not {pool for pool, used in after.items() if pool in nodes and used > max(nodes[pool], before[pool])}


@EXAMPLES
@given(histories())
def test_no_node_is_asked_for_more_devices_than_it_has(history: tuple[World, ModelDeployment]) -> None:
    """Pods that find no room are those that found none before: a pool has shrunk, or its class has changed."""
    world, deployment = history
    before = without_room(world)
    after = without_room(world.after(deployment, world.decide(deployment)))

    assert not {pool for pool, pods in after.items() if pods > before[pool]}


def without_room(world: World) -> Counter[tuple[str, str]]:
    """Pods for which no node of their shared pool has room."""
    infos = [info for cluster in world.clusters if (info := world.fleet.info(cluster.metadata.name)) is not None]
    rooms = ((info.cluster.name, pool, info.room_in(pool)) for info in infos for pool in info.cluster.pools.names)
    return Counter({(cluster, pool): room.short for cluster, pool, room in rooms if room})


@EXAMPLES
@given(histories())
def test_every_replica_is_accounted_for_once(history: tuple[World, ModelDeployment]) -> None:
    world, deployment = history
    decision = world.decide(deployment)
    new = {(placement.cluster, placement.index) for placement in decision.new}
    kept = sorted([*(identities(decision) - new), *((r.replica.cluster, r.replica.index) for r in decision.removed)])
    ours = [r for r in map(placements.read, world.replicas) if r.owner == b.OWNER and not r.terminating]

    assert kept == sorted((replica.cluster, replica.index) for replica in ours)


@EXAMPLES
@given(histories())
def test_never_more_than_asked_for(history: tuple[World, ModelDeployment]) -> None:
    world, deployment = history
    decision = world.decide(deployment)

    assert len(decision.placements) + len(decision.retained) + decision.missing == deployment.spec.replicas


@EXAMPLES
@given(histories())
def test_what_moves_has_a_reason_and_what_stays_keeps_its_identity(history: tuple[World, ModelDeployment]) -> None:
    world, deployment = history
    decision = world.decide(deployment)
    moved = [removal for removal in decision.removed if isinstance(removal.reason, MOVING)]
    ours = [r for r in map(placements.read, world.replicas) if r.owner == b.OWNER and not r.terminating]
    too_many = max(len(ours) - deployment.spec.replicas, 0)  # those of them that were to move go first

    assert len(moved) <= len(decision.new) + too_many
    assert not moved or not decision.missing


@EXAMPLES
@given(histories(), some.clusters("new"))
def test_a_new_cluster_evicts_nobody(history: tuple[World, ModelDeployment], cluster: InferenceCluster) -> None:
    world, deployment = history
    assume(world.clusters)
    settled = world.after(deployment, world.decide(deployment))
    now = settled.decide(deployment)
    grown = replace(settled, clusters=(*settled.clusters, cluster)).decide(deployment)
    moved = {(r.replica.cluster, r.replica.index) for r in grown.removed if isinstance(r.reason, MOVING)}
    placed = identities(now) - {(one.cluster, one.index) for one in now.new}  # in place of what moves, and not made yet

    assert placed - moved <= identities(grown)
    assert {removal.replica.key for removal in grown.removed if not isinstance(removal.reason, MOVING)} == set()


@EXAMPLES
@given(histories(), st.integers(0, 5))
def test_scaling_down_keeps_a_subset(history: tuple[World, ModelDeployment], replicas: int) -> None:
    world, deployment = history
    settled = world.after(deployment, world.decide(deployment))
    now = settled.decide(deployment)
    fewer = deployment.model_copy(
        update={"spec": deployment.spec.model_copy(update={"replicas": min(replicas, deployment.spec.replicas)})}
    )
    shrunk = settled.decide(fewer)

    assert identities(shrunk) <= identities(now)
    assert len(identities(shrunk)) == min(len(identities(now)), fewer.spec.replicas)


@EXAMPLES
@given(histories())
def test_victims_are_taken_one_by_one(history: tuple[World, ModelDeployment]) -> None:
    world, deployment = history
    asked = placement_request(deployment)
    mine = [r for r in map(placements.read, world.replicas) if r.owner == asked.owner and not r.terminating]
    infos = {r.cluster: info for r in mine if (info := world.fleet.info(r.cluster)) is not None}
    left = list(mine)
    order: list[placements.Replica] = []
    while left:
        loads = Counter(replica.cluster for replica in left)
        order.append(max(left, key=lambda r: (schedules._illness(r, infos), loads[r.cluster], r.cluster, r.index)))
        left.remove(order[-1])

    assert list(schedules.worst_first(mine, infos)) == order


@EXAMPLES
@given(histories())
def test_what_is_to_move_goes_before_what_is_not(history: tuple[World, ModelDeployment]) -> None:
    world, deployment = history
    decision = world.decide(deployment)
    waiting = [held for held in decision.retained if held.reason] + list(decision.blocked)

    assert not waiting or not any(isinstance(removal.reason, ScaledDown) for removal in decision.removed)


@EXAMPLES
@given(histories())
def test_whoever_is_replaced_is_the_one_that_goes(history: tuple[World, ModelDeployment]) -> None:
    world, deployment = history
    first = world.decide(deployment)
    replaced = {removal.replica.key for removal in first.removed}
    # Its successor is there, and nothing that is to go has begun to.
    there = {replica.key: replica for replica in world.after(deployment, first).replicas}
    there |= {replica.key: replica for replica in world.replicas if replica.key in replaced}
    again = replace(world, replicas=tuple(there.values())).decide(deployment)

    assert {removal.replica.key for removal in again.removed} == replaced
    assert again.placements == first.placements
    assert not again.new


@EXAMPLES
@given(histories())
def test_the_reasons_cover_exactly_the_clusters_not_chosen(history: tuple[World, ModelDeployment]) -> None:
    world, deployment = history
    decision = world.decide(deployment)
    chosen = {placement.cluster for placement in decision.new}
    movable = [held for held in decision.retained if held.reason] or [
        r for r in decision.removed if isinstance(r.reason, MOVING)
    ]
    covered = sum(refusal.clusters for refusal in decision.refusals)

    unplaced = decision.missing or decision.blocked
    if not world.clusters or not (decision.new or unplaced or movable or deployment.replica.failover):
        assert covered == 0
    elif unplaced:
        assert covered == len(world.clusters)
        assert not any(isinstance(refusal.reason, Spare) for refusal in decision.refusals)
    elif decision.new and not decision.retained:
        assert covered == len(world.clusters) - len(chosen)
    assert [refusal.reason.group for refusal in decision.refusals] == sorted(
        {refusal.reason.group for refusal in decision.refusals}
    )


@EXAMPLES
@given(histories())
def test_the_prose_is_one_line(history: tuple[World, ModelDeployment]) -> None:
    world, deployment = history
    decision = world.decide(deployment)

    assert "\n" not in prose.summary(decision)
    assert len(prose.summary(decision)) < 2000


# Completeness ---------------------------------------------------------------------------------------------------------


@EXAMPLES
@given(
    st.lists(st.lists(st.one_of(st.none(), st.integers(0, 6)), min_size=3, max_size=3), max_size=5),
    st.lists(st.integers(-1, 9), min_size=3, max_size=3),
)
@example([[None, None, 1], [None, 0, 1]], [0, -1, 1])  # nothing goes where more is taken than there is
def test_an_assignment_is_found_whenever_there_is_one(costs: list[list[int | None]], room: list[int]) -> None:
    def fits(bins: Sequence[int]) -> bool:
        taken = [0, 0, 0]
        for row, bin_ in zip(costs, bins, strict=True):
            cost = row[bin_]
            if cost is None:
                return False
            taken[bin_] += cost
        return all(used <= free for used, free in zip(taken, room, strict=True) if used) and all(
            room[bin_] >= 0 for bin_ in bins
        )

    possible = any(fits(bins) for bins in product(range(3), repeat=len(costs)))
    found = assign(costs, room)

    assert (found is not None) == possible
    assert found is None or fits(found)


def possible(deployment: ModelDeployment, cluster: InferenceCluster) -> bool:
    """Whether a replica fits an empty cluster, by trying every way."""
    published = cluster.status.gpu_pools if cluster.status else ()
    engines = deployment.replica.engines
    costs = [[_engine_cost(engine, pool, published) for pool in published] for engine in engines]
    for choice in product(range(len(published)), repeat=len(engines)):
        taken = Counter[int]()
        for row, place in zip(costs, choice, strict=True):
            taken[place] += 1000 if (cost := row[place]) is None else cost
        if all(nodes <= (published[place].nodes or 0) for place, nodes in taken.items()):
            return True
    return False


def _engine_cost(engine: DeployedEngine, pool: GpuPool, published: Sequence[GpuPool]) -> int | None:
    claimable = [any(_ways(member, other).get("claims") for other in published) for member in engine.members]
    ways = [_ways(member, pool) for member in engine.members]
    if not any(claimable) or not all(way["matches"] for way in ways):
        return None
    if any(could and not way["claims"] for could, way in zip(claimable, ways, strict=True)):
        return None
    sizes = (member.worker.nodes if member.worker else 1 for member in engine.members)
    gang = sum(size for size, way in zip(sizes, ways, strict=True) if way["claims"])
    fabric = pool.largest_fabric.nodes if pool.largest_fabric and len(engine.members) > 1 else gang
    return gang * engine.copies if gang <= fabric else None


def _ways(member: Member, pool: GpuPool) -> dict[str, bool]:
    """Whether some way to give the member's requests devices exists, and whether one exists that claims."""
    asked = member.node_selector.devices if member.node_selector else ()
    found = {"matches": False, "claims": False}
    for choice in product(pool.devices, repeat=len(asked)):
        taken = Counter[str]()
        for request, device in zip(asked, choice, strict=True):
            taken[device.name] += request.count
        counts = {device.name: device.count or 0 for device in pool.devices}
        right = all(_size(device) >= _wanted(request) for request, device in zip(asked, choice, strict=True))
        if right and all(count <= counts[name] for name, count in taken.items()):
            found["matches"] = True
            found["claims"] = found["claims"] or any(device.claim == "DRA" for device in choice)
    return found


def _size(device: PublishedDevice) -> int:
    return int(device.capacity["memory"].value.removesuffix("Gi"))


def _wanted(request: DeviceRequest) -> int:
    return next(int(size.removesuffix("Gi")) for size in some.SIZES if request.selectors[0].cel == b.memory(size))


@EXAMPLES
@given(some.pools(), some.deployments(asked=some.requests))
def test_a_place_is_found_whenever_there_is_one(published: Sequence[b.Manifest], deployment: ModelDeployment) -> None:
    cluster = b.cluster("a", *published, region="eu")
    one = deployment.model_copy(update={"spec": deployment.spec.model_copy(update={"replicas": 1})})
    assume(one.replica.cluster_selector is None or one.replica.cluster_selector.match_labels != {"region": "us"})
    decision = World([cluster]).decide(one)

    assert bool(decision.placements) == possible(one, cluster)
