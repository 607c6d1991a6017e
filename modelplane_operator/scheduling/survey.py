"""Evaluate whether a cluster takes a replica, and summarize the results of a whole fleet.

`answer` evaluates one cluster by its labels, hardware, state and free nodes. The fleet caches the results per
requirement; `filling` evaluates the clusters that change during a decision again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from modelplane_operator.api.placement import EnginePlacement, MemberPlacement
from modelplane_operator.scheduling.assignment import assign
from modelplane_operator.scheduling.cluster import ClusterPhase, Pools
from modelplane_operator.scheduling.decision import Refusal
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.load import Load
from modelplane_operator.scheduling.matching import Claimless, Hosting, Hosts, Option, Unhosted, Unmatched, hosts
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.reasons import (
    ClusterTerminating,
    ClusterUnreachable,
    Crowded,
    Distance,
    Fragmented,
    Full,
    LabelDiffers,
    NoCacheStorage,
    NoGangs,
    NoGateway,
    NoMatch,
    NoPools,
    NothingToClaim,
    NotReady,
    Refused,
    Scattered,
    Spare,
    Split,
    Tainted,
    TooSmall,
    TooSmallNode,
    UnknownPools,
)
from modelplane_operator.scheduling.requirement import EngineRequirement, Requirement
from modelplane_operator.scheduling.room import PodsOn, count_devices, find_excess
from modelplane_operator.scheduling.taints import NO_EXECUTE, NO_SCHEDULE, find_untolerated
from modelplane_operator.selectors.cel import Device

KEEPS_OFF = frozenset({NO_SCHEDULE, NO_EXECUTE})
"""Effects of taints that prevent new replicas. Only NO_EXECUTE moves existing ones."""


class Fit(NamedTuple):
    """A replica fits: the chosen pool of each engine."""

    chosen: tuple[Option, ...]
    """Pool of each engine, in the order of the engines."""
    usage: float
    """Fraction of the usable pools' nodes that is taken, from 0 to 1."""
    breaks: bool = True
    """True if a node without pods is taken; False if all pods find room on shared nodes that others use."""

    group = Spare.group

    @property
    def rank(self) -> Distance:
        """Order: whole nodes are kept as long as possible; then the least used cluster comes first."""
        return (float(self.breaks), self.usage)


Answer = Fit | Refused


@dataclass(frozen=True, slots=True)
class Survey:
    """The results of a fleet's clusters for a requirement."""

    candidates: tuple[ClusterInfo, ...]
    """First of the clusters that fit: least used first, then by name."""
    fitting: int
    """Total number of clusters that fit."""
    refusals: tuple[Refusal, ...]
    """Reasons of the other clusters, nearest misses first."""


class FleetSnapshot(Protocol):
    """The state of the fleet. Its results are values and do not change during a decision."""

    @property
    def size(self) -> int:
        """Return the number of clusters."""
        ...

    @property
    def devices(self) -> frozenset[Device]:
        """Return all distinct devices of the fleet."""
        ...

    def info(self, cluster: str) -> ClusterInfo | None:
        """Return a cluster and its free nodes."""
        ...

    def replicas(self, namespace: str, deployment: str) -> tuple[Replica, ...]:
        """Return the replicas under a deployment's name, by their own names. Some may belong to a deleted namesake."""
        ...

    def survey(self, requirement: Requirement, *, limit: int, apart: frozenset[str]) -> Survey:
        """Return the results of all clusters but those in `apart`, with at most `limit` candidates."""
        ...


def answer(requirement: Requirement, info: ClusterInfo, hosting: Hosting | None = None) -> Answer:
    """Return whether the cluster takes one more replica; `hosting` are the pools that could, if already known.

    Permanent obstacles are reported before temporary ones: a cluster reported as full, tainted or not Ready has the
    hardware.
    """
    cluster = info.cluster
    for key, value in requirement.labels:
        if cluster.labels.get(key) != value:
            cache = requirement.cache.name if requirement.cache and key in requirement.cache.labels else ""
            return LabelDiffers(key, value, cluster.labels.get(key), cache)
    if cluster.phase is ClusterPhase.TERMINATING:
        return ClusterTerminating()
    if not cluster.pools.names:
        return NoPools(_unusable_reason(info))
    hosting = hosting or hosts(requirement.engines, cluster.pools.profile)
    if not isinstance(hosting, Hosts):
        others = explain_mismatch(info, hosting)
        return UnknownPools(cluster.unknown, others) if cluster.unknown else others
    if not cluster.gangs and (gang := next((engine.name for engine in requirement.engines if engine.gangs), "")):
        return NoGangs(gang)
    if cluster.taints and (taint := find_untolerated(cluster.taints, requirement.tolerations, KEEPS_OFF)):
        # To remove the taint from a cluster whose pools are too small would not help.
        empty = fit(requirement.engines, hosting, ClusterInfo.of(cluster, Load()))
        is_too_small = isinstance(empty, TooSmall | TooSmallNode) and cluster.phase is ClusterPhase.READY
        return empty if is_too_small else Tainted(taint.key, taint.value, taint.effect)
    if cluster.phase is not ClusterPhase.READY and (reason := _unusable_reason(info)):
        return reason
    if requirement.cache and requirement.cache.storage and not cluster.storage:
        return NoCacheStorage(requirement.cache.name)
    return fit(requirement.engines, hosting, info)


