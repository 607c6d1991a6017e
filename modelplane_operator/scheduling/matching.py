"""Which hardware fits: requests to the devices of a node, members to a pool, engines to the pools of a cluster.

All of it depends only on content, so that it is worked out once for a cluster's profile and remembered. If there is a
way to fit, it is found (see `assignment`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kubeloop.memo import remembered
from modelplane_operator.api.placement import Claim
from modelplane_operator.scheduling.assignment import assign
from modelplane_operator.scheduling.cluster import NodeDevice, NodeShape, Profile
from modelplane_operator.scheduling.reasons import Contended, Miss, TooFewDevices, Unlike
from modelplane_operator.scheduling.requirement import DeviceRequirement, EngineRequirement, MemberRequirement
from modelplane_operator.selectors import cel


@dataclass(frozen=True, slots=True)
class Match:
    """The claims of a pod on this node. Requests that are met by a device nobody claims leave none."""

    claims: tuple[Claim, ...]


class Option(NamedTuple):
    """A pool that can run an engine: its place in the cluster's order, the nodes it takes and the members' claims."""

    pool: int
    nodes: int
    claims: tuple[tuple[Claim, ...], ...]


class Hosts(NamedTuple):
    """For each engine the pools that can run it, in published order, and the places of all such pools."""

    options: tuple[tuple[Option, ...], ...]
    pools: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A member that no pool of the cluster matches, and the pool that is nearest to it."""

    engine: str
    role: str
    pool: int
    miss: Miss


@dataclass(frozen=True, slots=True)
class Claimless:
    """An engine of which no member claims a device anywhere on the cluster: its pods would get none."""

    engine: str


@dataclass(frozen=True, slots=True)
class Unhosted:
    """An engine whose members all match some pool, but that no pool can run as a whole.

    This pool does for most members, and not for the one of that role.
    """

    engine: str
    pool: int
    role: str
    miss: Miss | None
    """None where the member would claim no device there, though it could elsewhere on the cluster."""


Hosting = Hosts | Unmatched | Claimless | Unhosted


# Needs hold the selectors that users have written, some kilobytes or many: so answers are kept by their bytes.
KEPT_BYTES = 32 << 20


def _size_of_match(member: MemberRequirement, _: NodeShape) -> int:
    texts = sum(len(selector.text) for request in member.requests for selector in request.selectors)
    return 1_500 + texts


def _size_on_node(engine: EngineRequirement, offer: NodeShape) -> int:
    return 500 + sum(_size_of_match(member, offer) for member in engine.members)


def _size_of_hosts(engines: tuple[EngineRequirement, ...], profile: Profile) -> int:
    offer = next(iter(profile.offers), NodeShape(()))
    return 1_000 * (1 + len(profile.offers)) + sum(_size_on_node(engine, offer) for engine in engines)


@remembered(most=KEPT_BYTES, size=_size_of_match)
def match(member: MemberRequirement, offer: NodeShape) -> Match | Miss:
    """Give every request of a pod one device entry of its node, if possible one that pods claim; or say what lacks."""
    requests = member.requests
    devices = sorted(offer.devices, key=lambda device: not device.claimable)  # stable: else as published
    costs = [[_cost(request, device) for device in devices] for request in requests]
    chosen = assign(costs, [device.count for device in devices])
    if chosen is None:
        return _miss(requests, offer)
    return Match(
        tuple(
            Claim(request.name, device.device_class, request.count, tuple(s.text for s in request.selectors))
            for request, device in zip(requests, (devices[place] for place in chosen), strict=True)
            if device.claimable
        )
    )


def _cost(request: DeviceRequirement, device: NodeDevice) -> int | None:
    matched = all(cel.evaluate(selector, device.device).matched for selector in request.selectors)
    return request.count if matched else None


class _OnNode(NamedTuple):
    """An engine on nodes with one offer; sets of members are bits."""

    matched: int
    claiming: int
    nodes: int
    claims: tuple[tuple[Claim, ...], ...]


@remembered(most=KEPT_BYTES, size=_size_on_node)
def _on_node(engine: EngineRequirement, offer: NodeShape) -> _OnNode:
    found = [match(member, offer) for member in engine.members]
    claims = tuple(fit.claims if isinstance(fit, Match) else () for fit in found)
    return _OnNode(
        matched=sum(1 << place for place, fit in enumerate(found) if isinstance(fit, Match)),
        claiming=sum(1 << place for place, claimed in enumerate(claims) if claimed),
        nodes=sum(member.nodes for member, claimed in zip(engine.members, claims, strict=True) if claimed),
        claims=claims,
    )


