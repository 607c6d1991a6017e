"""Node pools: what a cluster publishes of the hardware that its pools' classes describe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kubeloop.memo import remembered
from modelplane_operator.api.inference_class import ClassDevice, InferenceClass
from modelplane_operator.api.inference_cluster import Fabric, GpuPool, PublishedDevice
from modelplane_operator.api.node_pool import NodePool
from modelplane_operator.api.shared import Amounts
from modelplane_operator.clusters.cluster.plan.hardware import PoolNodes
from modelplane_operator.scheduling.cluster import read_device

# What Kubernetes takes, and so what drivers can publish and pods can claim.
_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = re.compile(rf"({_DOMAIN}/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}")
_WRITE = "write at most 32 letters, digits and underscores, with a DNS name and a slash before them or nothing"
DRIVER_LENGTH = 63
KEPT_BYTES = 1 << 18  # of JSON; a class takes less than one KB


def published(known: InferenceClass) -> tuple[PublishedDevice, ...]:
    """The devices of a class, as a cluster publishes them."""
    return tuple(_published(_by_content(device)) for device in known.spec.devices)


def problems(devices: Iterable[PublishedDevice]) -> tuple[str, ...]:
    """What cannot be read or claimed of a node's devices, one sentence for each value, in a stable order."""
    return tuple(f"device {device.name}: {problem}" for device in devices for problem in _problems(_by_content(device)))


@dataclass(frozen=True, slots=True)
class ResolvedPools:
    """What a cluster can publish of its pools."""

    pools: tuple[GpuPool, ...]
    """The pools whose hardware is known, from their class as it is or as it last was; without their nodes."""
    unknown: tuple[str, ...]
    """The pools of whose hardware nothing was ever known."""
    missing: tuple[str, ...]
    """The classes that pools name and that do not exist."""
    invalid: tuple[str, ...]
    """The classes that say what cannot be read."""


def resolve(
    pools: Sequence[NodePool], classes: Mapping[str, InferenceClass], last: Iterable[GpuPool] = ()
) -> ResolvedPools:
    """The pools with the devices of their classes. Where a class is missing or wrong, what was published last stays."""
    before = {pool.name: pool.devices for pool in last}
    fresh = {name: published(known) for name, known in classes.items()}
    invalid = {name for name, devices in fresh.items() if problems(devices)}
    resolved: list[GpuPool] = []
    for pool in pools:
        devices, kept = fresh.get(pool.class_name), before.get(pool.name, ())
        if kept and not problems(kept) and (devices is None or pool.class_name in invalid):
            devices = kept
        if devices:  # values that cannot be read match nothing, and take nothing away from the others
            resolved.append(GpuPool(name=pool.name, devices=devices))
    known = {pool.name for pool in resolved}
    named = sorted({pool.class_name for pool in pools})
    return ResolvedPools(
        pools=tuple(resolved),
        unknown=tuple(pool.name for pool in pools if pool.name not in known),
        missing=tuple(name for name in named if name not in classes),
        invalid=tuple(name for name in named if name in invalid),
    )


def counted(
    pools: Iterable[NodePool],
    resolved: Iterable[GpuPool],
    nodes: Mapping[str, PoolNodes],
    last: Iterable[GpuPool] = (),
) -> tuple[GpuPool, ...]:
    """The resolved pools, each with the nodes that models can count on.

    A pool that is autoscaled counts its maximum. Another counts what is usable of the nodes that are there, but no more
    than it says. While nodes cannot be seen, what was counted last; without that, what it says. What nodes have for
    pods stays known when they go. The largest fabric is that of nodes that are there: one that is autoscaled grows.
    """
    of = {pool.name: pool for pool in pools}
    last = tuple(last)
    before = {pool.name: pool.nodes for pool in last}
    offered = {pool.name: pool.allocatable for pool in last}
    largest = {pool.name: pool.largest_fabric for pool in last}

    def number(pool: GpuPool) -> int:
        most, found, known = declared(of[pool.name]), nodes.get(pool.name), before.get(pool.name)
        if of[pool.name].max_node_count:
            return most
        if found is None:
            return most if known is None else min(most, known)
        return min(most, found.usable)

    def offer(pool: GpuPool) -> dict[str, Amounts]:
        found = nodes.get(pool.name)
        known = (found.allocatable if found else None) or offered.get(pool.name)
        return {"allocatable": known} if known else {}

    def fabric(pool: GpuPool) -> dict[str, Fabric]:
        declared_fabric, found = of[pool.name].fabric, nodes.get(pool.name)
        key = declared_fabric.topology_key if declared_fabric else None
        if key is None or of[pool.name].max_node_count:
            return {}
        known = largest.get(pool.name) if found is None else found.fabrics.get(key)
        return {"largest_fabric": known} if known else {}

    return tuple(pool.model_copy(update={"nodes": number(pool), **offer(pool), **fabric(pool)}) for pool in resolved)


def declared(pool: NodePool) -> int:
    """The nodes that a pool has by its own account, or can have when it is autoscaled."""
    return pool.max_node_count or pool.node_count


D = TypeVar("D", ClassDevice, PublishedDevice)


@dataclass(frozen=True, slots=True)
class _Device(Generic[D]):
    """A device by its content: of the few kinds of a fleet it is asked again and again what comes of them."""

    text: str
    read: D = field(compare=False)


def _by_content(device: D) -> _Device[D]:
    return _Device(device.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True), device)


def _size(device: _Device[Any]) -> int:
    return len(device.text)


@remembered(most=KEPT_BYTES, size=_size)
def _published(device: _Device[ClassDevice]) -> PublishedDevice:
    read = device.read
    return PublishedDevice.model_validate({**read.to_manifest(), "claim": read.claim, "count": read.count})


@remembered(most=KEPT_BYTES, size=_size)
def _problems(device: _Device[PublishedDevice]) -> tuple[str, ...]:
    return tuple(_found_wrong(device.read))


def _found_wrong(device: PublishedDevice) -> Iterator[str]:
    yield from read_device(device).device.malformed
    claimed = device.claim != "Synthetic"  # nothing but our own scheduler reads the names of what nobody claims
    for what, keys in (("attribute", device.attributes), ("capacity", device.capacity)):
        yield from _illegal_keys(what, keys, device.driver, claimed=claimed)
    if claimed and not (re.fullmatch(_DOMAIN, device.driver) and len(device.driver) <= DRIVER_LENGTH):
        yield f'driver "{device.driver}" is not a DNS name of at most {DRIVER_LENGTH} characters'
    if claimed and not re.fullmatch(_DOMAIN, device.device_class_name or ""):
        yield f'deviceClassName "{device.device_class_name or ""}" is not a DNS name'


def _illegal_keys(what: str, keys: Iterable[str], driver: str, *, claimed: bool) -> Iterator[str]:
    """Keys that no driver can publish, and keys that are another way to write one that is there too."""
    full = {key: key if "/" in key else f"{driver}/{key}" for key in sorted(keys)}
    times = Counter(full.values())
    for key, whole in full.items():
        if times[whole] > 1 and key != whole:
            yield f"{what} {key} is there twice, as {key} and as {whole}"
        if claimed and not _KEY.fullmatch(key):
            yield f'{what} "{key}" is no key that a driver can publish: {_WRITE}'