def measure_distance(info: ClusterInfo, result: Answer) -> Distance:
    """Return the distance of a cluster from taking a replica. One that is not Ready is farther than any that is."""
    return (float(info.cluster.phase is not ClusterPhase.READY), *result.rank)


def refuse(info: ClusterInfo, result: Answer, count: int = 1) -> Refusal:
    """Return the refusal of so many clusters, of which this one is the nearest. One that fits has room to spare."""
    cause = Spare() if isinstance(result, Fit) else result
    return Refusal(count, info.cluster.name, cause, measure_distance(info, result))


def fit(
    engines: Sequence[EngineRequirement], hosts: Hosts, info: ClusterInfo
) -> Fit | Full | TooSmall | TooSmallNode | Fragmented | Scattered | Crowded:
    """Assign each engine to the earliest possible pool; or return which resource is short."""
    if info.cluster.pools.fabrics:
        filtered = _filter_by_fabric(engines, hosts, info.cluster.pools)
        if isinstance(filtered, Scattered):
            return filtered
        hosts = filtered
    if info.rooms:
        if (found := _choose_shared(hosts.options, info)) is not None:
            chosen, after = found
            return Fit(chosen, _usage(hosts.pools, info), breaks=after.free != info.free)
    elif (chosen := _choose(hosts.options, info.free)) is not None:
        return Fit(chosen, _usage(hosts.pools, info))
    shortages = [
        _shortage(engine, options, info)
        for engine, options in zip(engines, hosts.options, strict=True)
        if all(_take(option, info) is None for option in options)
    ]
    if shortages:
        for_ever = (shortage for shortage in shortages if isinstance(shortage, TooSmall | TooSmallNode))
        return next(for_ever, shortages[0])
    return Crowded(
        needs=tuple(
            (engine.name, min(option.nodes for option in options))
            for engine, options in zip(engines, hosts.options, strict=True)
        ),
        free=tuple((info.cluster.pools.names[pool], info.free[pool]) for pool in hosts.pools),
    )


