"""A cluster as the scheduler sees it: what its nodes have, whom it keeps off, and whether it can be used now."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from kubeloop.condition_types import Condition
from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import GpuPool, InferenceCluster, PublishedDevice
from modelplane_operator.api.shared import Attribute
from modelplane_operator.scheduling.cached_hash import CachedHash
from modelplane_operator.scheduling.taints import Taint
from modelplane_operator.selectors.cel import Attribute as Value
from modelplane_operator.selectors.cel import Device, Version


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """One kind of device on every node of a pool."""

    name: str
    count: int
    claimable: bool
    """Pods claim it; a device that is not claimable only guides placement."""
    device_class: str
    device: Device


@dataclass(frozen=True, slots=True)
class NodeShape(CachedHash):
    """What every node of a pool has. Pools with equal offers share all that is worked out for one."""

    devices: tuple[NodeDevice, ...]
    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class Profile(CachedHash):
    """The offers of a cluster's pools in their published order: all that decides which hardware fits there."""

    offers: tuple[NodeShape, ...]
    __hash__ = CachedHash.__hash__


class ClusterPhase(Enum):
    """Whether a cluster can be used now."""

    READY = "Ready"
    NOT_READY = "not Ready"
    UNREACHABLE = "unreachable"
    NO_GATEWAY = "no gateway"
    TERMINATING = "being deleted"


class Largest(NamedTuple):
    """The fabric of a pool that has most nodes."""

    value: str
    nodes: int


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a cluster in their published order."""

    names: tuple[str, ...]
    nodes: tuple[int, ...]
    profile: Profile
    fabrics: tuple[Largest | None, ...] = ()
    """The largest fabric of each, where a gang may need no more nodes; empty when no pool says."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """An InferenceCluster as the scheduler sees it."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    pools: Pools
    gateway: str
    phase: ClusterPhase
    server_name: str = ""
    """What its gateway proves to be, by https; without it, it is reached by http."""
    gateway_port: int | None = None
    """By which it is reached by http, where that is not 80."""
    why: str = ""
    """What its Ready condition says, when that is not True."""
    unknown: tuple[tuple[str, str], ...] = ()
    """Pools of which nothing is published, and their classes."""
    unhealthy_since: datetime | None = None
    gangs: bool = True
    """Whether it serves what starts pods together that belong together."""
    drained_by_force: bool = False
    """Whether replicas that are to leave it go even though no other cluster has a place for them."""

    @property
    def unreachable_since(self) -> datetime | None:
        return self.unhealthy_since if self.phase is ClusterPhase.UNREACHABLE else None


def read(
    cluster: InferenceCluster, *, unreachable_since: datetime | None = None, pools: Pools | None = None
) -> ClusterView:
    """The cluster as the scheduler sees it; never raises. `pools`, when given, are its pools as read before."""
    status = cluster.status
    gateway = (status.gateway.address or "") if status and status.gateway else ""
    ready = next((c for c in cluster.conditions if c.type == "Ready"), None)
    phase = _phase(cluster, ready, gateway, unreachable_since)
    return ClusterView(
        name=cluster.metadata.name,
        labels=cluster.metadata.labels,
        taints=tuple(Taint(taint.key, taint.value or "", taint.effect) for taint in cluster.spec.taints),
        pools=pools if pools is not None else read_pools(status.gpu_pools if status else ()),
        gateway=gateway,
        phase=phase,
        server_name=(status.gateway.server_name or "") if status and status.gateway else "",
        gateway_port=status.gateway.port if status and status.gateway else None,
        why=ready.reason if ready and ready.status != "True" else "",
        unknown=_unknown(cluster),
        unhealthy_since=_unhealthy_since(phase, ready, unreachable_since),
        gangs=_gangs(cluster),
        drained_by_force=cluster.metadata.annotations.get(labels.FORCE_DRAIN) == "true",
    )


def _phase(
    cluster: InferenceCluster, ready: Condition | None, gateway: str, unreachable_since: datetime | None
) -> ClusterPhase:
    if cluster.metadata.deletion_timestamp is not None:
        return ClusterPhase.TERMINATING
    if unreachable_since is not None:
        return ClusterPhase.UNREACHABLE
    if ready is None or ready.status != "True":
        return ClusterPhase.NOT_READY
    return ClusterPhase.READY if gateway else ClusterPhase.NO_GATEWAY


def _unknown(cluster: InferenceCluster) -> tuple[tuple[str, str], ...]:
    published = {pool.name for pool in cluster.status.gpu_pools} if cluster.status else set[str]()
    return tuple((pool.name, pool.class_name) for pool in cluster.spec.node_pools if pool.name not in published)


def _gangs(cluster: InferenceCluster) -> bool:
    """Of a cluster that has not told what it serves, the replica will say."""
    told = cluster.status.observed.apis if cluster.status and cluster.status.observed else ()
    return not told or "LeaderWorkerSet" in told


def _unhealthy_since(
    phase: ClusterPhase, ready: Condition | None, unreachable_since: datetime | None
) -> datetime | None:
    match phase:
        case ClusterPhase.UNREACHABLE:
            return unreachable_since
        case ClusterPhase.NOT_READY:
            return ready.last_transition_time if ready else None
        case _:
            return None


def read_pools(pools: Iterable[GpuPool]) -> Pools:
    """The pools as published; of two with one name the first counts, and a missing or negative number is none."""
    distinct = {pool.name: pool for pool in reversed(tuple(pools))}
    published = tuple(reversed(distinct.values()))
    return Pools(
        names=tuple(pool.name for pool in published),
        nodes=tuple(_count(pool.nodes) for pool in published),
        profile=Profile(tuple(NodeShape(tuple(map(read_device, pool.devices))) for pool in published)),
        fabrics=tuple(map(_largest, published)) if any(pool.largest_fabric for pool in published) else (),
    )


def _largest(pool: GpuPool) -> Largest | None:
    found = pool.largest_fabric
    return Largest(found.value, _count(found.nodes)) if found else None


def _count(number: int | None) -> int:
    return max(number or 0, 0)


def read_device(device: PublishedDevice) -> NodeDevice:
    """One published device; never raises: a value that cannot be read is an error for selectors that read it."""
    return NodeDevice(
        name=device.name,
        count=_count(device.count),
        claimable=device.claim != "Synthetic",
        device_class=device.device_class_name or "",
        device=Device.of(
            device.driver,
            attributes={name: _value(attribute) for name, attribute in device.attributes.items()},
            capacity={name: capacity.value for name, capacity in device.capacity.items()},
        ),
    )


def _value(attribute: Attribute) -> Value:
    if attribute.version is not None:
        return Version(attribute.version)
    if attribute.string is not None:
        return attribute.string
    return attribute.boolean if attribute.boolean is not None else attribute.integer
