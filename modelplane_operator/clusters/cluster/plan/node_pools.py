"""Node pools: the devices and node counts that a cluster publishes for its pools, from their InferenceClasses.

The scheduler reads the published pools from the cluster's status. Devices come from the class, and the number of
nodes from the observed nodes or the autoscaler's maximum. A class that is missing for a moment must not take the
hardware from running models, so the last published devices stay.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kubeloop.memo import memoize_bounded
from modelplane_operator.api.inference_class import ClassDevice, InferenceClass
from modelplane_operator.api.inference_cluster import Fabric, GpuPool, PublishedDevice
from modelplane_operator.api.node_pool import NodePool
from modelplane_operator.api.shared import Amounts
from modelplane_operator.clusters.cluster.plan.hardware import PoolNodes
from modelplane_operator.scheduling.cluster import read_device

# The syntax that Kubernetes accepts, for names that drivers publish and pods claim.
_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = re.compile(rf"({_DOMAIN}/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}")
_WRITE = "write at most 32 letters, digits and underscores, with a DNS name and a slash before them or nothing"
DRIVER_LENGTH = 63
"""Maximum length of a driver's name, as in Kubernetes."""
CACHE_BYTES = 1 << 18  # bytes of JSON kept in the cache; a class has less than one KB


def publish_devices(inference_class: InferenceClass) -> tuple[PublishedDevice, ...]:
    """Return the devices of a class in the form that a cluster publishes."""
    return tuple(_publish(_key_by_content(device)) for device in inference_class.spec.devices)


def problems(devices: Iterable[PublishedDevice]) -> tuple[str, ...]:
    """Return one sentence for each value of the devices that cannot be read or claimed, in a stable order."""
    return tuple(
        f"device {device.name}: {problem}" for device in devices for problem in _find_problems(_key_by_content(device))
    )


@dataclass(frozen=True, slots=True)
class ResolvedPools:
    """The pools of a cluster, by whether their devices are known."""

    pools: tuple[GpuPool, ...]
    """The pools with known devices, from their class as it is now or was last; without node counts."""
    unknown: tuple[str, ...]
    """Names of the pools whose devices were never known."""
    missing: tuple[str, ...]
    """Names of referenced classes that do not exist."""
    invalid: tuple[str, ...]
    """Names of referenced classes with malformed devices."""


def resolve(
    pools: Sequence[NodePool], classes: Mapping[str, InferenceClass], last: Iterable[GpuPool] = ()
) -> ResolvedPools:
    """Return the pools with the devices of their classes.

    A pool whose class is missing or invalid keeps the devices that were published last.
    """
    previous = {pool.name: pool for pool in last}
    current = {name: publish_devices(resolved_names) for name, resolved_names in classes.items()}
    invalid = {name for name, devices in current.items() if problems(devices)}
    resolved: list[GpuPool] = []
    for pool in pools:
        devices, before = current.get(pool.class_name), previous.get(pool.name)
        retained, used = before.devices if before else (), classes.get(pool.class_name)
        if retained and not problems(retained) and (devices is None or pool.class_name in invalid):
            devices = retained
        if devices:  # malformed values match nothing and do no harm to the other devices
            sharing = pool.sharing or (used.spec.sharing if used else before.sharing if before else None)
            offer = GpuPool(name=pool.name, devices=devices)
            resolved.append(offer.model_copy(update={"sharing": sharing}) if sharing == "Device" else offer)
    resolved_names = {pool.name for pool in resolved}
    class_names = sorted({pool.class_name for pool in pools})
    return ResolvedPools(
        pools=tuple(resolved),
        unknown=tuple(pool.name for pool in pools if pool.name not in resolved_names),
        missing=tuple(name for name in class_names if name not in classes),
        invalid=tuple(name for name in class_names if name in invalid),
    )


