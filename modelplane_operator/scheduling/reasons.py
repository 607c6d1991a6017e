"""Why not: every "no" of the scheduler as a value. `prose` turns them into sentences, and nothing else does.

A reason why a cluster takes no replica belongs to a group, so that a decision over thousands of clusters counts groups
and shows the nearest miss of each. The groups are few whatever the fleet looks like: one per kind of reason, and per
engine where it is about one.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias

# Why a node does not do --------------------------------------------------------------------------------------------

Nearness: TypeAlias = tuple[float, ...]
"""How near a miss is: the smaller, the less would have to change."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """No device meets the request's selectors; this one comes nearest."""

    request: str
    device: str
    why: str
    distance: Nearness

    @property
    def nearness(self) -> Nearness:
        return (2, *self.distance)


@dataclass(frozen=True, slots=True)
class TooFewDevices:
    """A device meets the selectors, but the node has too few of it."""

    request: str
    device: str
    needs: int
    has: int

    @property
    def nearness(self) -> Nearness:
        return (1, self.needs - self.has)


@dataclass(frozen=True, slots=True)
class Contended:
    """The node can meet each of the requests, but not all of them at once."""

    requests: tuple[str, ...]

    @property
    def nearness(self) -> Nearness:
        return (0,)


Miss: TypeAlias = Unlike | TooFewDevices | Contended


# Why a cluster takes no replica ------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Reasons that are counted together, in the order in which they are told: nearest misses first."""

    order: int
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Full:
    """The pool has the hardware, but too few free nodes; of the pools that fit, it is the nearest to having enough."""

    engine: str
    pool: str
    needs: int
    free: int
    nodes: int

    @property
    def group(self) -> Group:
        return Group(0, self.engine)

    @property
    def nearness(self) -> Nearness:
        return (self.needs - max(self.free, 0),)


@dataclass(frozen=True, slots=True)
class Crowded:
    """Every engine alone finds free nodes, but not all of them together."""

    needs: tuple[tuple[str, int], ...]
    """For each engine the fewest nodes that will do."""
    free: tuple[tuple[str, int], ...]
    """For each pool that any of them could use its free nodes."""

    group = Group(1)

    @property
    def nearness(self) -> Nearness:
        return (sum(nodes for _, nodes in self.needs) - sum(max(nodes, 0) for _, nodes in self.free),)


@dataclass(frozen=True, slots=True)
class NoGateway:
    """The cluster has the hardware, but its gateway has no address: nothing could reach a replica there."""

    group = Group(2)
    nearness = ()


@dataclass(frozen=True, slots=True)
class NoGangs:
    """The cluster has the hardware, but serves no LeaderWorkerSet, by which the engine's pods would start together."""

    engine: str

    nearness = ()

    @property
    def group(self) -> Group:
        return Group(3, self.engine)


@dataclass(frozen=True, slots=True)
class NotReady:
    """The cluster is not Ready; `why` is what its condition says."""

    why: str

    group = Group(4)
    nearness = ()


@dataclass(frozen=True, slots=True)
class ClusterUnreachable:
    """The cluster does not answer."""

    group = Group(5)
    nearness = ()


@dataclass(frozen=True, slots=True)
class Tainted:
    """The cluster has the hardware, and a taint that the deployment does not tolerate."""

    key: str
    value: str
    effect: str

    group = Group(6)
    nearness = ()


@dataclass(frozen=True, slots=True)
class TooSmall:
    """The pool has the hardware, but fewer nodes in all than the engine needs; no other pool that fits has more."""

    engine: str
    pool: str
    needs: int
    nodes: int

    @property
    def group(self) -> Group:
        return Group(7, self.engine)

    @property
    def nearness(self) -> Nearness:
        return (self.needs - self.nodes,)


