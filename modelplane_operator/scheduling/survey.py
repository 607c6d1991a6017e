"""One cluster asked whether it takes a replica, and the answers of a whole fleet in a few lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from modelplane_operator.api.placement import EnginePlacement, MemberPlacement
from modelplane_operator.scheduling.assignment import assign
from modelplane_operator.scheduling.cluster import ClusterPhase, Pools
from modelplane_operator.scheduling.decision import Refusal
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.matching import Claimless, Hosting, Hosts, Option, Unhosted, Unmatched, hosts
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.reasons import (
    ClusterTerminating,
    ClusterUnreachable,
    Crowded,
    Full,
    LabelDiffers,
    Nearness,
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
    UnknownPools,
)
from modelplane_operator.scheduling.requirement import EngineRequirement, Requirement
from modelplane_operator.scheduling.taints import NO_EXECUTE, NO_SCHEDULE, untolerated
from modelplane_operator.selectors.cel import Device

KEEPS_OFF = frozenset({NO_SCHEDULE, NO_EXECUTE})


class Fit(NamedTuple):
    """A replica fits: for each engine the pool to run it on."""

    chosen: tuple[Option, ...]
    usage: float
    """How much of the pools that any of the engines could use is taken, from 0 to 1."""

    group = Spare.group

    @property
    def nearness(self) -> Nearness:
        return (self.usage,)


Answer = Fit | Refused


@dataclass(frozen=True, slots=True)
class Survey:
    """What the clusters of a fleet answer to a need."""

    candidates: tuple[ClusterInfo, ...]
    """The first of those that fit: least used first, then by name."""
    fitting: int
    """How many fit in all."""
    refusals: tuple[Refusal, ...]
    """Why the others do not, nearest misses first."""


class FleetSnapshot(Protocol):
    """What is known of the fleet. Its answers are values, and stay the same while a decision is taken."""

    @property
    def size(self) -> int:
        """Clusters."""
        ...

    @property
    def devices(self) -> frozenset[Device]:
        """All different devices of the fleet."""
        ...

    def info(self, cluster: str) -> ClusterInfo | None:
        """A cluster and its free nodes."""
        ...

    def replicas(self, namespace: str, deployment: str) -> tuple[Replica, ...]:
        """Replicas under a deployment's name, by their own names; some may be of one that had the name before."""
        ...

    def survey(self, requirement: Requirement, *, limit: int, apart: frozenset[str]) -> Survey:
        """What all clusters, but for those kept apart, answer to the need; at most so many candidates."""
        ...


def answer(requirement: Requirement, info: ClusterInfo, hosting: Hosting | None = None) -> Answer:
    """Whether the cluster takes one more replica; `hosting` says which of its pools could, when that is known.

    What is wrong for good is told before what may pass: a cluster that is called full, tainted or not Ready has the
    hardware.
    """
    cluster = info.cluster
    for key, wanted in requirement.labels:
        if cluster.labels.get(key) != wanted:
            return LabelDiffers(key, wanted, cluster.labels.get(key))
    if cluster.phase is ClusterPhase.TERMINATING:
        return ClusterTerminating()
    if not cluster.pools.names:
        return NoPools(_unusable(info))
    hosting = hosting or hosts(requirement.engines, cluster.pools.profile)
    if not isinstance(hosting, Hosts):
        others = unhosted(info, hosting)
        return UnknownPools(cluster.unknown, others) if cluster.unknown else others
    if not cluster.gangs and (gang := next((one.name for one in requirement.engines if one.gangs), "")):
        return NoGangs(gang)
    if cluster.taints and (taint := untolerated(cluster.taints, requirement.tolerations, KEEPS_OFF)):
        return Tainted(taint.key, taint.value, taint.effect)
    if cluster.phase is not ClusterPhase.READY and (why := _unusable(info)):
        return why
    return fit(requirement.engines, hosting, info)


def fit(
    engines: Sequence[EngineRequirement], hosts: Hosts, info: ClusterInfo
) -> Fit | Full | TooSmall | Scattered | Crowded:
    """Give each engine the earliest pool that it can have once the others have theirs; or say what is short."""
    if info.cluster.pools.fabrics:
        gathered = _gathered(engines, hosts, info.cluster.pools)
        if isinstance(gathered, Scattered):
            return gathered
        hosts = gathered
    chosen = _choose(hosts.options, info.free)
    if chosen is not None:
        return Fit(chosen, _usage(hosts.pools, info))
    short = [
        _short(engine, options, info)
        for engine, options in zip(engines, hosts.options, strict=True)
        if all(option.nodes > info.free[option.pool] for option in options)
    ]
    if short:
        return next((found for found in short if isinstance(found, TooSmall)), short[0])
    return Crowded(
        needs=tuple(
            (engine.name, min(option.nodes for option in options))
            for engine, options in zip(engines, hosts.options, strict=True)
        ),
        free=tuple((info.cluster.pools.names[pool], info.free[pool]) for pool in hosts.pools),
    )