def count_nodes(
    pools: Iterable[NodePool],
    resolved: Iterable[GpuPool],
    nodes: Mapping[str, PoolNodes],
    last: Iterable[GpuPool] = (),
) -> tuple[GpuPool, ...]:
    """Return the resolved pools, each with the number of nodes that models can count on.

    An autoscaled pool counts its maximum. A fixed pool counts its usable nodes, up to its declared size; while nodes
    are not observed, the last count or else the declared size. Allocatable amounts stay known after nodes have gone.
    The largest fabric is only published for pools of fixed size.
    """
    by_name = {pool.name: pool for pool in pools}
    last = tuple(last)
    previous_nodes = {pool.name: pool.nodes for pool in last}
    previous_allocatable = {pool.name: pool.allocatable for pool in last}
    largest = {pool.name: pool.largest_fabric for pool in last}

    def number(pool: GpuPool) -> int:
        """Return the number of nodes that models can count on."""
        max_nodes, pool_nodes, previous = (
            declared_nodes(by_name[pool.name]),
            nodes.get(pool.name),
            previous_nodes.get(pool.name),
        )
        if by_name[pool.name].max_node_count:
            return max_nodes
        if pool_nodes is None:
            return max_nodes if previous is None else min(max_nodes, previous)
        return min(max_nodes, pool_nodes.usable)

    def offer(pool: GpuPool) -> dict[str, Amounts]:
        """Return the allocatable amounts, observed or last known."""
        pool_nodes = nodes.get(pool.name)
        previous = (pool_nodes.allocatable if pool_nodes else None) or previous_allocatable.get(pool.name)
        return {"allocatable": previous} if previous else {}

    def fabric(pool: GpuPool) -> dict[str, Fabric]:
        """Return the largest fabric of a pool of fixed size."""
        declared_fabric, pool_nodes = by_name[pool.name].fabric, nodes.get(pool.name)
        key = declared_fabric.topology_key if declared_fabric else None
        if key is None or by_name[pool.name].max_node_count:
            return {}
        previous = largest.get(pool.name) if pool_nodes is None else pool_nodes.fabrics.get(key)
        return {"largest_fabric": previous} if previous else {}

    return tuple(pool.model_copy(update={"nodes": number(pool), **offer(pool), **fabric(pool)}) for pool in resolved)


def declared_nodes(pool: NodePool) -> int:
    """Return the number of nodes that the spec declares; the maximum of an autoscaled pool."""
    return pool.max_node_count or pool.node_count


def count_desired_nodes(pool: NodePool, present: PoolNodes) -> int:
    """Return the number of nodes that should be usable: what the spec asks for, or what an autoscaler has added.

    Nodes that the autoscaler adds or removes at the moment are no reason to act.
    """
    return max(pool.min_node_count or 0, present.nodes - present.moving) if pool.max_node_count else pool.node_count


D = TypeVar("D", ClassDevice, PublishedDevice)


@dataclass(frozen=True, slots=True)
class _Device(Generic[D]):
    """A device keyed by its content: a fleet has few distinct devices, and each is converted and checked once."""

    text: str
    """The device as JSON, by which the caches look it up."""
    read: D = field(compare=False)


def _key_by_content(device: D) -> _Device[D]:
    return _Device(device.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True), device)


def _get_size(device: _Device[Any]) -> int:
    """Return the size of an entry in the cache."""
    return len(device.text)


@memoize_bounded(most=CACHE_BYTES, size=_get_size)
def _publish(device: _Device[ClassDevice]) -> PublishedDevice:
    """Return the published form of a class's device; cached by its content."""
    read = device.read
    return PublishedDevice.model_validate({**read.to_manifest(), "claim": read.claim, "count": read.count})


@memoize_bounded(most=CACHE_BYTES, size=_get_size)
def _find_problems(device: _Device[PublishedDevice]) -> tuple[str, ...]:
    """Return the problems of a device; cached by its content."""
    return tuple(_check_device(device.read))


def _check_device(device: PublishedDevice) -> Iterator[str]:
    """Yield what is wrong with a device: malformed values, and names that no driver can publish."""
    yield from read_device(device).device.malformed
    # names of devices without claims are only read by the operator's own scheduler
    claimed = device.claim != "Synthetic"
    for what, keys in (("attribute", device.attributes), ("capacity", device.capacity)):
        yield from _check_keys(what, keys, device.driver, claimed=claimed)
    if claimed and not (re.fullmatch(_DOMAIN, device.driver) and len(device.driver) <= DRIVER_LENGTH):
        yield f'driver "{device.driver}" is not a DNS name of at most {DRIVER_LENGTH} characters'
    if claimed and not re.fullmatch(_DOMAIN, device.device_class_name or ""):
        yield f'deviceClassName "{device.device_class_name or ""}" is not a DNS name'


def _check_keys(what: str, keys: Iterable[str], driver: str, *, claimed: bool) -> Iterator[str]:
    """Yield a problem for each key that no driver can publish, and for each key that is written in two ways."""
    full = {key: key if "/" in key else f"{driver}/{key}" for key in sorted(keys)}
    times = Counter(full.values())
    for key, full_key in full.items():
        if times[full_key] > 1 and key != full_key:
            yield f"{what} {key} is listed twice, as {key} and as {full_key}: remove one"
        if claimed and not _KEY.fullmatch(key):
            yield f'{what} "{key}" cannot be published by a driver: {_WRITE}'
