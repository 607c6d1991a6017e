"""One cluster asked whether it takes a replica, and the answers of a whole fleet in a few lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from modelplane_operator.scheduling.assignment import assign
from modelplane_operator.scheduling.cluster import Standing
from modelplane_operator.scheduling.decision import Refusal
from modelplane_operator.scheduling.ledger import Site
from modelplane_operator.scheduling.matching import Option, Options, Unhosted, Unmatched, options
from modelplane_operator.scheduling.need import EngineNeed, Need
from modelplane_operator.scheduling.placement import EnginePlacement, MemberPlacement, Replica
from modelplane_operator.scheduling.reasons import (
    Crowded,
    Full,
    Going,
    LabelDiffers,
    Nearness,
    NoGateway,
    NoMatch,
    NoPools,
    NothingToClaim,
    NotReady,
    Refused,
    Spare,
    Split,
    Tainted,
    Unreachable,
)
from modelplane_operator.scheduling.taints import NO_EXECUTE, NO_SCHEDULE, untolerated

KEEPS_OFF = frozenset({NO_SCHEDULE, NO_EXECUTE})


@dataclass(frozen=True, slots=True)
class Fit:
    """A replica fits: for each engine the pool to run it on."""

    hosts: tuple[Option, ...]
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

    candidates: tuple[Site, ...]
    """The first of those that fit: least used first, then by name."""
    fitting: int
    """How many fit in all."""
    refusals: tuple[Refusal, ...]
    """Why the others do not, nearest misses first."""


class Fleet(Protocol):
    """What is known of the fleet. Its answers are values, and stay the same while a decision is taken."""

    @property
    def size(self) -> int:
        """Clusters."""
        ...

    def site(self, cluster: str) -> Site | None:
        """A cluster and its free nodes."""
        ...

    def replicas(self, namespace: str, deployment: str) -> tuple[Replica, ...]:
        """Replicas under a deployment's name, by their own names; some may be of one that had the name before."""
        ...

    def survey(self, need: Need, *, limit: int, apart: frozenset[str]) -> Survey:
        """What all clusters, but for those kept apart, answer to the need; at most so many candidates."""
        ...


def answer(need: Need, site: Site) -> Answer:
    """Whether the cluster takes one more replica.

    What is wrong for good is told before what may pass: a cluster that is called full, tainted or not Ready has the
    hardware.
    """
    cluster = site.cluster
    for key, wanted in need.labels:
        if cluster.labels.get(key) != wanted:
            return LabelDiffers(key, wanted, cluster.labels.get(key))
    if cluster.standing is Standing.GOING:
        return Going()
    if not cluster.pools.names:
        return _unusable(site) or NoPools()
    hosts = options(need.engines, cluster.pools.profile)
    if not isinstance(hosts, tuple):
        return unhosted(site, hosts)
    if cluster.taints and (taint := untolerated(cluster.taints, need.tolerations, KEEPS_OFF)):
        return Tainted(taint.key, taint.value, taint.effect)
    return _unusable(site) or fit(need.engines, hosts, site)


def fit(engines: Sequence[EngineNeed], hosts: Options, site: Site) -> Fit | Full | Crowded:
    """Give each engine the earliest pool that it can have once the others have theirs; or say what is short."""
    costs = [_row(engine_hosts, len(site.free)) for engine_hosts in hosts]
    chosen = assign(costs, site.free)
    if chosen is not None:
        by_pool = ({option.pool: option for option in engine_hosts} for engine_hosts in hosts)
        return Fit(tuple(pools[pool] for pools, pool in zip(by_pool, chosen, strict=True)), _usage(hosts, site))
    for engine, engine_hosts in zip(engines, hosts, strict=True):
        nearest = min(engine_hosts, key=lambda option: option.nodes - max(site.free[option.pool], 0))
        if all(option.nodes > site.free[option.pool] for option in engine_hosts):
            pools = site.cluster.pools
            place = nearest.pool
            return Full(engine.name, pools.names[place], nearest.nodes, site.free[place], pools.nodes[place])
    return Crowded()


def placed(engines: Sequence[EngineNeed], hosts: Sequence[Option], site: Site) -> tuple[EnginePlacement, ...]:
    """The engines on the pools that were found for them."""
    return tuple(
        EnginePlacement(
            engine.name,
            tuple(
                MemberPlacement(member.role, site.cluster.pools.names[host.pool], member.nodes if claims else 0, claims)
                for member, claims in zip(engine.members, host.claims, strict=True)
            ),
        )
        for engine, host in zip(engines, hosts, strict=True)
    )


def _row(hosts: Sequence[Option], pools: int) -> list[int | None]:
    row: list[int | None] = [None] * pools
    for option in hosts:
        row[option.pool] = option.nodes
    return row


def _usage(hosts: Options, site: Site) -> float:
    pools = {option.pool for engine_hosts in hosts for option in engine_hosts}
    nodes = sum(site.cluster.pools.nodes[pool] for pool in pools)
    return 1 - sum(site.free[pool] for pool in pools) / nodes if nodes else 1.0


def _unusable(site: Site) -> NotReady | Unreachable | NoGateway | None:
    match site.cluster.standing:
        case Standing.NOT_READY:
            return NotReady(site.cluster.why)
        case Standing.UNREACHABLE:
            return Unreachable()
        case Standing.NO_GATEWAY:
            return NoGateway()
        case _:
            return None


def unhosted(site: Site, why: Unmatched | Unhosted) -> NoMatch | NothingToClaim | Split:
    if isinstance(why, Unmatched):
        return NoMatch(why.engine, why.role, site.cluster.pools.names[why.pool], why.miss)
    return NothingToClaim(why.engine) if why.claimless else Split(why.engine)
