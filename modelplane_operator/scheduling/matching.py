"""Which hardware fits: requests to the devices of a node, members to a pool, engines to the pools of a cluster.

All of it depends only on content, so that it is worked out once for a cluster's profile and remembered. If there is a
way to fit, it is found (see `assignment`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from modelplane_operator.scheduling import cel
from modelplane_operator.scheduling.assignment import assign
from modelplane_operator.scheduling.cluster import Offer, OfferedDevice, Profile
from modelplane_operator.scheduling.need import EngineNeed, MemberNeed, Request
from modelplane_operator.scheduling.placement import Claim
from modelplane_operator.scheduling.reasons import Contended, Miss, TooFewDevices, Unlike


@dataclass(frozen=True, slots=True)
class Match:
    """The claims of a pod on this node. Requests that are met by a device nobody claims leave none."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A pool that can run an engine: its place in the cluster's order, the nodes it takes and the members' claims."""

    pool: int
    nodes: int
    claims: tuple[tuple[Claim, ...], ...]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A member that no pool of the cluster matches, and the pool that is nearest to it."""

    engine: str
    role: str
    pool: int
    miss: Miss


@dataclass(frozen=True, slots=True)
class Unhosted:
    """An engine whose members all match some pool, but that no pool can run as a whole."""

    engine: str
    claimless: bool
    """No member claims a device anywhere on the cluster: its pods would get none."""


Options = tuple[tuple[Option, ...], ...]
"""For each engine the pools that can run it, in published order."""


@lru_cache(maxsize=16_384)
def options(engines: tuple[EngineNeed, ...], profile: Profile) -> Options | Unmatched | Unhosted:
    """Where each engine can run, if nodes were free; or what is in the way of the first that cannot."""
    found: list[tuple[Option, ...]] = []
    for engine in engines:
        hosts = _hosts(engine, profile)
        if not isinstance(hosts, tuple):
            return hosts
        found.append(hosts)
    return tuple(found)


@lru_cache(maxsize=16_384)
def match(member: MemberNeed, offer: Offer) -> Match | Miss:
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


def _cost(request: Request, device: OfferedDevice) -> int | None:
    matched = all(cel.evaluate(selector, device.device).matched for selector in request.selectors)
    return request.count if matched else None


def _hosts(engine: EngineNeed, profile: Profile) -> tuple[Option, ...] | Unmatched | Unhosted:
    matches = [[match(member, offer) for offer in profile.offers] for member in engine.members]
    for member, row in zip(engine.members, matches, strict=True):
        misses = [(miss.nearness, pool, miss) for pool, miss in enumerate(row) if not isinstance(miss, Match)]
        if row and len(misses) == len(row):
            _, pool, miss = min(misses, key=lambda near: near[:2])
            return Unmatched(engine.name, member.role, pool, miss)
    claimable = [any(isinstance(fit, Match) and fit.claims for fit in row) for row in matches]
    if not any(claimable):
        return Unhosted(engine.name, claimless=True)
    hosts = tuple(
        option
        for pool in range(len(profile.offers))
        if (option := _option(engine.members, [row[pool] for row in matches], pool, claimable)) is not None
    )
    return hosts or Unhosted(engine.name, claimless=False)


def _option(
    members: Sequence[MemberNeed], fits: Sequence[Match | Miss], pool: int, claimable: Sequence[bool]
) -> Option | None:
    """The pool as a host for the engine.

    A member that could claim a device on another pool of the cluster must claim one here: else it would run without.
    """
    claims: list[tuple[Claim, ...]] = []
    for fit, could_claim in zip(fits, claimable, strict=True):
        if not isinstance(fit, Match) or (could_claim and not fit.claims):
            return None
        claims.append(fit.claims)
    nodes = sum(member.nodes for member, claimed in zip(members, claims, strict=True) if claimed)
    return Option(pool, nodes, tuple(claims))


def _miss(requests: Sequence[Request], offer: Offer) -> Miss:
    """Of the requests that this node cannot meet, the one that is farthest off: it must be seen to in any case."""
    misses = [miss for request in requests if (miss := _missed(request, offer)) is not None]
    return max(misses, key=lambda miss: miss.nearness, default=Contended(tuple(r.name for r in requests)))


def _missed(request: Request, offer: Offer) -> Miss | None:
    """Why no device of the node meets the request by itself: the device that comes nearest to it."""
    misses: list[Miss] = []
    for device in offer.devices:
        miss = _compared(request, device)
        if miss is None:
            return None
        misses.append(miss)
    return min(misses, key=lambda miss: miss.nearness, default=Unlike(request.name, "", "the pool has no devices", ()))


def _compared(request: Request, device: OfferedDevice) -> Miss | None:
    verdicts = [cel.evaluate(selector, device.device) for selector in request.selectors]
    unmet = [verdict for verdict in verdicts if not verdict.matched]
    if unmet:
        return Unlike(request.name, device.name, unmet[0].reason, (len(unmet), -unmet[0].nearness))
    if device.count < request.count:
        return TooFewDevices(request.name, device.name, request.count, device.count)
    return None
