"""Every rejection of the scheduler as a value. Only `prose` turns them into sentences.

A reason why a cluster takes no replica belongs to a group. A decision over thousands of clusters counts groups and
shows the nearest miss of each. There are few groups in any fleet: one per kind of reason, and per engine for reasons
about an engine.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias

from modelplane_operator.scheduling.cluster import Usability

# Reasons about a node ----------------------------------------------------------------------------------------------

Distance: TypeAlias = tuple[float, ...]
"""Distance of a miss: the smaller, the less would have to change."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """No device meets the request's selectors; this one is nearest."""

    request: str
    """Name of the device request."""
    device: str
    """Name of the nearest device; empty if the pool has no devices."""
    reason: str
    """Reason of its first selector that does not match."""
    distance: Distance
    """Number of selectors that do not match, then the negative closeness of the first."""

    @property
    def rank(self) -> Distance:
        """Distance of the miss. Another device is farther than more devices of this type."""
        return (2, *self.distance)


@dataclass(frozen=True, slots=True)
class TooFewDevices:
    """A device meets the selectors, but the node has too few of it."""

    request: str
    device: str
    needs: int
    """Number of devices that the request needs."""
    has: int
    """Number of such devices on each node."""

    @property
    def rank(self) -> Distance:
        """Distance of the miss, by the number of missing devices."""
        return (1, self.needs - self.has)


@dataclass(frozen=True, slots=True)
class Contended:
    """The node can meet each of the requests, but not all of them together."""

    requests: tuple[str, ...]
    """Names of all requests of the member."""

    @property
    def rank(self) -> Distance:
        return (0,)


Miss: TypeAlias = Unlike | TooFewDevices | Contended


# Reasons why a cluster takes no replica ----------------------------------------------------------------------------


class Group(NamedTuple):
    """A group of reasons that are counted together, ordered from nearest misses to farthest."""

    order: int
    """Position among the groups."""
    engine: str = ""
    """Name of the engine that the reason is about; empty for a reason about the cluster."""


@dataclass(frozen=True, slots=True)
class Full:
    """The pool has the hardware, but too few free nodes. Of the matching pools it is the nearest to having enough."""

    engine: str
    pool: str
    needs: int
    """Number of nodes that the engine needs."""
    free: int
    """Number of free nodes; negative if the pool has shrunk."""
    nodes: int
    """Number of nodes of the pool."""
    unusable: Usability | None = None
    """Counts of the pool's nodes, if some are not usable."""

    @property
    def group(self) -> Group:
        """Group of the engine: each engine of a deployment has an obstacle of its own."""
        return Group(0, self.engine)

    @property
    def rank(self) -> Distance:
        """Distance by the number of missing free nodes."""
        return (self.needs - max(self.free, 0),)


@dataclass(frozen=True, slots=True)
class Fragmented:
    """The pool is shared by device, and no node has as much free as a pod needs, whatever the sum is."""

    engine: str
    pool: str
    pods: tuple[tuple[int, int], ...]
    """Devices that a pod needs on one node, and the number of such pods."""
    free: tuple[tuple[int, int], ...]
    """Free devices of a node, and the number of such nodes, most first."""
    nodes: int
    """Number of nodes of the pool."""
    short: int
    """Number of pods without room."""
    unusable: Usability | None = None
    """Counts of the pool's nodes, if some are not usable."""

    @property
    def group(self) -> Group:
        return Group(0, self.engine)

    @property
    def rank(self) -> Distance:
        return (self.short,)


@dataclass(frozen=True, slots=True)
class TooSmallNode:
    """A pod requests more CPU, memory or disk than an empty node of the shared pool has."""

    engine: str
    pool: str
    amount: str
    """What it requests too much of."""

    rank = ()

    @property
    def group(self) -> Group:
        return Group(7, self.engine)


@dataclass(frozen=True, slots=True)
class Crowded:
    """Each engine alone finds free nodes, but not all of them together."""

    needs: tuple[tuple[str, int], ...]
    """Minimum number of nodes of each engine."""
    free: tuple[tuple[str, int], ...]
    """Free nodes of each pool that one of the engines could use."""

    group = Group(1)

    @property
    def rank(self) -> Distance:
        return (sum(nodes for _, nodes in self.needs) - sum(max(nodes, 0) for _, nodes in self.free),)


@dataclass(frozen=True, slots=True)
class NoGateway:
    """The cluster has the hardware, but its gateway has no address, so a replica there could not be reached."""

    group = Group(2)
    rank = ()


@dataclass(frozen=True, slots=True)
class NoGangs:
    """The cluster has the hardware, but no LeaderWorkerSet, which the engine needs to start its pods together."""

    engine: str

    rank = ()

    @property
    def group(self) -> Group:
        return Group(3, self.engine)


@dataclass(frozen=True, slots=True)
class NoCacheStorage:
    """The cluster has the hardware, but no storage for the weights that the replica starts from."""

    cache: str
    """Name of the ModelCache."""

    group = Group(3)
    rank = ()


@dataclass(frozen=True, slots=True)
class NotReady:
    """The cluster is not Ready. `reason` is the reason of its condition."""

    reason: str
    """Reason of the Ready condition."""

    group = Group(4)
    rank = ()


@dataclass(frozen=True, slots=True)
class ClusterUnreachable:
    """The cluster is unreachable."""

    group = Group(5)
    rank = ()


