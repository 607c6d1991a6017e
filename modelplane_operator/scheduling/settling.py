"""Give each staying replica the current shape of its deployment, in its own pools or in others of its cluster."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from kubeloop.objects import Key
from modelplane_operator.api.placement import EnginePlacement, MemberPlacement, Placement
from modelplane_operator.scheduling.decision import RetainedReplica
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.load import load_of
from modelplane_operator.scheduling.matching import Hosts, Match, hosts, match
from modelplane_operator.scheduling.placement import Replica, charges
from modelplane_operator.scheduling.reasons import Outdated, Refused
from modelplane_operator.scheduling.requirement import EngineRequirement, PlacementRequest, Requirement
from modelplane_operator.scheduling.survey import Fit, engine_placements, explain_mismatch, fit, gathers

Engines = tuple[EnginePlacement, ...]


@dataclass(frozen=True, slots=True)
class StableReplicas:
    """The staying replicas, and their clusters' free nodes after the replicas took their new shape."""

    current: tuple[tuple[Replica, Placement], ...]
    """Replicas in their current shape, with their new placements."""
    retained: tuple[RetainedReplica, ...]
    """Replicas without room for their current shape."""
    infos: Mapping[str, ClusterInfo]
    """Free nodes of the clusters afterwards."""

    @property
    def staying(self) -> tuple[Replica, ...]:
        """All staying replicas, in their current shape or not."""
        return (*(replica for replica, _ in self.current), *(entry.replica for entry in self.retained))

    def without(self, removed: Container[Key]) -> "StableReplicas":
        """Return the same without some replicas. Their nodes stay charged until they are gone."""
        return StableReplicas(
            tuple(row for row in self.current if row[0].key not in removed),
            tuple(entry for entry in self.retained if entry.replica.key not in removed),
            self.infos,
        )


def settle(request: PlacementRequest, staying: Sequence[Replica], infos: Mapping[str, ClusterInfo]) -> StableReplicas:
    """Give every replica its current shape if there is room for it. The others are held unchanged."""
    if not request.readable:
        return StableReplicas((), tuple(RetainedReplica(replica, None) for replica in staying), infos)
    room = dict(infos)
    placements: dict[Key, Placement] = {}

    def keep(replica: Replica, engines: Engines) -> None:
        """Place a replica, and charge the larger of its old and new nodes per pool."""
        info = room[replica.cluster]
        placements[replica.key] = Placement(replica.cluster, replica.index, engines)
        # The replica's old pods keep their nodes until they are gone, whatever its new shape needs.
        room[replica.cluster] = info.release(replica.load).charge(replica.load.larger(load_of(engines)))

    # Replicas that need no more nodes come first, since their nodes are certain.
    waiting: list[Replica] = []
    for replica in staying:
        info = room[replica.cluster]
        pinned = _in_own_pools(request.requirement, replica, info)
        # It keeps its nodes even if the pool has shrunk.
        if pinned is not None and not info.needs_more(replica.load, load_of(pinned)):
            keep(replica, pinned)
        else:
            waiting.append(replica)
    while True:
        still: list[tuple[Replica, Refused]] = []
        for replica in waiting:
            match _refit(request.requirement, replica, room[replica.cluster]):
                case tuple() as engines:
                    keep(replica, engines)
                case refused:
                    still.append((replica, refused))
        if len(still) == len(waiting):
            outdated = tuple(RetainedReplica(replica, Outdated(refused)) for replica, refused in still)
            return StableReplicas(
                tuple((replica, placements[replica.key]) for replica in staying if replica.key in placements),
                outdated,
                room,
            )
        waiting = [replica for replica, _ in still]


def _in_own_pools(requirement: Requirement, replica: Replica, info: ClusterInfo) -> Engines | None:
    """Return the current shape in the replica's own pools, regardless of room; None if they do not match."""
    by_name = {engine.name: engine for engine in replica.engines}
    if len(requirement.engines) != len(replica.engines) or any(
        engine.name not in by_name for engine in requirement.engines
    ):
        return None
    engines = [_engine_in_own_pools(engine, by_name[engine.name], info) for engine in requirement.engines]
    return tuple(filter(None, engines)) if None not in engines else None


def _engine_in_own_pools(
    engine: EngineRequirement, old_engine: EnginePlacement, info: ClusterInfo
) -> EnginePlacement | None:
    """Return an engine in its own pools; None if its members or the hardware do not match."""
    if [member.role for member in engine.members] != [member.role for member in old_engine.members]:
        return None
    pools = info.cluster.pools
    members: list[MemberPlacement] = []
    for member, old in zip(engine.members, old_engine.members, strict=True):
        if old.pool not in pools.names:
            return None
        result = match(member, pools.profile.offers[pools.names.index(old.pool)])
        if not isinstance(result, Match):
            return None
        nodes = member.nodes if result.claims else 0
        members.append(MemberPlacement(member.role, old.pool, nodes, result.claims, member.amounts))
    return EnginePlacement(engine.name, tuple(members)) if any(member.claims for member in members) else None


def _has_room(requirement: Requirement, engines: Engines, info: ClusterInfo) -> bool:
    """True if the pools have enough free nodes, and each gang fits on one fabric."""
    pools = info.cluster.pools
    return info.has_room(load_of(engines)) and all(
        gathers(engine, nodes, pools, pools.names.index(pool))
        for engine, placements in zip(requirement.engines, engines, strict=True)
        for pool, nodes in charges([placements]).items()
    )


def _refit(requirement: Requirement, replica: Replica, info: ClusterInfo) -> Engines | Refused:
    """Return the current shape on the replica's cluster, including its own nodes, preferably in its own pools; or
    why not.
    """
    own = info.release(replica.load)
    pinned = _in_own_pools(requirement, replica, own)
    if pinned is not None and _has_room(requirement, pinned, own):
        return pinned
    hosting = hosts(requirement.engines, own.cluster.pools.profile)
    if not isinstance(hosting, Hosts):
        return explain_mismatch(own, hosting)
    result = fit(requirement.engines, hosting, own)
    return engine_placements(requirement.engines, result.chosen, own) if isinstance(result, Fit) else result
