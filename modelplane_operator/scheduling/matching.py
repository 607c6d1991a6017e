"""Match hardware: requests to devices of a node, members to a pool, engines to pools of a cluster.

All results depend on content only, so they are computed once per profile and cached. If there is an assignment, it is
found (see `assignment`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kubeloop.memo import memoize_bounded
from modelplane_operator.api.placement import Claim
from modelplane_operator.scheduling.assignment import assign
from modelplane_operator.scheduling.cluster import NodeDevice, NodeShape, Profile
from modelplane_operator.scheduling.reasons import Contended, Miss, TooFewDevices, Unlike
from modelplane_operator.scheduling.requirement import DeviceRequirement, EngineRequirement, MemberRequirement
from modelplane_operator.scheduling.room import Pods, PodShape
from modelplane_operator.selectors import cel


@dataclass(frozen=True, slots=True)
class Match:
    """The claims of a pod on this node. A request met by an unclaimable device has no claim."""

    claims: tuple[Claim, ...]
    """Claims for the pod's ResourceClaim, in the order of the requests."""


class Option(NamedTuple):
    """A pool that can run an engine: its index in the cluster, the nodes it takes, and the members' claims."""

    pool: int
    """Index of the pool in the cluster's published order."""
    nodes: int
    """Number of nodes of all members that claim a device."""
    claims: tuple[tuple[Claim, ...], ...]
    """Claims of each member, in the order of the engine."""
    pods: Pods
    """Pods that claim a device, by what each takes of a shared node."""


class Hosts(NamedTuple):
    """The pools that can run each engine, in published order, and the indices of all such pools."""

    options: tuple[tuple[Option, ...], ...]
    """Pools of each engine, in the order of the engines."""
    pools: tuple[int, ...]
    """Indices of all pools in the options, each once."""


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A member that no pool of the cluster matches, and the nearest pool."""

    engine: str
    role: str
    pool: int
    """Index of the nearest pool."""
    miss: Miss
    """Reason why that pool does not match."""


@dataclass(frozen=True, slots=True)
class Claimless:
    """An engine without a member that claims a device anywhere on the cluster. Its pods would get no devices."""

    engine: str


@dataclass(frozen=True, slots=True)
class Unhosted:
    """An engine whose members all match some pool, but that no single pool can run.

    The named pool matches most of the members, and not the one with this role.
    """

    engine: str
    pool: int
    """Index of the pool that matches most members."""
    role: str
    """Role of the first member that this pool does not match."""
    miss: Miss | None
    """Miss of the member; None if it matches but would claim no device there, although it could elsewhere."""


Hosting = Hosts | Unmatched | Claimless | Unhosted


# Cache keys contain users' selectors, up to many kilobytes, so the caches are limited by bytes.
CACHE_BYTES = 32 << 20


def _size_of_match(member: MemberRequirement, _: NodeShape) -> int:
    """Return the estimated bytes of a cached match, whose key has the texts of the selectors."""
    texts = sum(len(selector.text) for request in member.requests for selector in request.selectors)
    return 1_500 + texts


def _size_on_node(engine: EngineRequirement, offer: NodeShape) -> int:
    """Return the estimated bytes of an engine's cached results on one node shape."""
    return 500 + sum(_size_of_match(member, offer) for member in engine.members)


def _size_of_hosts(engines: tuple[EngineRequirement, ...], profile: Profile) -> int:
    """Return the estimated bytes of cached hosts, by the first node shape of the profile."""
    offer = next(iter(profile.offers), NodeShape(()))
    return 1_000 * (1 + len(profile.offers)) + sum(_size_on_node(engine, offer) for engine in engines)


@memoize_bounded(most=CACHE_BYTES, size=_size_of_match)
def match(member: MemberRequirement, offer: NodeShape) -> Match | Miss:
    """Assign every request of a pod to a device entry of its node, preferably a claimable one; or return the miss."""
    requests = member.requests
    devices = sorted(offer.devices, key=lambda device: not device.claimable)  # stable: otherwise in published order
    # the number of devices that each request takes of an entry; None if the entry does not match
    costs = [
        [
            request.count
            if all(cel.evaluate(selector, device.device).matched for selector in request.selectors)
            else None
            for device in devices
        ]
        for request in requests
    ]
    chosen = assign(costs, [device.count for device in devices])
    if chosen is None:
        misses = [miss for request in requests if (miss := _request_miss(request, offer)) is not None]
        # The request that is farthest off has to be resolved in any case.
        return max(misses, key=lambda miss: miss.rank, default=Contended(tuple(r.name for r in requests)))
    return Match(
        tuple(
            Claim(request.name, device.device_class, request.count, tuple(s.text for s in request.selectors))
            for request, device in zip(requests, (devices[index] for index in chosen), strict=True)
            if device.claimable
        )
    )


class _NodeMatch(NamedTuple):
    """The results of an engine on one node shape. Sets of members are bit masks."""

    matched: int
    """Members that match."""
    claiming: int
    """Members that claim a device."""
    nodes: int
    """Number of nodes of the claiming members."""
    claims: tuple[tuple[Claim, ...], ...]
    """Claims of each member."""
    pods: Pods
    """Pods that claim a device."""