def _filter_by_fabric(engines: Sequence[EngineRequirement], hosts: Hosts, pools: Pools) -> Hosts | Scattered:
    """Return the options on which each gang fits on one fabric; or the nearest miss."""
    rows: list[tuple[Option, ...]] = []
    for engine, options in zip(engines, hosts.options, strict=True):
        row = tuple(option for option in options if gathers(engine, option.nodes, pools, option.pool))
        if not row:
            misses = [
                Scattered(engine.name, pools.names[option.pool], option.nodes // engine.gangs, *largest)
                for option in options
                if (largest := pools.fabrics[option.pool]) is not None
            ]
            return min(misses, key=lambda miss: miss.rank)
        rows.append(row)
    return Hosts(tuple(rows), tuple(sorted({option.pool for row in rows for option in row})))


def gathers(engine: EngineRequirement, nodes: int, pools: Pools, pool: int) -> bool:
    """True if a fabric of the pool has enough nodes for each gang of an engine.

    `nodes` is the total of all its gangs.
    """
    largest = pools.fabrics[pool] if pools.fabrics else None
    return largest is None or not engine.gangs or nodes // engine.gangs <= largest.nodes


def _shortage(
    engine: EngineRequirement, options: Sequence[Option], info: ClusterInfo
) -> Full | TooSmall | Fragmented | TooSmallNode:
    """Return the pool that is nearest to having enough nodes: in total, if none is large enough, otherwise free
    ones.
    """
    if info.rooms and any(info.rooms[option.pool] for option in options):
        return _shortage_of_shared(engine, options, info)
    pools = info.cluster.pools
    large = [option for option in options if option.nodes <= pools.nodes[option.pool]]
    if not large:
        nearest = min(options, key=lambda option: option.nodes - pools.nodes[option.pool])
        unusable = info.cluster.find_unusable(nearest.pool)
        return TooSmall(engine.name, pools.names[nearest.pool], nearest.nodes, pools.nodes[nearest.pool], unusable)
    nearest = min(large, key=lambda option: option.nodes - max(info.free[option.pool], 0))
    pool = nearest.pool
    unusable = info.cluster.find_unusable(pool)
    return Full(engine.name, pools.names[pool], nearest.nodes, info.free[pool], pools.nodes[pool], unusable)


def _shortage_of_shared(
    engine: EngineRequirement, options: Sequence[Option], info: ClusterInfo
) -> Full | TooSmall | Fragmented | TooSmallNode:
    """Return the shortage of the shared pool that is nearest to having room; of another pool if none is shared."""
    pools = info.cluster.pools
    shared = [(option, room) for option in options if (room := info.rooms[option.pool]) is not None]
    large = [(option, room) for option, room in shared if room.empty.fits(option.pods)]
    if not large:
        others = [option for option in options if info.rooms[option.pool] is None]
        if others:
            return _shortage(engine, others, replace(info, rooms=()))
        option, room = shared[0]
        name, unusable = pools.names[option.pool], info.cluster.find_unusable(option.pool)
        if amount := find_excess(option.pods, room.node):
            return TooSmallNode(engine.name, name, amount)
        return TooSmall(engine.name, name, room.count_needed(option.pods), room.nodes, unusable)
    option, room = min(large, key=lambda row: row[1].with_pods(row[0].pods).short)
    return Fragmented(
        engine=engine.name,
        pool=pools.names[option.pool],
        pods=tuple((count_devices(shape), number) for shape, number in option.pods),
        free=room.free_devices,
        nodes=room.nodes,
        short=room.with_pods(option.pods).short - room.short,
        unusable=info.cluster.find_unusable(option.pool),
    )


def _take(option: Option, info: ClusterInfo) -> ClusterInfo | None:
    """Return the info with the pods of an option in its pool as well; None if the pool has no room for them."""
    pool, room = info.cluster.pools.names[option.pool], info.rooms[option.pool] if info.rooms else None
    if room is None:
        return info.charge(Load({pool: option.nodes})) if option.nodes <= info.free[option.pool] else None
    if room.is_too_full(option.pods):
        return None
    after = info.charge(Load({pool: option.nodes}, {PodsOn(pool, shape): number for shape, number in option.pods}))
    charged = after.rooms[option.pool]
    return after if charged and charged.short == room.short else None


COMBINATIONS = 256
"""Maximum of pools tried for the engines of a replica on a cluster with shared pools. Few replicas have more."""


def _choose_shared(
    options: tuple[tuple[Option, ...], ...], info: ClusterInfo
) -> tuple[tuple[Option, ...], ClusterInfo] | None:
    """Choose a pool for each engine on a cluster with shared pools, and return it with what is free then; or None.

    Whether engines fit together is only known once their pods are planned, so the combinations are tried in order.
    """
    tried = 0

    def choose(
        rest: tuple[tuple[Option, ...], ...], info: ClusterInfo
    ) -> tuple[tuple[Option, ...], ClusterInfo] | None:
        """Return a pool for each of the remaining engines, and what is free then; or None."""
        nonlocal tried
        if not rest:
            return (), info
        for option in rest[0]:
            tried += 1
            if tried > COMBINATIONS:
                return None
            after = _take(option, info)
            if after is not None and (others := choose(rest[1:], after)) is not None:
                return (option, *others[0]), others[1]
        return None

    return choose(options, info)


def _choose(options: tuple[tuple[Option, ...], ...], free: tuple[int, ...]) -> tuple[Option, ...] | None:
    """Choose a pool for each engine, or return None."""
    if len(options) == 1:  # the usual case: no combination to search
        for option in options[0]:
            if option.nodes <= free[option.pool]:
                return (option,)
        return None
    by_pool = [{option.pool: option for option in row} for row in options]
    costs = [[row[pool].nodes if pool in row else None for pool in range(len(free))] for row in by_pool]
    bins = assign(costs, free)
    return None if bins is None else tuple(row[pool] for row, pool in zip(by_pool, bins, strict=True))


def engine_placements(
    engines: Sequence[EngineRequirement], chosen: Sequence[Option], info: ClusterInfo
) -> tuple[EnginePlacement, ...]:
    """Return the placement of the engines on the chosen pools."""
    names = info.cluster.pools.names
    return tuple(
        EnginePlacement(
            engine.name,
            tuple(
                MemberPlacement(member.role, names[option.pool], member.nodes if claims else 0, claims, member.amounts)
                for member, claims in zip(engine.members, option.claims, strict=True)
            ),
        )
        for engine, option in zip(engines, chosen, strict=True)
    )


def _usage(pools: Sequence[int], info: ClusterInfo) -> float:
    """Return the fraction of the pools' nodes that is taken."""
    total = info.cluster.pools.nodes
    nodes, free = 0, 0.0
    for pool in pools:
        nodes += total[pool]
        room = info.rooms[pool] if info.rooms else None
        free += room.share if room else info.free[pool]
    return 1 - free / nodes if nodes else 1.0


def _unusable_reason(info: ClusterInfo) -> NotReady | ClusterUnreachable | NoGateway | None:
    """Return why the cluster is not usable now; None if it is."""
    match info.cluster.phase:
        case ClusterPhase.NOT_READY:
            return NotReady(info.cluster.reason)
        case ClusterPhase.UNREACHABLE:
            return ClusterUnreachable()
        case ClusterPhase.NO_GATEWAY:
            return NoGateway()
        case _:
            return None


def explain_mismatch(info: ClusterInfo, mismatch: Unmatched | Claimless | Unhosted) -> NoMatch | NothingToClaim | Split:
    """Return the reason of a cluster whose pools cannot run the engines."""
    if isinstance(mismatch, Unmatched):
        return NoMatch(mismatch.engine, mismatch.role, info.cluster.pools.names[mismatch.pool], mismatch.miss)
    if isinstance(mismatch, Claimless):
        return NothingToClaim(mismatch.engine)
    return Split(mismatch.engine, info.cluster.pools.names[mismatch.pool], mismatch.role, mismatch.miss)
