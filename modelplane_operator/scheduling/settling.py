"""A replica that stays takes the shape that its deployment has now: in its pools, else in others of its cluster."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from kubeloop.objects import Key
from modelplane_operator.api.placement import EnginePlacement, MemberPlacement, Placement
from modelplane_operator.scheduling.decision import Held
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.matching import Hosts, Match, hosts, match
from modelplane_operator.scheduling.placement import Replica, charges, larger
from modelplane_operator.scheduling.reasons import Outdated, Refused
from modelplane_operator.scheduling.requirement import EngineRequirement, PlacementRequest, Requirement
from modelplane_operator.scheduling.survey import Fit, fit, gathers, placed, unhosted

Engines = tuple[EnginePlacement, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """The replicas that stay, and their clusters once those that could have taken their shape."""

    kept: tuple[tuple[Replica, Placement], ...]
    held: tuple[Held, ...]
    infos: Mapping[str, ClusterInfo]

    @property
    def staying(self) -> tuple[Replica, ...]:
        return (*(replica for replica, _ in self.kept), *(held.replica for held in self.held))

    def without(self, gone: Container[Key]) -> "Settled":
        """Without some of the replicas. Their nodes stay taken until they are gone."""
        return Settled(
            tuple(row for row in self.kept if row[0].key not in gone),
            tuple(held for held in self.held if held.replica.key not in gone),
            self.infos,
        )


def settle(request: PlacementRequest, staying: Sequence[Replica], infos: Mapping[str, ClusterInfo]) -> Settled:
    """Give every replica its present shape where there is room for it; the others are held as they are."""
    if not request.readable:
        return Settled((), tuple(Held(replica, None) for replica in staying), infos)
    room = dict(infos)
    kept: dict[Key, Placement] = {}

    def keep(replica: Replica, engines: Engines) -> None:
        info = room[replica.cluster]
        kept[replica.key] = Placement(replica.cluster, replica.index, engines)
        # Its pods of before have their nodes until they are gone, whatever it is to have from then on.
        room[replica.cluster] = info.released(replica.charges).charged(larger(replica.charges, charges(engines)))

    # Those that need no more than they have come first: they are sure of their nodes.
    waiting: list[Replica] = []
    for replica in staying:
        pinned = _pinned(request.requirement, replica, room[replica.cluster])
        if pinned is not None and _needs_no_more(pinned, replica):
            keep(replica, pinned)
        else:
            waiting.append(replica)
    while True:
        still: list[tuple[Replica, Refused]] = []
        for replica in waiting:
            match _refitted(request.requirement, replica, room[replica.cluster]):
                case tuple() as engines:
                    keep(replica, engines)
                case refused:
                    still.append((replica, refused))
        if len(still) == len(waiting):
            held = tuple(Held(replica, Outdated(refused)) for replica, refused in still)
            return Settled(
                tuple((replica, kept[replica.key]) for replica in staying if replica.key in kept), held, room
            )
        waiting = [replica for replica, _ in still]


def _needs_no_more(engines: Engines, replica: Replica) -> bool:
    """A replica keeps the nodes that it has, even those of a pool that has shrunk."""
    has = replica.charges
    return all(nodes <= has.get(pool, 0) for pool, nodes in charges(engines).items())


def _pinned(requirement: Requirement, replica: Replica, info: ClusterInfo) -> Engines | None:
    """The present shape in the replica's own pools, whether or not they have room; None when they do not match."""
    known = {engine.name: engine for engine in replica.engines}
    if len(requirement.engines) != len(replica.engines) or any(
        engine.name not in known for engine in requirement.engines
    ):
        return None
    engines = [_pinned_engine(engine, known[engine.name], info) for engine in requirement.engines]
    return tuple(filter(None, engines)) if None not in engines else None


def _pinned_engine(engine: EngineRequirement, was: EnginePlacement, info: ClusterInfo) -> EnginePlacement | None:
    if [member.role for member in engine.members] != [member.role for member in was.members]:
        return None
    pools = info.cluster.pools
    members: list[MemberPlacement] = []
    for member, before in zip(engine.members, was.members, strict=True):
        if before.pool not in pools.names:
            return None
        found = match(member, pools.profile.offers[pools.names.index(before.pool)])
        if not isinstance(found, Match):
            return None
        members.append(MemberPlacement(member.role, before.pool, member.nodes if found.claims else 0, found.claims))
    return EnginePlacement(engine.name, tuple(members)) if any(member.claims for member in members) else None


def _has_room(requirement: Requirement, engines: Engines, info: ClusterInfo) -> bool:
    pools = info.cluster.pools
    return all(nodes <= info.free_in(pool) for pool, nodes in charges(engines).items()) and all(
        gathers(engine, nodes, pools, pools.names.index(pool))
        for engine, placed in zip(requirement.engines, engines, strict=True)
        for pool, nodes in charges([placed]).items()
    )


def _refitted(requirement: Requirement, replica: Replica, info: ClusterInfo) -> Engines | Refused:
    """The present shape on the replica's cluster, with its own nodes to spend: in its pools if that can be."""
    own = info.released(replica.charges)
    pinned = _pinned(requirement, replica, own)
    if pinned is not None and _has_room(requirement, pinned, own):
        return pinned
    hosting = hosts(requirement.engines, own.cluster.pools.profile)
    if not isinstance(hosting, Hosts):
        return unhosted(own, hosting)
    found = fit(requirement.engines, hosting, own)
    return placed(requirement.engines, found.chosen, own) if isinstance(found, Fit) else found