@memoize_bounded(most=CACHE_BYTES, size=_size_on_node)
def _match_engine(engine: EngineRequirement, offer: NodeShape) -> _NodeMatch:
    """Match all members of an engine to a node shape."""
    matches = [match(member, offer) for member in engine.members]
    claims = tuple(result.claims if isinstance(result, Match) else () for result in matches)
    return _NodeMatch(
        matched=sum(1 << index for index, result in enumerate(matches) if isinstance(result, Match)),
        claiming=sum(1 << index for index, member_claims in enumerate(claims) if member_claims),
        nodes=sum(member.nodes for member, member_claims in zip(engine.members, claims, strict=True) if member_claims),
        claims=claims,
        pods=tuple(
            (PodShape(member_claims, member.amounts), member.nodes)
            for member, member_claims in zip(engine.members, claims, strict=True)
            if member_claims
        ),
    )


class OnNodes(dict[NodeShape, _NodeMatch]):
    """Results of an engine by node shape.

    They are looked up for every pool of a fleet, and mostly for the same few shapes.
    """

    def __init__(self, engine: EngineRequirement) -> None:
        """Start without results for an engine."""
        super().__init__()
        self.engine = engine

    def __missing__(self, offer: NodeShape) -> _NodeMatch:
        """Match the engine to a node shape, and store the result."""
        matched = self[offer] = _match_engine(self.engine, offer)
        return matched


@memoize_bounded(most=CACHE_BYTES, size=_size_of_hosts)
def hosts(engines: tuple[EngineRequirement, ...], profile: Profile) -> Hosting:
    """Return the pools that can run each engine, regardless of free nodes; or the obstacle of the first that has
    none.
    """
    return hosts_by([OnNodes(engine) for engine in engines], profile)


def hosts_by(engines: Iterable[OnNodes], profile: Profile) -> Hosting:
    """Return the same, with results that are shared between several profiles."""
    options: list[tuple[Option, ...]] = []
    for on_nodes in engines:
        result = _find_options(on_nodes, profile)
        if not isinstance(result, tuple):
            return result
        options.append(result)
    if len(options) == 1:  # the usual case, in which no pool occurs twice
        return Hosts(tuple(options), tuple([option.pool for option in options[0]]))
    return Hosts(tuple(options), tuple(sorted({option.pool for result in options for option in result})))


def _find_options(on_nodes: OnNodes, profile: Profile) -> tuple[Option, ...] | Unmatched | Claimless | Unhosted:
    """Return the pools on which all members of the engine match.

    A member that can claim a device on some pool of the cluster must claim one, or its pods would run without devices.
    """
    engine = on_nodes.engine
    pools = [on_nodes[offer] for offer in profile.offers]
    all_members = (1 << len(engine.members)) - 1
    matched = claiming = 0
    for pool in pools:
        matched |= pool.matched
        claiming |= pool.claiming
    if matched != all_members and pools:
        return _nearest_miss(engine, profile, matched)
    if not claiming:
        return Claimless(engine.name)
    options = [
        Option(index, pool.nodes, pool.claims, pool.pods)
        for index, pool in enumerate(pools)
        if pool.matched == all_members and pool.claiming == claiming
    ]
    return tuple(options) or _nearest_host(engine, profile, pools, claiming)


def _nearest_miss(engine: EngineRequirement, profile: Profile, matched: int) -> Unmatched:
    """Return the first member that no pool matches, with the nearest pool."""
    member = next(member for index, member in enumerate(engine.members) if not matched >> index & 1)
    misses = [
        (pool, result)
        for pool, offer in enumerate(profile.offers)
        if not isinstance(result := match(member, offer), Match)
    ]
    pool, miss = min(misses, key=lambda result: (result[1].rank, result[0]))
    return Unmatched(engine.name, member.role, pool, miss)


def _nearest_host(engine: EngineRequirement, profile: Profile, pools: Sequence[_NodeMatch], claiming: int) -> Unhosted:
    """Return the pool that suits most members, and the first member that it does not suit."""
    suited = [pool.matched & ~(claiming & ~pool.claiming) for pool in pools]
    best = max(range(len(pools)), key=lambda index: (suited[index].bit_count(), -index))
    member_missing = next(member for index, member in enumerate(engine.members) if not suited[best] >> index & 1)
    result = match(member_missing, profile.offers[best])
    return Unhosted(engine.name, best, member_missing.role, None if isinstance(result, Match) else result)


def _request_miss(request: DeviceRequirement, offer: NodeShape) -> Miss | None:
    """Return the miss of the nearest device; None if a device meets the request by itself."""
    misses: list[Miss] = []
    for device in offer.devices:
        miss = _device_miss(request, device)
        if miss is None:
            return None
        misses.append(miss)
    return min(misses, key=lambda miss: miss.rank, default=Unlike(request.name, "", "the pool has no devices", ()))


def _device_miss(request: DeviceRequirement, device: NodeDevice) -> Miss | None:
    """Return why a device does not meet a request; None if it does."""
    verdicts = [cel.evaluate(selector, device.device) for selector in request.selectors]
    unmet = [verdict for verdict in verdicts if not verdict.matched]
    if unmet:
        return Unlike(request.name, device.name, unmet[0].reason, (len(unmet), -unmet[0].measure_closeness))
    if device.count < request.count:
        return TooFewDevices(request.name, device.name, request.count, device.count)
    return None