@dataclass(frozen=True, slots=True)
class Scattered:
    """The pool has the hardware, but no one fabric of it has the nodes that a gang needs; this one has most."""

    engine: str
    pool: str
    needs: int
    fabric: str
    """Empty when no usable node says on which fabric it is."""
    nodes: int

    @property
    def group(self) -> Group:
        return Group(8, self.engine)

    @property
    def nearness(self) -> Nearness:
        return (self.needs - self.nodes,)


@dataclass(frozen=True, slots=True)
class Split:
    """Every member of the engine finds a pool, but no pool can run them all, and an engine is not spread over two.

    This pool does for most of them; the first for which it does not is the member of that role.
    """

    engine: str
    pool: str
    role: str
    miss: Miss | None
    """Why it does not; None where it has only devices for the member that pods cannot claim."""

    nearness = ()

    @property
    def group(self) -> Group:
        return Group(10, self.engine)


@dataclass(frozen=True, slots=True)
class NothingToClaim:
    """The engine is met by devices that nobody claims, so that its pods would get none."""

    engine: str

    nearness = ()

    @property
    def group(self) -> Group:
        return Group(11, self.engine)


@dataclass(frozen=True, slots=True)
class NoMatch:
    """No pool has the devices that a member of the engine needs; this pool comes nearest."""

    engine: str
    role: str
    pool: str
    miss: Miss

    @property
    def group(self) -> Group:
        return Group(12, self.engine)

    @property
    def nearness(self) -> Nearness:
        return self.miss.nearness


@dataclass(frozen=True, slots=True)
class UnknownPools:
    """No pool that is known has the devices, and of these, each with its class, nothing is known."""

    pools: tuple[tuple[str, str], ...]
    others: Split | NothingToClaim | NoMatch
    """Why those that are known do not do."""

    group = Group(9)

    @property
    def nearness(self) -> Nearness:
        return self.others.nearness


@dataclass(frozen=True, slots=True)
class NoPools:
    """The cluster publishes no pools, so that nobody knows whether it has the hardware."""

    why: NotReady | ClusterUnreachable | NoGateway | None = None
    """What it says of itself, which may be the cause."""

    group = Group(13)
    nearness = ()


@dataclass(frozen=True, slots=True)
class ClusterTerminating:
    """The cluster is being deleted."""

    group = Group(14)
    nearness = ()


@dataclass(frozen=True, slots=True)
class LabelDiffers:
    """The cluster does not carry a label that the deployment or its cache asks for."""

    key: str
    wanted: str
    found: str | None

    group = Group(15)
    nearness = ()


@dataclass(frozen=True, slots=True)
class Spare:
    """The cluster would do; others came first, or no more replicas were needed."""

    group = Group(16)
    nearness = ()


Refused: TypeAlias = (
    Full
    | Crowded
    | TooSmall
    | Scattered
    | NoGateway
    | NoGangs
    | NotReady
    | ClusterUnreachable
    | Tainted
    | UnknownPools
    | Split
    | NothingToClaim
    | NoMatch
    | NoPools
    | ClusterTerminating
    | LabelDiffers
)
Reason: TypeAlias = Refused | Spare


# Why a replica goes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterGone:
    """Its cluster does not exist any more."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Another replica has the same cluster and index."""

    of: str


@dataclass(frozen=True, slots=True)
class ScaledDown:
    """The deployment asks for fewer."""

    replicas: int


@dataclass(frozen=True, slots=True)
class Outdated:
    """The deployment has changed so that the replica cannot stay where it is."""

    why: Refused


@dataclass(frozen=True, slots=True)
class Lost:
    """Its cluster has been unreachable or not Ready for longer than the deployment waits."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Displaced:
    """It has found no nodes for long: its pool has so many fewer than its replicas take."""

    pool: str
    short: int


Moving: TypeAlias = ClusterTerminating | Tainted | Outdated | Lost | Displaced


@dataclass(frozen=True, slots=True)
class Forced:
    """It is to move, has no place elsewhere, and somebody wants its cluster drained all the same."""

    why: Moving


Leaving: TypeAlias = ClusterGone | Duplicate | ScaledDown | Forced
