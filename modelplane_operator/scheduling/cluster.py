"""A cluster from the scheduler's point of view: its hardware, its taints, and whether it is usable now.

`read` parses an InferenceCluster when the fleet observes it; decisions only use the ClusterView. Values that users or
drivers wrote never raise here: they become zero, or errors of the selectors that read them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from kubeloop.condition_types import Condition
from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import GpuPool, InferenceCluster, ObservedPool, PublishedDevice
from modelplane_operator.api.shared import Amounts, Attribute, in_bytes, in_millis
from modelplane_operator.scheduling.cached_hash import CachedHash
from modelplane_operator.scheduling.taints import Taint
from modelplane_operator.selectors.cel import Attribute as Value
from modelplane_operator.selectors.cel import Device, Version


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A type of device on every node of a pool."""

    name: str
    """Name of the entry in the pool's InferenceClass."""
    count: int
    """Number of such devices on each node."""
    claimable: bool
    """True if pods claim the device; otherwise it only guides placement."""
    device_class: str
    """DeviceClass that claims refer to; empty if there is none."""
    device: Device
    """Attributes and capacity for selectors."""


@dataclass(frozen=True, slots=True)
class NodeShape(CachedHash):
    """The devices of every node of a pool. Pools with equal devices share all computed results."""

    devices: tuple[NodeDevice, ...]
    """Devices, in published order."""
    __hash__ = CachedHash.__hash__


class Amount(NamedTuple):
    """CPU in thousandths of a processor, memory and disk in bytes; None where nothing is said."""

    cpu: int | None = None
    memory: int | None = None
    disk: int | None = None

    @classmethod
    def of(cls, amounts: Amounts | None) -> "Amount":
        """Return the published amounts as numbers."""
        if amounts is None:
            return NOTHING_SAID
        return cls(
            in_millis(amounts.cpu) if amounts.cpu else None,
            in_bytes(amounts.memory) if amounts.memory else None,
            in_bytes(amounts.ephemeral_storage) if amounts.ephemeral_storage else None,
        )


NOTHING_SAID = Amount()
"""Amounts of a template that requests nothing, and of a node that publishes nothing."""


@dataclass(frozen=True, slots=True)
class SharedNode(CachedHash):
    """A node that several replicas share by device."""

    devices: tuple[NodeDevice, ...]
    """Devices, in published order."""
    allocatable: Amount
    """What the node has for pods; nothing limits pods where it is not known."""
    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class Profile(CachedHash):
    """The node shapes of a cluster's pools in published order, which determine the hardware that fits."""

    offers: tuple[NodeShape, ...]
    """Node shapes of the pools, in published order."""
    __hash__ = CachedHash.__hash__


class ClusterPhase(Enum):
    """State of a cluster, and whether it can be used."""

    READY = "Ready"
    NOT_READY = "not Ready"
    UNREACHABLE = "unreachable"
    NO_GATEWAY = "no gateway"
    TERMINATING = "being deleted"


class Largest(NamedTuple):
    """The fabric with the most nodes of a pool."""

    value: str
    """Value of the fabric's label."""
    nodes: int
    """Number of usable nodes on the fabric."""


class Usability(NamedTuple):
    """The nodes of a pool, by whether pods can run there."""

    nodes: int
    """Number of nodes with the label of the pool."""
    usable: int
    cordoned: int
    not_ready: int


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a cluster in published order."""

    names: tuple[str, ...]
    """Names of the pools."""
    nodes: tuple[int, ...]
    """Number of nodes of each pool."""
    profile: Profile
    """Hardware of the pools."""
    fabrics: tuple[Largest | None, ...] = ()
    """Largest fabric of each pool, which limits the size of a gang; empty when no pool publishes any."""
    shared: tuple[SharedNode | None, ...] = ()
    """Nodes of each pool that is shared by device, None for the others; empty when no pool is shared."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """An InferenceCluster from the scheduler's point of view."""

    name: str
    labels: Mapping[str, str]
    """Labels of the InferenceCluster, which deployments select by."""
    taints: tuple[Taint, ...]
    """Taints in its spec."""
    pools: Pools
    """Pools with published hardware."""
    gateway: str
    """Address of the gateway; empty if it has none."""
    phase: ClusterPhase
    """State that decides if the cluster takes replicas now."""
    server_name: str = ""
    """Name that the gateway's certificate proves, for https; empty for http."""
    gateway_port: int | None = None
    """Port of the gateway for http, if it is not 80."""
    reason: str = ""
    """Reason of the Ready condition when it is not True."""
    unknown: tuple[tuple[str, str], ...] = ()
    """Pools without published hardware, each with its class."""
    unhealthy_since: datetime | None = None
    """Time since when the cluster has been unreachable or not Ready; None if it is healthy."""
    gangs: bool = True
    """True if the cluster supports gangs: pods that start together (LeaderWorkerSet)."""
    storage: bool = False
    """True if it has storage for ModelCaches."""
    drained_by_force: bool = False
    """True if a drain deletes replicas even if there is no other place for them."""
    unusable: tuple[tuple[str, Usability], ...] = ()
    """Pools with nodes that are not usable."""

    def find_unusable(self, pool: int) -> Usability | None:
        """Return the counts of the pool at this index; None if all its nodes are usable."""
        return dict(self.unusable).get(self.pools.names[pool])

    @property
    def unreachable_since(self) -> datetime | None:
        """Time since when the cluster has been unreachable; None if it is reachable."""
        return self.unhealthy_since if self.phase is ClusterPhase.UNREACHABLE else None