def _gathered(engines: Sequence[EngineRequirement], hosts: Hosts, pools: Pools) -> Hosts | Scattered:
    """The options that leave no gang without a fabric for all of it."""
    rows: list[tuple[Option, ...]] = []
    for engine, options in zip(engines, hosts.options, strict=True):
        row = tuple(option for option in options if gathers(engine, option.nodes, pools, option.pool))
        if not row:
            return _scattered(engine, options, pools)
        rows.append(row)
    return Hosts(tuple(rows), tuple(sorted({option.pool for row in rows for option in row})))


def gathers(engine: EngineRequirement, nodes: int, pools: Pools, pool: int) -> bool:
    """Whether one fabric of the pool has the nodes that each gang of an engine needs, of so many in all."""
    largest = pools.fabrics[pool] if pools.fabrics else None
    return largest is None or not engine.gangs or nodes // engine.gangs <= largest.nodes


def _scattered(engine: EngineRequirement, options: Sequence[Option], pools: Pools) -> Scattered:
    """The fabric that is nearest to having enough nodes for a gang."""
    told = [
        Scattered(engine.name, pools.names[option.pool], option.nodes // engine.gangs, *largest)
        for option in options
        if (largest := pools.fabrics[option.pool]) is not None
    ]
    return min(told, key=lambda found: found.nearness)


def _short(engine: EngineRequirement, options: Sequence[Option], info: ClusterInfo) -> Full | TooSmall:
    """The pool that is nearest to having enough nodes for an engine: in all, if none ever has, else free ones."""
    pools = info.cluster.pools
    large = [option for option in options if option.nodes <= pools.nodes[option.pool]]
    if not large:
        nearest = min(options, key=lambda option: option.nodes - pools.nodes[option.pool])
        return TooSmall(engine.name, pools.names[nearest.pool], nearest.nodes, pools.nodes[nearest.pool])
    nearest = min(large, key=lambda option: option.nodes - max(info.free[option.pool], 0))
    place = nearest.pool
    return Full(engine.name, pools.names[place], nearest.nodes, info.free[place], pools.nodes[place])


def _choose(options: tuple[tuple[Option, ...], ...], free: tuple[int, ...]) -> tuple[Option, ...] | None:
    if len(options) == 1:  # nearly always: nothing to weigh up
        for option in options[0]:
            if option.nodes <= free[option.pool]:
                return (option,)
        return None
    by_pool = [{option.pool: option for option in row} for row in options]
    costs = [[row[pool].nodes if pool in row else None for pool in range(len(free))] for row in by_pool]
    bins = assign(costs, free)
    return None if bins is None else tuple(row[pool] for row, pool in zip(by_pool, bins, strict=True))


def placed(
    engines: Sequence[EngineRequirement], chosen: Sequence[Option], info: ClusterInfo
) -> tuple[EnginePlacement, ...]:
    """The engines on the pools that were chosen for them."""
    names = info.cluster.pools.names
    return tuple(
        EnginePlacement(
            engine.name,
            tuple(
                MemberPlacement(member.role, names[option.pool], member.nodes if claims else 0, claims)
                for member, claims in zip(engine.members, option.claims, strict=True)
            ),
        )
        for engine, option in zip(engines, chosen, strict=True)
    )


def _usage(pools: Sequence[int], info: ClusterInfo) -> float:
    total = info.cluster.pools.nodes
    nodes = free = 0
    for pool in pools:
        nodes += total[pool]
        free += info.free[pool]
    return 1 - free / nodes if nodes else 1.0


def _unusable(info: ClusterInfo) -> NotReady | ClusterUnreachable | NoGateway | None:
    match info.cluster.phase:
        case ClusterPhase.NOT_READY:
            return NotReady(info.cluster.why)
        case ClusterPhase.UNREACHABLE:
            return ClusterUnreachable()
        case ClusterPhase.NO_GATEWAY:
            return NoGateway()
        case _:
            return None


def unhosted(info: ClusterInfo, why: Unmatched | Claimless | Unhosted) -> NoMatch | NothingToClaim | Split:
    if isinstance(why, Unmatched):
        return NoMatch(why.engine, why.role, info.cluster.pools.names[why.pool], why.miss)
    if isinstance(why, Claimless):
        return NothingToClaim(why.engine)
    return Split(why.engine, info.cluster.pools.names[why.pool], why.role, why.miss)