@dataclass(frozen=True, slots=True)
class Tainted:
    """The cluster has the hardware, but also a taint that the deployment does not tolerate."""

    key: str
    value: str
    effect: str

    group = Group(6)
    rank = ()


@dataclass(frozen=True, slots=True)
class TooSmall:
    """The pool has the hardware, but fewer nodes in total than the engine needs. No other matching pool has more."""

    engine: str
    pool: str
    needs: int
    """Number of nodes of the entire engine."""
    nodes: int
    """Number of nodes of the pool, free or not."""
    unusable: Usability | None = None
    """Counts of the pool's nodes, if some are not usable."""

    @property
    def group(self) -> Group:
        return Group(7, self.engine)

    @property
    def rank(self) -> Distance:
        return (self.needs - self.nodes,)


@dataclass(frozen=True, slots=True)
class Scattered:
    """The pool has the hardware, but no single fabric with enough nodes for a gang. This fabric has the most."""

    engine: str
    pool: str
    needs: int
    """Number of nodes of one gang."""
    fabric: str
    """Name of the fabric; empty when no usable node carries the fabric's label."""
    nodes: int
    """Number of usable nodes on the fabric."""

    @property
    def group(self) -> Group:
        return Group(8, self.engine)

    @property
    def rank(self) -> Distance:
        return (self.needs - self.nodes,)


@dataclass(frozen=True, slots=True)
class Split:
    """Each member of the engine matches a pool, but no pool runs them all, and an engine is not split over two.

    This pool matches most members. The named role is the first that it does not match.
    """

    engine: str
    pool: str
    role: str
    """Role of the first member that the pool does not match."""
    miss: Miss | None
    """Miss of that member; None if the pool has only unclaimable devices for it."""

    rank = ()

    @property
    def group(self) -> Group:
        return Group(10, self.engine)


@dataclass(frozen=True, slots=True)
class NothingToClaim:
    """Only unclaimable devices match the engine, so its pods would get none."""

    engine: str

    rank = ()

    @property
    def group(self) -> Group:
        return Group(11, self.engine)


@dataclass(frozen=True, slots=True)
class NoMatch:
    """No pool has the devices that a member of the engine needs; this pool is nearest."""

    engine: str
    role: str
    pool: str
    """Name of the nearest pool."""
    miss: Miss
    """Reason of that pool."""

    @property
    def group(self) -> Group:
        return Group(12, self.engine)

    @property
    def rank(self) -> Distance:
        return self.miss.rank


@dataclass(frozen=True, slots=True)
class UnknownPools:
    """No known pool has the devices, and the hardware of these pools, each with its class, is unknown."""

    pools: tuple[tuple[str, str], ...]
    """Names of the pools, each with the name of its InferenceClass."""
    others: Split | NothingToClaim | NoMatch
    """Reason why the known pools do not match."""

    group = Group(9)

    @property
    def rank(self) -> Distance:
        return self.others.rank


@dataclass(frozen=True, slots=True)
class NoPools:
    """The cluster publishes no pools, so its hardware is unknown."""

    reason: NotReady | ClusterUnreachable | NoGateway | None = None
    """State of the cluster, which may be the cause."""

    group = Group(13)
    rank = ()


@dataclass(frozen=True, slots=True)
class ClusterTerminating:
    """The cluster is being deleted."""

    group = Group(14)
    rank = ()


@dataclass(frozen=True, slots=True)
class LabelDiffers:
    """The cluster does not have a label that the deployment or its cache requires."""

    key: str
    selected: str
    """Value that is required."""
    actual: str | None
    """Value on the cluster; None if it does not have the label."""
    cache: str = ""
    """Name of the ModelCache that requires it; empty if the deployment does."""

    group = Group(15)
    rank = ()


@dataclass(frozen=True, slots=True)
class Spare:
    """The cluster could take a replica, but others came first or no more were needed."""

    group = Group(16)
    rank = ()


Refused: TypeAlias = (
    Full
    | Fragmented
    | Crowded
    | TooSmall
    | TooSmallNode
    | Scattered
    | NoGateway
    | NoGangs
    | NoCacheStorage
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


# Reasons why a replica is deleted or moved -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterDeleted:
    """Its cluster no longer exists."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Another replica has the same cluster and index."""

    of: str
    """Name of the replica that stays."""


@dataclass(frozen=True, slots=True)
class ScaledDown:
    """The deployment wants fewer replicas."""

    replicas: int
    """Number of replicas that it wants."""


@dataclass(frozen=True, slots=True)
class Outdated:
    """The deployment has changed so that the replica cannot stay where it is."""

    reason: Refused
    """Reason why the new shape does not fit on its cluster."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Its cluster has been unreachable or not Ready for longer than the deployment's failover time."""

    since: datetime
    """Time since when the cluster has been lost."""


@dataclass(frozen=True, slots=True)
class Displaced:
    """It has found no nodes for long: its pool has this many fewer than its replicas need."""

    pool: str
    short: int
    """Number of missing nodes."""


Moving: TypeAlias = ClusterTerminating | Tainted | Outdated | Lost | Displaced


@dataclass(frozen=True, slots=True)
class Forced:
    """It has to move, has no other place, and its cluster is drained by force."""

    reason: Moving


Leaving: TypeAlias = ClusterDeleted | Duplicate | ScaledDown | Forced