def read(
    cluster: InferenceCluster, *, unreachable_since: datetime | None = None, pools: Pools | None = None
) -> ClusterView:
    """Return the view of a cluster; never raise. `pools` are its pools if they were parsed before."""
    status = cluster.status
    gateway = (status.gateway.address or "") if status and status.gateway else ""
    ready = next((c for c in cluster.conditions if c.type == "Ready"), None)
    phase = _phase(cluster, ready, gateway, unreachable_since)
    unhealthy_since = {
        ClusterPhase.UNREACHABLE: unreachable_since,
        ClusterPhase.NOT_READY: ready.last_transition_time if ready else None,
    }
    published = {pool.name for pool in status.gpu_pools} if status else set[str]()
    apis = status.observed.apis if status and status.observed else ()
    return ClusterView(
        name=cluster.metadata.name,
        labels=cluster.metadata.labels,
        taints=tuple(Taint(taint.key, taint.value or "", taint.effect) for taint in cluster.spec.taints),
        pools=pools if pools is not None else read_pools(status.gpu_pools if status else ()),
        gateway=gateway,
        phase=phase,
        server_name=(status.gateway.server_name or "") if status and status.gateway else "",
        gateway_port=status.gateway.port if status and status.gateway else None,
        reason=ready.reason if ready and ready.status != "True" else "",
        unknown=tuple((pool.name, pool.class_name) for pool in cluster.spec.node_pools if pool.name not in published),
        unhealthy_since=unhealthy_since.get(phase),
        gangs=not apis or "LeaderWorkerSet" in apis,  # before it has reported its APIs, the replica will show it
        storage=bool(status and status.cache and status.cache.storage_class_name),
        drained_by_force=cluster.metadata.annotations.get(labels.FORCE_DRAIN) == "true",
        unusable=tuple(_find_unusable(status.observed.pools if status and status.observed else ())),
    )


def _find_unusable(pools: Iterable[ObservedPool]) -> Iterator[tuple[str, Usability]]:
    """Yield the pools with nodes that are not usable."""
    for pool in pools:
        if pool.usable < pool.nodes:
            yield pool.name, Usability(pool.nodes, pool.usable, pool.cordoned or 0, pool.not_ready or 0)


def _phase(
    cluster: InferenceCluster, ready: Condition | None, gateway: str, unreachable_since: datetime | None
) -> ClusterPhase:
    """Return the phase of a cluster. Deletion counts first, then reachability, then readiness."""
    if cluster.metadata.deletion_timestamp is not None:
        return ClusterPhase.TERMINATING
    if unreachable_since is not None:
        return ClusterPhase.UNREACHABLE
    if ready is None or ready.status != "True":
        return ClusterPhase.NOT_READY
    return ClusterPhase.READY if gateway else ClusterPhase.NO_GATEWAY


def read_pools(pools: Iterable[GpuPool]) -> Pools:
    """Parse the published pools. The first of two pools with one name counts; missing or negative numbers become 0."""
    # A dict keeps the last of two equal keys, hence both reversals.
    distinct = {pool.name: pool for pool in reversed(tuple(pools))}
    published = tuple(reversed(distinct.values()))
    fabrics = [pool.largest_fabric for pool in published]
    return Pools(
        names=tuple(pool.name for pool in published),
        nodes=tuple(_to_count(pool.nodes) for pool in published),
        profile=Profile(tuple(NodeShape(tuple(map(read_device, pool.devices))) for pool in published)),
        fabrics=tuple(Largest(fabric.value, _to_count(fabric.nodes)) if fabric else None for fabric in fabrics)
        if any(fabrics)
        else (),
        shared=tuple(map(_read_shared, published)) if any(pool.sharing == "Device" for pool in published) else (),
    )


def _read_shared(pool: GpuPool) -> SharedNode | None:
    """Return the nodes of a pool that is shared by device; None for another pool."""
    if pool.sharing != "Device":
        return None
    return SharedNode(tuple(map(read_device, pool.devices)), Amount.of(pool.allocatable))


def _to_count(number: int | None) -> int:
    """Return a published number; zero if it is missing or negative."""
    return max(number or 0, 0)


def read_device(device: PublishedDevice) -> NodeDevice:
    """Parse a published device; never raise. An invalid value becomes an error of the selectors that read it."""
    return NodeDevice(
        name=device.name,
        count=_to_count(device.count),
        claimable=device.claim != "Synthetic",
        device_class=device.device_class_name or "",
        device=Device.of(
            device.driver,
            attributes={name: _to_value(attribute) for name, attribute in device.attributes.items()},
            capacity={name: capacity.value for name, capacity in device.capacity.items()},
        ),
    )


def _to_value(attribute: Attribute) -> Value:
    """Return the value of an attribute, of which exactly one field is set."""
    if attribute.version is not None:
        return Version(attribute.version)
    if attribute.string is not None:
        return attribute.string
    return attribute.boolean if attribute.boolean is not None else attribute.integer