class OnNodes(dict[NodeShape, _OnNode]):
    """One engine on nodes with each of many offers: looked up for every pool of a fleet, and mostly the same few."""

    def __init__(self, engine: EngineRequirement) -> None:
        super().__init__()
        self.engine = engine

    def __missing__(self, offer: NodeShape) -> _OnNode:
        found = self[offer] = _on_node(self.engine, offer)
        return found


@remembered(most=KEPT_BYTES, size=_size_of_hosts)
def hosts(engines: tuple[EngineRequirement, ...], profile: Profile) -> Hosting:
    """Where each engine can run, if nodes were free; or what is in the way of the first that cannot."""
    return hosts_by([OnNodes(engine) for engine in engines], profile)


def hosts_by(engines: Iterable[OnNodes], profile: Profile) -> Hosting:
    """The same, for whoever asks for one profile after the other."""
    options: list[tuple[Option, ...]] = []
    for on_nodes in engines:
        found = _options(on_nodes, profile)
        if not isinstance(found, tuple):
            return found
        options.append(found)
    if len(options) == 1:  # nearly always, and then no pool is named twice
        return Hosts(tuple(options), tuple([option.pool for option in options[0]]))
    return Hosts(tuple(options), tuple(sorted({option.pool for found in options for option in found})))


def _options(on_nodes: OnNodes, profile: Profile) -> tuple[Option, ...] | Unmatched | Claimless | Unhosted:
    """The pools that can run the engine: each of its members matches.

    A member that could claim a device on some pool of the cluster must claim one: else its pods would run without.
    """
    engine = on_nodes.engine
    pools = [on_nodes[offer] for offer in profile.offers]
    everyone = (1 << len(engine.members)) - 1
    matched = claiming = 0
    for pool in pools:
        matched |= pool.matched
        claiming |= pool.claiming
    if matched != everyone and pools:
        return _nearest(engine, profile, matched)
    if not claiming:
        return Claimless(engine.name)
    options = [
        Option(place, pool.nodes, pool.claims)
        for place, pool in enumerate(pools)
        if pool.matched == everyone and pool.claiming == claiming
    ]
    return tuple(options) or _unhosted(engine, profile, pools, claiming)


def _nearest(engine: EngineRequirement, profile: Profile, matched: int) -> Unmatched:
    """The first member that nothing matches, and the pool that comes nearest to it."""
    member = next(member for place, member in enumerate(engine.members) if not matched >> place & 1)
    misses = [
        (pool, found)
        for pool, offer in enumerate(profile.offers)
        if not isinstance(found := match(member, offer), Match)
    ]
    pool, miss = min(misses, key=lambda found: (found[1].nearness, found[0]))
    return Unmatched(engine.name, member.role, pool, miss)


def _unhosted(engine: EngineRequirement, profile: Profile, pools: Sequence[_OnNode], claiming: int) -> Unhosted:
    """The pool that does for most members, and the first for which it does not."""
    does = [pool.matched & ~(claiming & ~pool.claiming) for pool in pools]
    place = max(range(len(pools)), key=lambda at: (does[at].bit_count(), -at))
    lacking = next(member for at, member in enumerate(engine.members) if not does[place] >> at & 1)
    found = match(lacking, profile.offers[place])
    return Unhosted(engine.name, place, lacking.role, None if isinstance(found, Match) else found)


def _miss(requests: Sequence[DeviceRequirement], offer: NodeShape) -> Miss:
    """Of the requests that this node cannot meet, the one that is farthest off: it must be seen to in any case."""
    misses = [miss for request in requests if (miss := _missed(request, offer)) is not None]
    return max(misses, key=lambda miss: miss.nearness, default=Contended(tuple(r.name for r in requests)))


def _missed(request: DeviceRequirement, offer: NodeShape) -> Miss | None:
    """Why no device of the node meets the request by itself: the device that comes nearest to it."""
    misses: list[Miss] = []
    for device in offer.devices:
        miss = _compared(request, device)
        if miss is None:
            return None
        misses.append(miss)
    return min(misses, key=lambda miss: miss.nearness, default=Unlike(request.name, "", "the pool has no devices", ()))


def _compared(request: DeviceRequirement, device: NodeDevice) -> Miss | None:
    verdicts = [cel.evaluate(selector, device.device) for selector in request.selectors]
    unmet = [verdict for verdict in verdicts if not verdict.matched]
    if unmet:
        return Unlike(request.name, device.name, unmet[0].reason, (len(unmet), -unmet[0].nearness))
    if device.count < request.count:
        return TooFewDevices(request.name, device.name, request.count, device.count)
    return None
